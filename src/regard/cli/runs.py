"""Commands that use a run, or a transformers directory: evaluate, predict, look, whose further options are those of the run's task; import, export."""

from __future__ import annotations

import json as json_
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

from tyro.conf import Positional

from ..errors import NotSupported
from ..look import Layers, Maps, keep_inputs
from ..models import Classifier
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
    def main(cls, arguments: Sequence[str]) -> None:
        program = f"regard {cls.__name__.lower()}"
        folder = _folder(arguments)
        if folder is None:
            parse(cls[NoOptions], arguments, program)  # type: ignore[index]  # help, or what is missing
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
    """Metrics of a run on its test data or on other data. `regard evaluate RUN --help` shows the options of its task.

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
    """Answer inputs: the arguments, or lines of standard input. `regard predict RUN --help` shows the options of its task.

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
    """Attention maps of a run while it reads a text, and of a translator while it writes: in the browser, or here as a heat map.

    As in:  regard look runs/numbers
            regard look runs/numbers "twenty-one" --html map.html
            regard look runs/book "Once upon a time" --layer 0 --head 2 --png map.png
    """

    task_options = "LookOptions"
    text: Positional[str | None] = None
    """What to read or to translate (a tab between the two texts of a pair); the explorer opens in the browser if not given."""
    layer: str | None = None
    """Number or name, * for any part of it; if not given, the alignment of a translator, else the last layer here and all in the picture."""
    head: int | None = None
    """Number; if not given, the mean of all heads here, and all of them in the picture."""
    png: Path | None = None
    """Also write the picture to this file."""
    html: Path | None = None
    """Write the explorer to this file, which opens without a server or a network; all layers unless --layer is given."""
    port: int = 0
    """Port of the explorer without a text; 0: a free one."""
    no_browser: bool = False
    """Print the address of the explorer and do not open a browser."""

    @classmethod
    def main(cls, arguments: Sequence[str]) -> None:
        folder = _folder(arguments)
        if folder is None or not (folder / CONFIG).is_file() or "format_version" in (config := read_json(folder)):
            return super().main(arguments)
        from .. import interop

        if interop.is_imported(config):
            return super().main(arguments)
        command = parse(cls[NoOptions], arguments, f"regard look {folder}")  # type: ignore[index]
        if command.text is None:
            raise NotSupported(
                f"{folder}: the explorer runs models that regard imports; of this one it shows a text: regard look {folder} TEXT --html look.html"
            )
        command.show(lambda layers: interop.text_maps(folder, command.text, layers))

    def use(self, run: Run[Any]) -> None:
        if self.text is None:
            from ..serve import explore

            return explore(run, self.folder.resolve().name, port=self.port, browser=not self.no_browser)
        text = self.text
        everything = self.head is not None or self.html is not None
        self.show(lambda layers: attention_maps(run, text, "*" if layers is None and everything else layers, None, self.task))

    def show(self, read: Callable[[Layers], tuple[str, Maps]]) -> None:
        check_writable(self.png, "--png", ".png")
        check_writable(self.html, "--html", ".html")
        with keep_inputs() if self.html is not None else nullcontext():
            text, maps = read(int(self.layer) if self.layer and self.layer.lstrip("-").isdecimal() else self.layer)
        if text:
            print(text)
        if self.html is not None:
            print(f"wrote {maps.save_html(self.html, title=self.folder.resolve().name, text=self.text or '')}")
            return
        for name in maps.layers if self.layer is not None else maps.layers[-1:]:
            maps.show(name, self.head)
        if self.png is not None:
            print(f"wrote {maps.save_png(self.png, head=self.head)}")


@dataclass(frozen=True, kw_only=True)
class Import(Command):
    """Make a run of a published checkpoint: a directory with config.json and safetensors, as transformers writes it.

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
    """Write a run as a directory that transformers' from_pretrained reads.

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
