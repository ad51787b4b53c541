"""From the name of a task to its class, and from a run to what its task can do with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

from .. import runs
from ..errors import NotSupported, UnknownName
from ..look import Indices, Layers, Maps
from ..models import Classifier, Model, config_of
from ..runs import Run, RunConfig, parse_options, read_config, to_plain
from ._base import Prediction, Report, Task, words_for

Kind = TypeVar("Kind", bound=Model)


def all_tasks() -> tuple[type[Task[Any]], ...]:
    """Every task, in the order of the imports in `tasks/__init__.py`."""
    from . import TASKS  # which imports this module

    return TASKS


def find_task(task: str | type[Task[Any]]) -> type[Task[Any]]:
    """The class of a task by its name."""
    known = {each.name: each for each in all_tasks()}
    if not isinstance(task, str):
        return task
    if task not in known:
        raise UnknownName("task", task, known)
    return known[task]


def task_for(kind: type[Model], per_token: bool = False) -> type[Task[Any]]:
    """The first task for models of this kind: what an imported one becomes a run of. `per_token`: of a classifier."""
    for task in all_tasks():
        if task.fits(kind, per_token):
            return task
    raise NotSupported(f"no task is for a {kind.__name__}; those there are: {', '.join(task.name for task in all_tasks())}")


def task_of(run: Run[Any]) -> Task[Any]:
    """The task of a run, with the options it was trained with."""
    return _task(run.config)


def _task(config: RunConfig) -> Task[Any]:
    kind = find_task(config.task)
    return kind(parse_options(kind.Options, config.options, f"the task {kind.name}"))


@overload
def load_run(folder: Path | str, kind: None = None, *, config: Mapping[str, Any] | None = None) -> Run[Model]: ...


@overload
def load_run(folder: Path | str, kind: type[Kind], *, config: Mapping[str, Any] | None = None) -> Run[Kind]: ...


def load_run(folder: Path | str, kind: type[Model] | None = None, *, config: Mapping[str, Any] | None = None) -> Run[Any]:
    """A run with its chosen parameters, ready to use; `kind` as in `expect`. `config` is what `runs.read_json` gave, if it was called."""
    read = read_config(folder, config)
    run = runs.load_run(folder, read, _task(read))
    return run if kind is None else expect(run, kind)


def expect(run: Run[Any], kind: type[Kind]) -> Run[Kind]:
    """The same run for those who need a model of this kind: it is one, or the body of its classifier is; else an error."""
    if isinstance(run.model, kind):
        return run
    if isinstance(run.model, Classifier) and isinstance(run.model.body, kind):
        return run.with_model(run.model.body)
    needed = next((f": regard train {task.name}" for task in all_tasks() if issubclass(task.model_kind, kind)), "")
    has = words_for(find_task(run.task).model_kind)
    raise NotSupported(f"{run.folder}: a run of the task {run.task}, whose model is a {has}; this needs a {words_for(kind)}{needed}")


def make_run(task: str | type[Task[Any]], model: Model, processor: Any, options: Any = None, folder: Path | str = ".") -> Run[Any]:
    """A run in memory, of a model that was trained elsewhere; `runs.save` writes it."""
    kind = find_task(task)
    name, settings = config_of(model.body if isinstance(model, Classifier) else model)
    config = RunConfig(task=kind.name, options=to_plain(options or kind.imported_options(model)), model=name, settings=settings)
    return Run(Path(folder), config, model.eval(), processor)


# -- what every command calls ------------------------------------------------------------------------------------------


def evaluate(run: Run[Any], data: str | None = None, options: Any = None) -> Report:
    """Metrics of a run on `data`, or on the test part of its own data; `options` are the task's `EvaluateOptions`."""
    task = task_of(run)
    return task.evaluate(run, data, options or task.EvaluateOptions())


def predict(run: Run[Any], inputs: Sequence[str], options: Any = None) -> list[Prediction]:
    """An answer to each input; an empty one gets an empty answer. `options` are the task's `PredictOptions`."""
    task = task_of(run)
    answers = iter(task.predict(run, [line for line in inputs if line.strip()], options or task.PredictOptions()))
    return [next(answers) if line.strip() else Prediction("", {}) for line in inputs]


def attention_maps(run: Run[Any], text: str, layers: Layers = None, heads: Indices = None, options: Any = None) -> tuple[str, Maps]:
    """Text worth showing beside them (a translation, say), and maps of layers; `options` are the task's `LookOptions`."""
    task = task_of(run)
    return task.attention_maps(run, text, layers, heads, options or task.LookOptions())
