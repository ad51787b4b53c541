"""Checks of a task on data of its own: `regard check "my_module:Sets(data='sets.jsonl', input='[[0.2], [0.7]]')"`.

`input` is what `predict` and `look` are given; `settings` are those of a small model; the rest are options of the task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ..docstrings import field_help
from ..errors import RegardError
from ..runs import Run
from ..tasks import Task, attention_maps, evaluate, load_run, predict, train
from ._subject import ContractError, NotApplicable

Kind = type[Task[Any]]


@contextmanager
def trained(kind: Kind, steps: int, given: Mapping[str, Any], resumed: int | None = None) -> Iterator[Run[Any]]:
    """A run of a few steps, perhaps stopped after some of them and resumed, in a folder that goes away."""
    known = {name: value for name, value in given.items() if name not in ("input", "settings")}
    options = kind.Options(**known)
    how = kind.default_train.replace(
        **{
            "steps": steps,
            "epochs": None,
            "minutes": None,
            "seeds": (),
            "schedule": "constant",
            "warmup_steps": 0,
            "average": 0,
            "patience": 0,
        }
    )
    with TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        with redirect_stderr(StringIO()):  # the report has a line per check
            train(kind, options, how.replace(steps=resumed or steps), out, settings=given.get("settings", {}), progress=False)
            if resumed:
                train(kind, train_options=how, out=out, resume=True, progress=False)
        yield load_run(out)


def _inputs(given: Mapping[str, Any]) -> list[str]:
    if "input" not in given:
        raise NotApplicable("no input was given: regard check \"module:Task(data='…', input='…')\"")
    return [given["input"]]


def declares_itself(kind: Kind, **given: Any) -> None:
    if f"As in:  regard train {kind.name}" not in (kind.__doc__ or ""):
        raise ContractError(f"its docstring has no line `As in:  regard train {kind.name} …`, which --help shows")
    missing = [name for name in kind.Options.__dataclass_fields__ if name not in field_help(kind.Options)]
    if missing:
        raise ContractError(
            f"options without a help text: {', '.join(missing)}; write a string under each field of {kind.Options.__name__}"
        )


def resumes_with_the_same_bits(kind: Kind, **given: Any) -> None:
    with trained(kind, 4, given) as once, trained(kind, 4, given, resumed=2) as twice:
        one, two = once.model.state_dict(), twice.model.state_dict()
        if not all(torch.equal(one[name], two[name]) for name in one):
            raise ContractError(
                "stopped after two steps and resumed it ends elsewhere; `batch` must take all chance from its generator, `plan` from its arguments"
            )


def evaluates_as_it_trains(kind: Kind, **given: Any) -> None:
    with trained(kind, 2, given) as run:
        found = evaluate(run).metrics
        name = kind(kind.Options(), run.processor).metric.name
        if name not in found or not all(isinstance(value, float) for value in found.values()):
            raise ContractError(f"evaluate gives {', '.join(found)}; expected numbers, the deciding metric {name} among them")


def predicts_the_same_twice(kind: Kind, **given: Any) -> None:
    (text,) = _inputs(given)
    with trained(kind, 2, given) as run:
        first, empty, second = predict(run, [text, "", text])
        if first != second or not first.values or empty.text:
            raise ContractError("the same input twice gives two answers, or an answer without values")


def shows_attention(kind: Kind, **given: Any) -> None:
    (text,) = _inputs(given)
    with trained(kind, 2, given) as run:
        _, maps = attention_maps(run, text)
        if not maps.all or not all(m.query_labels and torch.isfinite(m.weights_BHLM).all() for m in maps.all):
            raise ContractError("attention maps have no labels; give names of queries and keys in `labels(example, answer)`")


def refuses_in_one_line(kind: Kind, **given: Any) -> None:
    try:
        with trained(kind, 1, {**given, "data": "no such file"}):
            pass
    except RegardError as error:
        if "no such file" not in str(error):
            raise ContractError(f"data that is missing is refused without its name: {error}") from error
        return
    raise ContractError("data that is missing is not refused; raise MissingFile, or read through `regard.data`")


CHECKS = {
    "options": declares_itself,
    "resume": resumes_with_the_same_bits,
    "evaluate": evaluates_as_it_trains,
    "predict": predicts_the_same_twice,
    "look": shows_attention,
    "refusals": refuses_in_one_line,
}
