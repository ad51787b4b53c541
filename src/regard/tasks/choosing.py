"""Choices of the dial for a run that begins: its data are read, and what the user has not given is filled in."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from typing import Any

from ..data.splits import Splits
from ..machine import find_device, matmul_speed
from ..processes import world_size
from ..runs import RunConfig, parse_options, to_plain
from ..train import TrainOptions
from . import dial
from .runs import find_task
from .task import Task


def changed_options(options: Any) -> set[str]:
    """Names of the options that differ from their defaults.

    Args:
        options: options of a task; None: there are none.
    """
    return set() if options is None else {one.name for one in fields(options) if getattr(options, one.name) != one.default}


def turn_dial(config: RunConfig, given: Collection[str]) -> RunConfig:
    """Fill in model, sizes and options that the user has not given, by the data, which are read for it.

    Args:
        config: config of a new run.
        given: names of options and settings that stay as they are.
    """
    if config.init_from is not None or not (task := build_task(config)).options.data:
        return config
    choice = choose(task, task.read(), parse_options(TrainOptions, config.train, "training"), config, given)
    return config if choice is None else fill_in(config, choice, given)


def plan(config: RunConfig, given: Collection[str], minutes: Sequence[float]) -> dict[float, dial.Choice]:
    """Choices of the dial for several budgets in minutes; empty if its table has nothing of the kind.

    Args:
        config: config of a new run.
        given: names of options and settings that stay as they are.
        minutes: budgets.
    """
    task, options = build_task(config), parse_options(TrainOptions, config.train, "training")
    data = task.read()
    found = {one: choose(task, data, options.replace(minutes=one, steps=None, epochs=None), config, given) for one in minutes}
    return {one: choice for one, choice in found.items() if choice is not None}


def build_task(config: RunConfig, kind: type[Task[Any]] | None = None) -> Task[Any]:
    kind = find_task(config.task) if kind is None else kind
    return kind(parse_options(kind.Options, config.options, f"the task {kind.name}"))


def choose(task: Task[Any], data: Splits[Any], options: TrainOptions, config: RunConfig, given: Collection[str]) -> dial.Choice | None:
    """Choose for the data of a task and a budget; None if the table has nothing of the kind."""
    if not (rows := dial.table(task.name)):
        return None
    alone = world_size() == 1  # several processes must agree, and measure different speeds
    speed = matmul_speed(find_device(options.device)) if alone and options.minutes is not None else None
    # settings that are given are those of the model that is named, or else of the usual one
    named = "model" in given or config.settings.keys() - {"attention", "attention_overrides"}
    return dial.choose(rows, task.profile(data), dial.Budget.of(options, speed), config.model if named else None, given)


def fill_in(config: RunConfig, choice: dial.Choice, given: Collection[str]) -> RunConfig:
    """A config with what the dial has chosen. What tuning runs left at the defaults of training stays there: a task's own defaults suit other settings."""
    usual, plain = (to_plain(one) for one in (find_task(config.task).train_defaults(config.model), TrainOptions()))
    kept = {*given, *TrainOptions.BUDGETS, *(dial.OF_OPTIMIZER if "optimizer" in given else ())}
    undone = {name: plain[name] for name, value in usual.items() if value != plain[name] and name not in kept}
    return replace(
        config,
        model=choice.model,
        settings={**choice.settings, **config.settings},
        options={**config.options, **choice.options},
        train={**config.train, **undone, **choice.train},
    )
