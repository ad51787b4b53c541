"""Tasks and runs: which task a run belongs to, loading and saving runs, and what every command calls on one."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

from .. import runs
from ..data import Tokenizer, Tokenizers
from ..errors import BadConfig, NotSupported
from ..files import is_text
from ..look import Indices, Layers, Maps
from ..machine import find_device
from ..models import Classifier, Headed, Model, body_of, config_of, find_model
from ..names import find
from ..runs import Run, RunConfig, parse_options, read_config, to_plain
from . import ENTRIES, registered
from .options import Files
from .task import BeamPrefix, Prediction, Report, Task, words_for
from .text_processor import TextProcessor

Kind = TypeVar("Kind", bound=Model)


def tasks() -> Mapping[str, type[Task[Any]]]:
    """List every task by name, in the order of `tasks.NAMES`, then registered ones; classes are imported when they are asked for."""
    return ChainMap(registered, ENTRIES)


def find_task(task: str | type[Task[Any]]) -> type[Task[Any]]:
    """The class of a task by its name.

    Args:
        task: name, or the class itself.
    """
    return find("task", task, tasks) if isinstance(task, str) else task


def task_for(kind: type[Model], per_token: bool = False) -> type[Task[Any]]:
    """The first task for models of this kind: what an imported one becomes a run of.

    Args:
        kind: class of the model.
        per_token: True for a classifier that labels every token, not a whole text.
    """
    for task in tasks().values():
        if task.fits(kind, per_token):
            return task
    raise NotSupported(f"no task trains a {kind.__name__}; the tasks are {', '.join(tasks())}")


def task_of(run: Run[Any] | RunConfig) -> Task[Any]:
    """The task of a run, or of its config, with the options it was trained with.

    Args:
        run: a run; of a config alone the task has no processor.
    """
    config = run.config if isinstance(run, Run) else run
    kind = find_task(config.task)
    processor = run.processor if isinstance(run, Run) else None
    return kind(parse_options(kind.Options, config.options, f"the task {kind.name}"), processor)


@overload
def load_run(folder: Path | str, kind: None = None, *, config: Mapping[str, Any] | None = None, device: str = "cpu") -> Run[Model]: ...


@overload
def load_run(folder: Path | str, kind: type[Kind], *, config: Mapping[str, Any] | None = None, device: str = "cpu") -> Run[Kind]: ...


def load_run(
    folder: Path | str, kind: type[Model] | None = None, *, config: Mapping[str, Any] | None = None, device: str = "cpu"
) -> Run[Any]:
    """A run with its chosen parameters, ready to use.

    Args:
        folder: run directory.
        kind: class that the model must have, as in `expect`.
        config: value of `runs.read_json`, if it was called.
        device: device of the model: auto, cpu, cuda, cuda:1, mps.
    """
    read, place = read_config(folder, config), find_device(device)  # before a large model is read
    run = runs.load_run(folder, read, task_of(read))
    run.model.to(place)
    return run if kind is None else expect(run, kind)


def expect(run: Run[Any], kind: type[Kind]) -> Run[Kind]:
    """The run for those who need a model of this kind: it is one, or its body is; else an error.

    Args:
        run: a run of any task.
        kind: class that is needed.
    """
    if isinstance(run.model, kind):
        return run
    if isinstance(run.model, Headed) and isinstance(run.model.body, kind):
        return run.with_model(run.model.body)
    needed = next((f": regard train {task.name}" for task in tasks().values() if issubclass(task.model_kind, kind)), "")
    has = words_for(find_task(run.task).model_kind)
    raise NotSupported(f"expected a {words_for(kind)}, got a {has} ({run.folder}, task {run.task}){needed and f'; train one{needed}'}")


def make_run(task: str | type[Task[Any]], model: Model, processor: Any, options: Any = None, folder: Path | str = ".") -> Run[Any]:
    """A run in memory, of a model that was trained elsewhere; `runs.save` writes it.

    Args:
        task: name or class.
        model: model, adapted to the task.
        processor: what turns inputs into tensors.
        options: options of the task; None: those of an imported model, which has no data.
        folder: run directory it will be saved to.
    """
    kind = find_task(task)
    name, settings = config_of(body_of(model))
    config = RunConfig(task=kind.name, options=to_plain(options or kind.imported_options(model)), model=name, settings=settings)
    return Run(Path(folder), config, model.eval(), processor)


def save_model(
    model: Model,
    folder: Path | str,
    tokenizer: Tokenizer | Tokenizers | None = None,
    labels: Sequence[str] | None = None,
    processor: Any = None,
) -> Path:
    """Turn any of our models into a run: one whose attention was swapped, or that was trained in a loop of your own.

    Args:
        model: model with its parameters.
        folder: run directory to write.
        tokenizer: tokenizer that it was trained with, of a translator with two vocabularies both; None: the processor's.
        labels: names of the classes, of a classifier; None: the processor's.
        processor: what turns inputs into tensors; None: `model.processor`, that of the run the model is from.
    """
    if not isinstance(model, Model):
        raise NotSupported(f"{type(model).__name__} is not a model of `regard list models`; save its state_dict")
    if not isinstance(tokenizer, Tokenizer | Tokenizers | None):
        raise BadConfig(f"tokenizer is {tokenizer!r}; expected a Tokenizer, or Tokenizers of source and target")
    processor = model.processor if processor is None else processor
    if processor is None or isinstance(processor, TextProcessor):
        processor = (processor or TextProcessor(None)).replaced(tokenizer, labels if isinstance(model, Classifier) else ())
    pair, names = getattr(processor, "pair", None), getattr(processor, "labels", ())
    body = body_of(model)
    if find_model(body.facts.name) is not type(body):
        raise NotSupported(f"{type(body).__name__} is not one of `regard list models`, so it could not be built again; save its state_dict")
    if isinstance(model, Classifier) and len(names) != model.output.out_features:
        raise BadConfig(f"{len(names)} labels were given for {model.output.out_features} classes; name each class in labels=…")
    if labels is not None and not isinstance(model, Classifier):
        raise BadConfig(f"labels were given for {type(model).__name__}, which has no classes; omit labels")
    if not all(isinstance(name, str) and is_text(name) for name in names) or len(set(names)) < len(names):
        raise BadConfig(f"labels are {[str(name)[:20] for name in names[:20]]}; expected texts, all different")
    if any(parameter.is_meta for parameter in model.parameters()):
        raise NotSupported("a model on the meta device has no parameters to save; move it with to_empty, and load its parameters")
    sizes = [value for name, value in config_of(body)[1].items() if name.endswith("vocab_size")]
    for one, size in zip((pair.source, pair.target) if pair else (), sizes, strict=False):
        if len(one) > size:
            raise BadConfig(f"the tokenizer has {len(one)} tokens, and the model {size}; save the tokenizer that it was trained with")
    task = task_for(type(model), isinstance(model, Classifier) and model.each)
    if isinstance(processor, TextProcessor) and task.inputs == "file":
        raise BadConfig(f"a {body.facts.name} does not read text; say how it reads its inputs with processor=…")
    return runs.save(make_run(task, model, processor, _own_options(find_task(task), model)), folder)


def _own_options(kind: type[Task[Any]], model: Model) -> Any:
    """Options of a model's task: those of the run it is from, such as regression, but not its data."""
    usual = to_plain(kind.imported_options(model))
    own = {
        name: value
        for name, value in model.options.items()
        if name not in ("data", "valid", "test", "cache", getattr(kind, "length_option", ""))
    }
    known = own.keys() <= usual.keys()  # the run was of this task
    return parse_options(kind.Options, usual | (own if known else {}), f"the task {kind.name}")


# -- what every command calls ------------------------------------------------------------------------------------------


def evaluate(run: Run[Any], data: Files | None = None, options: Any = None) -> Report:
    """Metrics of a run on some data.

    Args:
        run: run of any task.
        data: sources to evaluate on; None: the test part of the run's own data.
        options: EvaluateOptions of the task; None: their defaults.
    """
    task = task_of(run)
    return task.evaluate(run, data, options or task.EvaluateOptions())


def predict(run: Run[Any], inputs: Sequence[str], options: Any = None) -> list[Prediction]:
    """An answer to each input; an empty one gets an empty answer.

    Args:
        run: run of any task.
        inputs: texts, or names of files where the task reads files.
        options: PredictOptions of the task; None: their defaults.
    """
    task = task_of(run)
    answers = iter(task.predict(run, [line for line in inputs if line.strip()], options or task.PredictOptions()))
    return [next(answers) if line.strip() else Prediction("", {}) for line in inputs]


def score_outputs(run: Run[Any], pairs: Sequence[tuple[str, str]]) -> list[Prediction]:
    """The log-probability of a given output for each (input, output).

    Args:
        run: run of a task that writes text.
        pairs: input and output of each.
    """
    return task_of(run).score(run, pairs)


def attention_maps(run: Run[Any], text: str, layers: Layers = None, heads: Indices = None, options: Any = None) -> tuple[str, Maps]:
    """Text worth showing beside them (a translation, say), and maps of layers.

    Args:
        run: run of any task.
        text: input as `predict` takes it.
        layers: layers to capture, as in `look.capture`; None: the choice of the task; "*": all.
        heads: heads to capture; None: all.
        options: LookOptions of the task; None: their defaults.
    """
    task = task_of(run)
    return task.attention_maps(run, text, layers, heads, options or task.LookOptions())


def watch(run: Run[Any], text: str) -> Iterator[list[BeamPrefix]]:
    """The answer to a text as it is searched.

    Args:
        run: run whose task searches.
        text: input as `predict` takes it.
    """
    return task_of(run).watch(run, text)
