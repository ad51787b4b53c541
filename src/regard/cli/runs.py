"""Commands that use a run, or a transformers directory: evaluate, predict, look, whose further options are those of the run's task; import, export."""

from __future__ import annotations

import json as json_
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

from tyro.conf import Positional

from ..errors import NotSupported
from ..look import Layers, Maps
from ..models import Classifier, config_of
from ..runs import CONFIG, Run, read_config, read_json
from ..tasks import NoOptions, Task, attention_maps, evaluate, find_task, predict
from ._command import Command, check_writable, parse, print_json, print_table

TaskOptions = TypeVar("TaskOptions")


@dataclass(frozen=True, kw_only=True)
class RunCommand(Command, Generic[TaskOptions]):
    """A command whose first argument is a run: its task declares the rest of the options, under the name `task_options`."""

    task_options: ClassVar[str]
    folder: Positional[Path]
    """Run directory, or a transformers directory."""
    task: TaskOptions

    @classmethod
    def concrete(cls) -> Any:
        return cls[NoOptions]  # type: ignore[index]

    @classmethod
    def main(cls, arguments: Sequence[str]) -> None:
        program = f"regard {cls.__name__.lower()}"
        folder = _folder(arguments)
        if folder is None:
            parse(cls.concrete(), arguments, program)  # what is missing
            return
        task, load = open_run(folder)
        command = parse(cls[getattr(task, cls.task_options)], arguments, f"{program} {folder}")  # type: ignore[index]
        command.use(load())

    def use(self, run: Run[Any]) -> None:
        raise NotImplementedError


def _folder(arguments: Sequence[str]) -> Path | None:
    """The run among the arguments: a directory with config.json, else the first that is no option."""
    plain = [Path(one) for one in arguments if not one.startswith("-")]
    return next((path for path in plain if (path / CONFIG).is_file()), plain[0] if plain else None)


def open_run(folder: Path) -> tuple[type[Task[Any]], Callable[[], Run[Any]]]:
    """The task of a run, and how to load it. config.json is read once; the model only if it is needed to know the task."""
    from .. import load_run

    if not folder.is_dir() or "format_version" not in (config := read_json(folder)):
        run = load_run(folder)
        return find_task(run.task), lambda: run
    return find_task(read_config(folder, config).task), lambda: load_run(folder, config=config)


@dataclass(frozen=True, kw_only=True)
class Evaluate(RunCommand[TaskOptions]):
    """Compute the metrics of a run on its test data or on other data.

    `regard evaluate RUN --help` lists the options of its task.

    As in:  regard evaluate runs/numbers
            regard evaluate runs/mine --data "test.en test.de" --beam 5
            regard evaluate runs/python --data other.txt --stride 64
    """

    task_options = "EvaluateOptions"
    data: str | None = None
    """Data in the form that the run was trained on; the test part of its own data if not given."""
    json: bool = False
    """Print JSON."""

    def use(self, run: Run[Any]) -> None:
        report = evaluate(run, self.data, self.task)
        if self.json:
            return print_json(report.to_json())
        print("  ".join(f"{name} {value:.4g}" for name, value in report.metrics.items()))
        for note in report.notes:
            print(note)
        if report.rows:
            print_table(report.columns, report.rows)


@dataclass(frozen=True, kw_only=True)
class Predict(RunCommand[TaskOptions]):
    """Translate, classify or label inputs with a run.

    Inputs are arguments, or lines of standard input. `regard predict RUN --help` lists the options of its task.

    As in:  regard predict runs/numbers "twenty-one" "three hundred"
            regard predict runs/mine --beam 5 --nbest 3 < sentences.txt
            regard predict runs/reviews "a waste of two hours"
    """

    task_options = "PredictOptions"
    inputs: Positional[tuple[str, ...]] = ()
    """What to translate, continue or classify (a tab between the two texts of a pair); standard input if not given."""
    json: bool = False
    """Print a JSON object per input."""

    def use(self, run: Run[Any]) -> None:
        inputs = self.inputs or tuple(line.rstrip("\n") for line in sys.stdin)
        for line, answer in zip(inputs, predict(run, inputs, self.task), strict=True):
            print(json_.dumps({"input": line, **answer.values}, ensure_ascii=False) if self.json else answer.text)


@dataclass(frozen=True, kw_only=True)
class Look(RunCommand[TaskOptions]):
    """Show which tokens a run attends to while it reads a text.

    Of a translator: also while it writes. Heat maps in the terminal, and as a PNG file.

    As in:  regard look runs/numbers "twenty-one" --png map.png
            regard look runs/book "Once upon a time" --layer 0 --head 2
    """

    task_options = "LookOptions"
    text: Positional[str]
    """What to read or to translate (a tab between the two texts of a pair)."""
    layer: str | None = None
    """Number or name, * for any part of it; if not given, the alignment of a translator, else the last layer here and all in the picture."""
    head: int | None = None
    """Number; if not given, the mean of all heads here, and all of them in the picture."""
    png: Path | None = None
    """Also write the picture to this file."""

    @classmethod
    def main(cls, arguments: Sequence[str]) -> None:
        folder = _folder(arguments)
        if folder is None or not (folder / CONFIG).is_file() or "format_version" in (config := read_json(folder)):
            return super().main(arguments)
        from .. import interop

        if interop.is_imported(config):
            return super().main(arguments)
        command = parse(cls[NoOptions], arguments, f"regard look {folder}")  # type: ignore[index]
        command.show(lambda layers: interop.text_maps(folder, command.text, layers))

    def use(self, run: Run[Any]) -> None:
        self.show(
            lambda layers: attention_maps(run, self.text, "*" if layers is None and self.head is not None else layers, None, self.task)
        )

    def show(self, read: Callable[[Layers], tuple[str, Maps]]) -> None:
        check_writable(self.png, "--png", ".png")
        text, maps = read(int(self.layer) if self.layer and self.layer.lstrip("-").isdecimal() else self.layer)
        if text:
            print(text)
        for name in maps.layers if self.layer is not None else maps.layers[-1:]:
            maps.show(name, self.head)
        if self.png is not None:
            print(f"wrote {maps.save_png(self.png, head=self.head)}")


@dataclass(frozen=True, kw_only=True)
class Swap(Command):
    """Replace the attention of a run by another mechanism.

    All other parameters are copied; `regard train TASK --init-from NEW` trains the result further.

    As in:  regard swap runs/book performer --out runs/book-performer
            regard swap runs/book "softmax,local(radius=64)" --out runs/book-local
            regard swap runs/book linear --layers 0 2 --out runs/book-mixed
    """

    folder: Positional[Path]
    """Run directory, or a transformers directory."""
    attention: Positional[str]
    """Mechanism from `regard list`, as in linear or local(radius=64); several with commas between them are for the layers in turn."""
    out: Path
    """Run directory to make."""
    layers: tuple[int, ...] = ()
    """Numbers of the layers to change, from 0; all if not given."""

    def run(self) -> None:
        from .. import load_run, runs
        from ..layers.spec import split_names

        run = load_run(self.folder)
        if isinstance(run.model, Classifier):
            raise NotSupported(f"{self.folder}: swap the attention of the run that the classifier was trained from, then train it again")
        runs.check_unused(self.out)
        names = split_names(self.attention)
        model = run.model.with_attention(tuple(names), layers=self.layers or None)
        before, after = ({name for name, _ in each.named_parameters()} for each in (run.model, model))
        name, settings = config_of(model)
        config = replace(run.config, model=name, settings=settings, init_from=str(self.folder))
        runs.save(replace(run, config=config, model=model), self.out)
        new = sum(parameter.numel() for name, parameter in model.named_parameters() if name in after - before)
        count = len(self.layers) or len(model.attentions())
        print(f"{count} layers of {self.folder} now use {', '.join(names)}; {new:,} new parameters. wrote {self.out}")
        print(f"Next:  regard train {run.task} --init-from {self.out} --out {self.out}-trained        regard evaluate {self.out}")


@dataclass(frozen=True, kw_only=True)
class Import(Command):
    """Make a run of a Transformers checkpoint.

    A checkpoint is a directory with config.json and safetensors, as transformers writes it.

    As in:  regard import downloads/bert-base-uncased --out runs/bert
    """

    folder: Positional[Path]
    """Directory of the checkpoint."""
    out: Path
    """Run directory to make."""

    def run(self) -> None:
        from ..interop import import_checkpoint

        run = import_checkpoint(self.folder, self.out)
        count = sum(parameter.numel() for parameter in run.model.parameters())
        body = run.model.body if isinstance(run.model, Classifier) else run.model
        print(f"{body.facts.name}, a run of the task {run.task}, {count:,} parameters. wrote {self.out}")
        print(f"Next:  {find_task(run.task).next_commands.format(out=self.out)}")


@dataclass(frozen=True, kw_only=True)
class Export(Command):
    """Write a run as a Transformers checkpoint.

    from_pretrained of transformers reads the directory.

    As in:  regard export runs/bert --to huggingface --out published/bert
    """

    folder: Positional[Path]
    """Run directory."""
    out: Path
    """Directory to make."""
    to: Literal["huggingface"] = "huggingface"
    """Format to write."""

    def run(self) -> None:
        from .. import load_run
        from ..interop import export_run

        export_run(load_run(self.folder), self.out)
        written = ", ".join(sorted(path.name for path in self.out.iterdir()))
        print(f"wrote {self.out}: {written}")
