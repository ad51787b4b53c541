"""Commands that use a run, or a transformers directory: runs, which lists them; evaluate, predict, look, whose further options are those of the run's task."""

from __future__ import annotations

import itertools
import json as json_
import queue
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TextIO, TypeVar

from tyro.conf import Positional

from .. import files, look, tasks  # packages whose names are imported when they are used: help needs no PyTorch
from ..errors import BadConfig, BadFile, CannotSave, MissingFile, NotSupported
from ..tasks.options import NoOptions
from ._command import Command, check_writable, parse, print_json, print_note, print_table

if TYPE_CHECKING:
    from ..look import Layers, Maps
    from ..runs import Run
    from ..tasks import Prediction, Task

TaskOptions = TypeVar("TaskOptions")


@dataclass(frozen=True, kw_only=True)
class RunCommand(Command, Generic[TaskOptions]):
    """A command whose first argument is a run: its task declares the rest of the options, under the name `task_options`."""

    task_options: ClassVar[str]
    folder: Positional[Path]
    """Run directory, or a transformers directory."""
    device: str = "auto"
    """Where to compute: cpu, cuda, cuda:1, mps; auto: a GPU, if there is one."""
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
        rest = list(arguments)
        rest.remove(next(one for one in rest if Path(one) == folder))  # options that take several values would take it
        command = parse(cls[getattr(task, cls.task_options)], [str(folder), *rest], f"{program} {folder}")  # type: ignore[index]
        run = load(command.device)
        print_note(run.unfinished)
        command.use(run)

    def use(self, run: Run[Any]) -> None:
        raise NotImplementedError


def _folder(arguments: Sequence[str]) -> Path | None:
    """The run among the arguments: a directory with config.json, else the first that is not an option."""
    from ..runs import CONFIG

    plain = [Path(one) for one in arguments if not one.startswith("-")]
    return next((path for path in plain if (path / CONFIG).is_file()), plain[0] if plain else None)


def open_run(folder: Path) -> tuple[type[Task[Any]], Callable[[str], Run[Any]]]:
    """The task of a run, and how to load it to a device. config.json is read once; the model only if it is needed to know the task."""
    from .. import load_run
    from ..runs import read_config, read_json

    if not folder.is_dir() or "format_version" not in (config := read_json(folder)):
        run = load_run(folder)

        def moved(device: str) -> Run[Any]:
            from ..machine import find_device

            run.model.to(find_device(device))
            return run

        return tasks.find_task(run.task), moved
    return tasks.find_task(read_config(folder, config).task), lambda device: load_run(folder, config=config, device=device)


@dataclass(frozen=True, kw_only=True)
class Evaluate(RunCommand[TaskOptions]):
    """Compute the metrics of a run on its test data or on other data.

    `regard evaluate RUN --help` lists the options of its task.

    As in:  regard evaluate runs/numbers
            regard evaluate runs/mine --data test.en test.de --beam 5 --out hypotheses.txt
            regard evaluate runs/python --data other.txt --stride 64
    """

    task_options = "EvaluateOptions"
    data: str | tuple[str, ...] | None = None
    """Data in the same format as the training data; by default the test part of the run's own data."""
    out: Path | None = None
    """Also write the predictions to this file, one per line: translations or labels."""
    json: bool = False
    """Print JSON."""

    def use(self, run: Run[Any]) -> None:
        check_writable(self.out, "--out")
        report = tasks.evaluate(run, self.data, self.task)
        if self.out is not None:
            if not report.outputs:
                raise NotSupported(f"--out {self.out}: a run of the task {run.task} makes no predictions to write; omit --out")
            with _writing(self.out) as file:
                file.writelines(f"{line}\n" for line in report.outputs)
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

    Inputs are texts or names of files, given as arguments, or as lines of a file or of standard input, each answered as soon as it arrives.
    `regard predict RUN --help` lists the options of its task.

    As in:  regard predict runs/numbers "twenty-one" "three hundred"
            regard predict runs/mine --input sentences.txt --output translations.txt --beam 5
            regard predict runs/mine "a dog" --score "ein Hund"
            regard predict runs/digits photo.png
            tail -f comments.txt | regard predict runs/reviews --json
    """

    task_options = "PredictOptions"
    inputs: Positional[tuple[str, ...]] = ()
    """Texts to translate, continue, classify or draw (a tab between the two texts of a pair), or names of files; standard input if not given."""
    input: Path | None = None
    """File with one input per line; - is standard input."""
    output: Path | None = None
    """Write the predictions to this file instead of printing them."""
    files: Path = Path()
    """Folder for the files that a prediction consists of, such as drawings; the current folder if not given."""
    json: bool = False
    """Print a JSON object per input."""
    score: str | None = None
    """Print the log-probability of this output for each input, instead of predicting."""
    references: Path | None = None
    """Print the log-probabilities of the outputs in this file, one line per input, instead of predicting."""

    def use(self, run: Run[Any]) -> None:
        if self.inputs and self.input is not None:
            raise BadConfig("inputs were given as arguments and with --input; use one of them")
        if self.score is not None and self.references is not None:
            raise BadConfig("--score and --references cannot be combined; use one of them")
        check_writable(self.output, "--output")
        with _writing(self.output) as file:
            for chunk in self._chunks(tasks.find_task(run.task)):
                for line, answer in zip(chunk, self._answers(run, chunk), strict=True):
                    names = [str(path) for path in self._written(line, answer)]
                    values = {"input": line, **answer.values, **({"files": names} if names else {})}
                    if names:
                        print(f"wrote {' and '.join(names)}", file=sys.stderr)
                    print(json_.dumps(values, ensure_ascii=False) if self.json else answer.text, file=file)
                file.flush()
        if self._targets is not None and next(self._targets, None) is not None:
            raise BadConfig(f"--references {self.references} has more lines than there are inputs")

    def _answers(self, run: Run[Any], chunk: Sequence[str]) -> Sequence[Prediction]:
        if self.score is None and self.references is None:
            return tasks.predict(run, chunk, self.task)
        targets = [self.score if self._targets is None else next(self._targets, None) for _ in chunk]
        if None in targets:
            raise BadConfig(f"--references {self.references} has fewer lines than there are inputs")
        return tasks.score_outputs(run, [(line, target or "") for line, target in zip(chunk, targets, strict=True)])

    def _written(self, line: str, answer: Prediction) -> list[Path]:
        """The files of an answer, named after its input; no file is replaced."""
        if not answer.files:
            return []
        stem = "-".join(re.findall(r"\w+", Path(line).stem if len(line) < 200 else line))[:40] or "answer"
        stems = (stem if n == 1 else f"{stem}-{n}" for n in itertools.count(1))
        free = next(one for one in stems if not any((self.files / f"{one}{suffix}").exists() for suffix in answer.files))
        paths = [self.files / f"{free}{suffix}" for suffix in answer.files]
        try:
            self.files.mkdir(parents=True, exist_ok=True)
            for path, content in zip(paths, answer.files.values(), strict=True):
                files.write(path, content, new=True)
        except OSError as wrong:
            raise CannotSave(f"cannot write to {self.files}: {wrong.strerror or wrong}; choose another folder with --files") from wrong
        return paths

    def _chunks(self, task: type[Task[Any]]) -> Iterator[Sequence[str]]:
        if self.inputs:
            for one in self.inputs if task.inputs == "text" else ():
                if Path(one).is_file():
                    print(f"regard: {one} is also a file; --input {one} takes its lines", file=sys.stderr)
            yield self.inputs
        elif self.input is None or self.input == Path("-"):
            if sys.stdin.isatty():
                print("One input per line; Ctrl-D ends.", file=sys.stderr)
            yield from arriving(_lines(None))
        else:
            yield from arriving(_lines(self.input))

    @cached_property
    def _targets(self) -> Iterator[str] | None:
        return None if self.references is None else _lines(self.references)


def _lines(path: Path | None) -> Iterator[str]:
    """The lines of a file, or of standard input, without their ends."""
    try:
        with nullcontext(sys.stdin) if path is None else path.open(encoding="utf-8") as file:
            for line in file:
                yield line.rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as wrong:
        raise BadFile(f"{path or 'standard input'}: cannot be read as UTF-8 text ({wrong})") from wrong


@contextmanager
def _writing(path: Path | None) -> Iterator[TextIO]:
    if path is None or path == Path("-"):
        yield sys.stdout
        return
    try:
        with path.open("w", encoding="utf-8") as file:
            yield file
    except OSError as wrong:
        raise CannotSave(f"cannot write {path}: {wrong.strerror or wrong}; choose another file") from wrong


def arriving(lines: Iterator[str], at_most: int = 64) -> Iterator[list[str]]:
    """The lines in groups of those that are there: one by one while they arrive slowly, many at once from a file.

    A thread reads ahead, because nothing else tells whether another line is there already.
    """
    waiting: queue.Queue[str | BaseException | None] = queue.Queue(maxsize=4 * at_most)

    def read() -> None:
        try:
            for line in lines:
                waiting.put(line)
            waiting.put(None)
        except BaseException as wrong:
            waiting.put(wrong)

    threading.Thread(target=read, daemon=True).start()
    ended = False
    while not ended:
        group, one = list[str](), waiting.get()
        while True:
            if not isinstance(one, str):
                ended = True
                break
            group.append(one)
            if len(group) == at_most or waiting.empty():
                break
            one = waiting.get()
        if group:
            yield group
        if isinstance(one, BaseException):
            raise one


@dataclass(frozen=True, kw_only=True)
class Look(RunCommand[TaskOptions]):
    """Show what a run attends to while it reads a text or an image: in the browser, or as heat maps in the terminal.

    For a translator, also while it generates the translation. Without an input, a page opens in the browser.

    As in:  regard look runs/numbers
            regard look runs/numbers "twenty-one" --html map.html
            regard look runs/book "Once upon a time" --layer 0 --head 2 --scale log --png map.png
            regard look runs/book "Once upon a time" --summary
    """

    task_options = "LookOptions"
    text: Positional[str | None] = None
    """Text to read or to translate (a tab between the two texts of a pair), or the name of a file; the explorer opens in the browser if not given."""
    layer: str | None = None
    """Number or name, * for any part of it; if not given, the alignment of a translator, else the last layer here and all in the picture."""
    head: int | None = None
    """Number; if not given, the mean of all heads here, and all of them in the picture."""
    scale: Literal["row", "global", "percentile", "log"] = "row"
    """The darkest shade is the largest weight of each row, or of all (global, log), or the 95th percentile of all."""
    summary: bool = False
    """Entropy and mean distance per head, and rollout, instead of maps; of all layers if --layer is not given."""
    png: Path | None = None
    """Also write the picture to this file."""
    html: Path | None = None
    """Write the explorer to this file, which opens without a server or a network; all layers unless --layer is given."""
    gradients: bool = False
    """With --html, also gradients with respect to the inputs, to compare attention with; a backward pass per output."""
    port: int = 0
    """Port of the explorer without a text; 0: a free one."""
    no_browser: bool = False
    """Print the address of the explorer and do not open a browser."""

    @classmethod
    def main(cls, arguments: Sequence[str]) -> None:
        from ..runs import CONFIG, read_json

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
        command.show(lambda layers: interop.text_maps(folder, command.text, layers, command.head, command.device))

    def use(self, run: Run[Any]) -> None:
        if self.text is None:
            from ..serve import explore

            return explore(run, self.folder.resolve().name, port=self.port, browser=not self.no_browser)
        text = self.text
        everything = "*" if self.summary or self.head is not None or self.html is not None else None
        self.show(lambda layers: tasks.attention_maps(run, text, everything if layers is None else layers, self.head, self.task))

    def show(self, read: Callable[[Layers], tuple[str, Maps]]) -> None:
        check_writable(self.png, "--png", ".png")
        check_writable(self.html, "--html", ".html")
        keep = nullcontext() if self.html is None else look.keep_inputs() if self.png is None else look.keep_inputs(sys.maxsize)
        with keep:  # a page computes long maps as they are read, a picture needs all of them
            text, maps = read(int(self.layer) if self.layer and self.layer.lstrip("-").isdecimal() else self.layer)
        if text:
            print(text)
        if self.html is not None:
            print(f"wrote {maps.save_html(self.html, self.folder.resolve().name, self.text or '', gradients=self.gradients)}")
            if self.png is None:
                return
        elif not self.summary:
            for name in maps.layers if self.layer is not None else maps.layers[-1:]:
                maps.show(name, self.head, scale=self.scale)
        if self.summary:
            maps = maps if self.head is None else look.Maps(m.head(self.head) for m in maps.all)
            maps.show_summary()
            if self.png is not None:
                print(f"wrote {maps.save_summary(self.png)}")
            return
        if self.png is not None:
            print(f"wrote {maps.save_png(self.png, head=self.head, scale=self.scale)}")


@dataclass(frozen=True, kw_only=True)
class Runs(Command):
    """List the runs in a folder and below it: task, model, mechanism, data, steps, best metric on validation, and whether they have finished.

    As in:  regard runs
            regard runs runs/book --plot curves.png
    """

    folder: Positional[Path] = Path("runs")
    """Folder to search."""
    plot: Path | None = None
    """Also write the curves of training loss and deciding metric to this PNG file."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from ..runs import curves, find_runs

        check_writable(self.plot, "--plot", ".png")
        if not self.folder.is_dir():
            raise MissingFile(f"{self.folder}: no such folder; `regard runs FOLDER` lists the runs in another one")
        found = find_runs(self.folder)
        if self.json:
            print_json([{**asdict(one), "folder": str(one.folder)} for one in found])
        elif not found:
            print(f"no runs in {self.folder}; `regard train TASK --out {self.folder / 'NAME'}` makes one")
        else:
            rows = [
                (
                    str(one.folder),
                    one.state,
                    one.task,
                    one.model,
                    one.mechanism,
                    one.data,
                    one.step,
                    "" if one.best is None else f"{one.metric} {one.best:.4g}",
                )
                for one in found
            ]
            print_table(("run", "state", "task", "model", "mechanism", "data", "steps", "best"), rows, ["data"])
            for one in found:
                print_note(one.problem)
        if self.plot is not None:
            print(f"wrote {look.save_curves(curves(found), self.plot)}")
