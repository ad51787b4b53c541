"""The run directory: everything needed to use, resume or inspect a trained model, whatever the task. Nothing else reads or writes its files.

config.json          format_version; the task and its options; the model; the training options; what it was initialised from; the data's digest
model.safetensors    the chosen parameters
metrics.jsonl        what happened during training, one JSON object per line
state/               checkpoints to resume from
lock                 while a process trains here: which one
and what the task's processor needs to turn inputs into tensors: tokenizer.json, labels.json, …

All are written atomically and synced to disk. model.safetensors holds the best parameters so far from the first moment on, so a run can be
used while it trains, and after it was stopped.

    config = RunConfig(task="language", options=…, model="gpt2", settings=…, train=…)
    create(out, config, processor)        before the first step
    run = load_run(out, config, task)     afterwards; `tasks.load_run(out)` finds the task by its name
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Generic, Protocol, TypeVar

import torch

from . import files
from .errors import BadFile, MissingFile, RegardError, RunExists
from .layers import merge_lora
from .models import Model
from .models.size import counting
from .processes import first_process
from .run_config import FORMAT, RunConfig, parse_options, read_config_file, to_plain  # noqa: F401  offered here too
from .train.checkpoint import read_parameters, save_parameters, tensor_shapes
from .train.lock import holder, locked
from .train.log import last_event, read_metrics
from .train.parameters import load_parameters, parameters_of

CONFIG, PARAMETERS, METRICS, SEEDS = "config.json", "model.safetensors", "metrics.jsonl", "seeds.json"
SKIPPED = ("state", "tokens", "tensorboard")  # parts of a run in which no other is looked for
BUFFERS = 1 << 27  # elements of a model's tables that are computed, not stored
Kind = TypeVar("Kind", bound=Model, covariant=True)


class Processor(Protocol):
    """Part that turns a task's inputs into tensors and is saved with a run: a tokenizer, label names, an image transform."""

    def save(self, folder: Path) -> None: ...


class Loader(Protocol):
    """Functions of a task that load its runs."""

    def load_processor(self, folder: Path) -> Any: ...

    def build(self, model: str, settings: Mapping[str, Any], processor: Any) -> Model: ...


@dataclass(frozen=True)
class Run(Generic[Kind]):
    """A trained model with what belongs to it, which the model carries from then on. `folder` is where it lies, even if it is not a run.

    Args:
        folder: directory of the run.
        config: contents of its config.json.
        model: model with its parameters.
        processor: tokenizer, labels or image transform.
    """

    folder: Path
    config: RunConfig
    model: Kind
    processor: Any
    unfinished: str = ""  # progress of the training and how to continue it, in words, if it has not ended

    def __post_init__(self) -> None:
        self.model.processor, self.model.options = self.processor, self.config.options

    @property
    def task(self) -> str:
        """The name of its task."""
        return self.config.task

    def with_model(self, model: Model) -> Run[Any]:
        """Return this run with another model."""
        return Run(self.folder, self.config, model, self.processor, self.unfinished)


def read_json(folder: Path | str) -> dict[str, Any]:
    """config.json of a run (with format_version), or of a transformers directory (with model_type).

    Args:
        folder: directory of a run.
    """
    path = Path(folder) / CONFIG
    try:
        plain = files.read_json(path)
    except MissingFile as wrong:
        raise MissingFile(
            f"{path}: no such file, so {folder} is not a run, nor a transformers directory; `regard train TASK --out {folder}` makes a run"
        ) from wrong
    except BadFile as wrong:
        if isinstance(wrong.__cause__, NotADirectoryError):
            raise BadFile(f"{folder} is a file; name the directory that holds {CONFIG}") from wrong
        raise
    if not isinstance(plain, dict) or not {"format_version", "model_type"} & plain.keys():
        raise BadFile(f"{path}: expected an object with format_version (a run of regard) or model_type (a transformers directory)")
    return plain


def read_config(folder: Path | str, plain: Mapping[str, Any] | None = None) -> RunConfig:
    """The config of a run; `plain` is what `read_json` gave, if that has been called.

    Args:
        folder: directory of a run.
        plain: result of `read_json`, if it has been called.
    """
    plain, path = read_json(folder) if plain is None else plain, Path(folder) / CONFIG
    if plain.get("format_version") != FORMAT:
        raise BadFile(f"{path}: format_version {plain.get('format_version')!r}; this version of regard reads {FORMAT}")
    return RunConfig.from_json(plain, path)


def load_run(folder: Path | str, config: RunConfig, task: Loader) -> Run[Model]:
    """The run with its parameters, ready to use: those that were chosen in the end, or the best so far.

    Args:
        folder: directory of a run.
        config: its config.
        task: functions of its task.
    """
    folder = Path(folder)
    path = folder / PARAMETERS
    processor = task.load_processor(folder)
    if not path.exists():
        raise MissingFile(
            f"{path}: no such file; training has not begun. Resume it: regard train {config.task} --out {quote(str(folder))} --resume"
        )
    model = build_within(folder, config, lambda: task.build(config.model, config.settings, processor))
    load_parameters(model, read_parameters(path), str(path))
    return Run(folder, config, model.eval(), processor, _unfinished(folder, config))


def build_within(folder: Path, config: RunConfig, build: Callable[[], Model]) -> Model:
    """The model that a run's config describes, if it is not far larger than the parameters of the run: they are compared first.

    Args:
        folder: directory of a run.
        config: its config.
        build: function that builds the model.
    """
    path = folder / PARAMETERS
    try:
        if path.exists():
            with torch.device("meta"), _bounded(tensor_shapes(path)):
                build()
        return build()
    except RegardError:
        raise
    except Exception as wrong:  # a config may hold anything, and a constructor then raises anything
        raise BadFile(f"{folder / CONFIG}: {config.model} cannot be built with these settings: {_one_line(wrong)}") from wrong


@contextmanager
def _bounded(shapes: Mapping[str, tuple[int, ...]]) -> Iterator[None]:
    """Inside, a model that is much larger than these tensors is refused: a few bytes of a config must not fill the memory.

    Some slack is for parameters that are replaced while the model is built.
    """
    most, elements = 4 * len(shapes) + 1000, 4 * sum(map(_product, shapes.values())) + (1 << 24)

    def check(tensors: int, parameters: int, buffers: int) -> None:
        if tensors > most or parameters > elements or buffers > BUFFERS:
            raise BadFile(
                f"{CONFIG} describes a model that is far larger than {PARAMETERS}, of {len(shapes)} tensors; one of them is not right"
            )

    with counting(check):
        yield


def _product(shape: tuple[int, ...]) -> int:
    found = 1
    for size in shape:
        found *= size
    return found


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


# -- writing -----------------------------------------------------------------------------------------------------------


def check_unused(folder: Path) -> None:
    """Refuse a folder that holds a run already.

    Args:
        folder: directory for a new run.
    """
    files.check_name(folder)
    if (folder / CONFIG).exists() or (folder / PARAMETERS).exists():
        raise _exists(folder)


def create(folder: Path, config: RunConfig, processor: Processor) -> list[Path]:
    """A run that is about to be trained, whole or not at all: the files that were made. Of several processes the first one writes.

    Args:
        folder: directory for a new run.
        config: its config.
        processor: its processor.
    """
    if not first_process():
        return []
    check_unused(folder)
    with _removed_on_error(folder) as made:
        try:
            files.make_folder(folder)
            processor.save(folder)
        except OSError as wrong:
            raise files.cannot(folder, wrong) from wrong
        write_config(folder, config, new=True)  # last: what has a config.json can be resumed
    return made


@contextmanager
def _removed_on_error(folder: Path) -> Iterator[list[Path]]:
    """The files that are made inside, known afterwards; if anything fails there they are removed."""
    before = {*folder.iterdir()} if folder.is_dir() else set()
    made: list[Path] = []
    try:
        yield made
        made += {*folder.iterdir()} - before
    except BaseException:
        for path in {*folder.iterdir()} - before if folder.is_dir() else ():
            with suppress(OSError):
                path.unlink()
        raise


def save(run: Run[Any], folder: Path | str) -> Path:
    """Write a run whose model is in memory.

    Args:
        run: run in memory.
        folder: directory to write.
    """
    folder = Path(folder)
    check_unused(folder)
    with locked(folder), _removed_on_error(folder):
        create(folder, run.config, run.processor)
        save_parameters(folder / PARAMETERS, merge_lora(run.model, parameters_of(run.model)))
    return folder


def write_config(folder: Path, config: RunConfig, *, new: bool = False) -> None:
    """config.json, whole or not at all; a `new` one never replaces another, even if two processes try at the same moment.

    Args:
        folder: directory of a run.
        config: config to write.
        new: refuse to replace a file.
    """
    path = folder / CONFIG
    try:
        files.make_folder(folder)
        files.write_json(path, config.to_json(), indent=2, new=new)
    except OSError as wrong:
        if isinstance(wrong, FileExistsError) and path.exists():
            raise _exists(folder) from wrong
        raise files.cannot(path, wrong) from wrong


def _exists(folder: Path) -> RunExists:
    return RunExists(f"{folder} already holds a run; resume it with --resume, or choose another folder")


# -- what there is -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run in a list.

    Args:
        folder: directory of the run.
        state: running, finished or interrupted.
        task: name of its task.
        model: name of its model.
        mechanism: mechanism of its self-attention layers, where one was chosen or the model names its own.
        data: data it was trained on.
        step: last step.
        metric: metric that chooses the best parameters.
        best: best value of that metric.
        problem: damage, in words.
    """

    folder: Path
    state: str  # running, finished, interrupted; or damaged, with the reason in `problem`
    task: str = ""
    model: str = ""
    mechanism: str = ""
    data: str = ""
    step: int = 0
    metric: str = ""  # that decides
    best: float | None = None
    problem: str = ""


def state_of(folder: Path) -> str:
    """running, finished or interrupted.

    Args:
        folder: directory of a run.
    """
    if holder(folder) is not None:
        return "running"
    if not (folder / "state").is_dir():  # imported or saved, or the best of several seeds
        several = any(folder.glob("seed-*/state"))
        return "finished" if (folder / (SEEDS if several else PARAMETERS)).exists() else "interrupted"
    last = last_event(folder / METRICS)
    return "finished" if last is not None and last["event"] == "final" else "interrupted"


def _unfinished(folder: Path, config: RunConfig) -> str:
    state = state_of(folder)
    if state == "finished":
        return ""
    last = last_event(folder / METRICS) or {}
    how = "is still training" if state == "running" else "has not finished"
    advice = "" if state == "running" else f"; resume it: regard train {config.task} --out {quote(str(folder))} --resume"
    return f"{folder} {how} (step {last.get('step', 0)}): these are its best parameters so far{advice}"


def summarise(folder: Path) -> RunSummary:
    """One run for a list; a damaged one says what is wrong.

    Args:
        folder: directory of a run.
    """
    try:
        config, state = read_config(folder), state_of(folder)
        lines = read_metrics(folder / METRICS) if (folder / METRICS).exists() else []
    except RegardError as wrong:
        return RunSummary(folder=folder, state="damaged", problem=str(wrong))
    about: dict[str, Any] = next((line for line in reversed(lines) if line["event"] in ("start", "resume")), {})
    metric, higher = str(about.get("metric", "")), bool(about.get("higher"))
    values = [line[metric] for line in lines if line["event"] in ("evaluation", "final") and _is_number(line.get(metric))]
    steps = [line["step"] for line in lines if isinstance(line.get("step"), int)]
    return RunSummary(
        folder=folder,
        state=state,
        task=config.task,
        model=config.model,
        mechanism=_mechanism(config),
        data=str(config.options.get("data", "")),
        step=max(steps, default=0),
        metric=metric,
        best=(max if higher else min)(values) if values else None,
    )


def _mechanism(config: RunConfig) -> str:
    """Mechanisms that the settings name, in order, without repetition: those put in place of others first."""
    overrides, own = (
        value if isinstance(value := config.settings.get(name), list | tuple | str) else () for name in ("attention_overrides", "attention")
    )
    overrides = [one for one in overrides if isinstance(one, list | tuple) and len(one) == 2]
    lines = [str(line) for _, line in overrides]
    depth = config.settings.get("depth")
    if not lines or (isinstance(depth, int) and len(lines) < depth and all(path != "*" for path, _ in overrides)):
        lines = [*([own] if isinstance(own, str) else map(str, own)), *lines]
    return ", ".join(dict.fromkeys(lines))


def _is_number(value: Any) -> bool:
    """Return whether it is a number of a size that can be shown: a file may hold integers of thousands of digits."""
    return isinstance(value, int | float) and abs(value) < 1e300


def curves(found: Sequence[RunSummary]) -> dict[str, dict[str, tuple[list[float], list[float]]]]:
    """Quantity → run → (steps, values): the training loss, and the metric that decides in each run.

    Args:
        found: runs to compare.
    """
    panels: dict[str, dict[str, tuple[list[float], list[float]]]] = {}

    def name_of(run: RunSummary) -> str:
        return f"{run.folder} ({', '.join(word for word in (run.model, run.mechanism) if word)})"

    for run in found:
        for line in read_metrics(run.folder / METRICS) if (run.folder / METRICS).exists() and run.state != "damaged" else ():
            name, title = {"train": ("loss", "training loss"), "evaluation": (run.metric, f"{run.metric} on validation")}.get(
                line["event"], ("", "")
            )
            if name and all(_is_number(line.get(key)) for key in ("step", name)):
                steps, values = panels.setdefault(title, {}).setdefault(name_of(run), ([], []))
                steps.append(line["step"])
                values.append(line[name])
    return panels


def find_runs(folder: Path | str) -> list[RunSummary]:
    """The runs in a folder and below it, by name. Links are not followed.

    Args:
        folder: directory to search.
    """
    found, todo = [], [Path(folder)]
    while todo:  # not os.walk: before Python 3.12 it calls itself for every level
        here = todo.pop()
        try:
            with os.scandir(here) as entries:
                inside = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
        except OSError:  # not ours to read, or too deep for the system
            continue
        if inside.get(CONFIG) is False and _is_ours(here):
            found.append(summarise(here))
        below = [name for name, is_folder in inside.items() if is_folder and name not in SKIPPED and not name.startswith(".")]
        todo += [here / name for name in sorted(below, reverse=True)]
    return found


def _is_ours(folder: Path) -> bool:
    try:
        return "format_version" in read_json(folder)
    except BadFile:
        return (folder / METRICS).exists() or (folder / "state").exists()


def checkpoints(folder: Path | str) -> list[int]:
    """The steps of which a run still has checkpoints, in order.

    Args:
        folder: directory of a run.
    """
    names = [path.parent.name.removeprefix("step-") for path in Path(folder, "state").glob(f"step-*/{PARAMETERS}")]
    return sorted(int(name) for name in names if len(name) >= 8 and name.isascii() and name.isdecimal())


def load_checkpoint(run: Run[Kind], step: int) -> Kind:
    """A copy of the model with its parameters at this step.

    Args:
        run: run whose model is copied.
        step: step of the checkpoint.
    """
    path = run.folder / "state" / f"step-{step:08d}" / PARAMETERS
    model = copy.deepcopy(run.model)
    load_parameters(model, read_parameters(path), str(path))
    return model.eval()
