"""Commands that use a run, or a transformers directory: evaluate, predict, look. Their further options are those of the run's task."""

from __future__ import annotations

import json as json_
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from tyro.conf import Positional

from ..look import keep_inputs
from ..runs import Run, read_config, read_json
from ..tasks import NoOptions, Task, attention_maps, evaluate, find_task, predict
from ._command import Command, check_writable, parse
from ._output import print_json, print_table

TaskOptions = TypeVar("TaskOptions")


@dataclass(frozen=True, kw_only=True)
class RunCommand(Command, Generic[TaskOptions]):
    """A command whose first argument is a run: its task declares the rest of the options."""

    folder: Positional[Path]
    """Run directory, or a transformers directory."""
    task: TaskOptions

    @classmethod
    def options_of(cls, task: type[Task[Any]]) -> type[Any]:
        raise NotImplementedError

    @classmethod
    def main(cls, arguments: Sequence[str]) -> None:
        program = f"regard {cls.__name__.lower()}"
        folder = _folder(arguments)
        if folder is None:
            parse(cls[NoOptions], arguments, program)  # type: ignore[index]  # help, or what is missing
            return
        task, load = open_run(folder)
        command = parse(cls[cls.options_of(task)], arguments, f"{program} {folder}")  # type: ignore[index]
        command.use(load())

    def use(self, run: Run[Any]) -> None:
        raise NotImplementedError


def _folder(arguments: Sequence[str]) -> Path | None:
    """The run among the arguments: a directory with config.json, else the first that is no option."""
    plain = [Path(one) for one in arguments if not one.startswith("-")]
    return next((path for path in plain if (path / "config.json").is_file()), plain[0] if plain else None)


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

    data: str | None = None
    """Data in the form that the run was trained on; the test part of its own data if not given."""
    json: bool = False
    """Print JSON."""

    @classmethod
    def options_of(cls, task: type[Task[Any]]) -> type[Any]:
        return task.EvaluateOptions

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

    inputs: Positional[tuple[str, ...]] = ()
    """What to translate, continue or classify (a tab between the two texts of a pair); standard input if not given."""
    json: bool = False
    """Print a JSON object per input."""

    @classmethod
    def options_of(cls, task: type[Task[Any]]) -> type[Any]:
        return task.PredictOptions

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
    def options_of(cls, task: type[Task[Any]]) -> type[Any]:
        return task.LookOptions

    def use(self, run: Run[Any]) -> None:
        if self.text is None:
            from ..serve import explore

            return explore(run, self.folder.resolve().name, port=self.port, browser=not self.no_browser)
        check_writable(self.png, "--png", ".png")
        check_writable(self.html, "--html", ".html")
        layers = int(self.layer) if self.layer and self.layer.lstrip("-").isdecimal() else self.layer
        everything = layers is None and (self.head is not None or self.html is not None)
        with keep_inputs() if self.html is not None else nullcontext():
            text, maps = attention_maps(run, self.text, "*" if everything else layers, None, self.task)
        if text:
            print(text)
        if self.html is not None:
            print(f"wrote {maps.save_html(self.html, title=self.folder.resolve().name, text=self.text)}")
            return
        for name in maps.layers if self.layer is not None else maps.layers[-1:]:
            maps.show(name, self.head)
        if self.png is not None:
            print(f"wrote {maps.save_png(self.png, head=self.head)}")
