"""Training options: the optimizer and the schedule that are made of them, and what is refused."""

import dataclasses
import re
from typing import get_args, get_type_hints

import pytest

from regard.errors import BadConfig
from regard.runs import parse_options, to_plain
from regard.train import (
    OPTIMIZERS,
    SCHEDULES,
    WSD,
    AdamW,
    Constant,
    Cosine,
    InverseSquareRoot,
    Linear,
    TrainOptions,
    optimizer_of,
    schedule_of,
)


def test_the_optimizer_and_the_schedule_are_made_of_them():
    options = TrainOptions(steps=50, epochs=7, lr=0.5, schedule="cosine", warmup_steps=3, min_lr=0.1, weight_decay=0.2, betas=(0.5, 0.6))
    assert optimizer_of(options) == AdamW(betas=(0.5, 0.6), weight_decay=0.2)
    assert schedule_of(options) == Cosine(lr=0.5, warmup_steps=3, steps=50, floor=0.1)


def test_each_option_is_in_one_section_of_the_help_page():
    listed = [name for names in TrainOptions.SECTIONS.values() for name in names]
    assert sorted(listed) == sorted(field.name for field in dataclasses.fields(TrainOptions))


def test_budgets():
    assert (
        TrainOptions().max_steps == 3000 and TrainOptions(minutes=1.0).max_steps is None and TrainOptions(steps=5, epochs=1).max_steps == 5
    )
    assert TrainOptions(steps=40, epochs=3).total_steps(20) == 40 and TrainOptions(epochs=3).total_steps(20) == 60
    assert TrainOptions(minutes=2.0).total_steps(20) is None
    options = TrainOptions(steps=10, epochs=4, minutes=2.0)
    assert options.used(5, 1.0) == 0.5 and options.used(2, 3.0) == 0.75 and options.used(99, 1.0) == 1.0
    assert options.why_over(10, 0) == "all steps done" and options.why_over(9, 4) == "all epochs done" and options.why_over(9, 3) == ""


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"lr": -1.0}, "lr=-1.0, expected above 0"),
        ({"accumulate": 0, "ema": 1.0}, "accumulate=0, expected 1 or more; ema=1.0, expected 0 or more, below 1"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"outlier": 0.5}, "outlier=0.5, expected 0, or a factor above 1"),
        ({"precision": "float8"}, "precision='float8', expected one of float32, bfloat16, auto"),
        ({"minutes": float("inf")}, "minutes=inf"),
        ({"steps": 0}, "steps=0, expected 1 or more"),
    ],
)
def test_bounds(options, says):
    with pytest.raises(BadConfig, match=re.escape(says)):
        TrainOptions(**options)


@pytest.mark.parametrize(
    ("options", "steps_per_epoch", "schedule"),
    [
        ({"lr": 1.0}, None, InverseSquareRoot(lr=1.0, warmup_steps=300)),  # a tenth of 3,000
        ({"lr": 1.0, "steps": 9000}, None, InverseSquareRoot(lr=1.0, warmup_steps=400)),
        ({"lr": 1.0, "steps": 5}, None, InverseSquareRoot(lr=1.0, warmup_steps=1)),
        ({"lr": 1.0, "steps": 5, "schedule": "cosine"}, None, Cosine(lr=1.0, warmup_steps=0, steps=5)),
        ({"lr": 1.0, "minutes": 1.0}, None, InverseSquareRoot(lr=1.0, warmup_steps=400)),  # `with_warmup` knows better
        ({"lr": 1.0, "schedule": "wsd", "steps": 100}, None, WSD(lr=1.0, warmup_steps=10, steps=100, decay=20)),
        ({"lr": 1.0, "schedule": "constant", "warmup_steps": 0}, None, Constant(lr=1.0)),
        ({"lr": 1.0, "schedule": "linear", "epochs": 3, "warmup_steps": None}, 20, Linear(lr=1.0, warmup_steps=6, steps=60)),
        ({"lr": 1.0, "schedule": "cosine", "epochs": 3, "steps": 40, "warmup_steps": None}, 20, Cosine(lr=1.0, warmup_steps=4, steps=40)),
    ],
)
def test_schedules(options, steps_per_epoch, schedule):
    assert schedule_of(TrainOptions(**options), steps_per_epoch) == schedule


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"epochs": 2, "schedule": "linear"}, "needs to know their length"),
        ({"optimizer": "adafactor", "betas": (0.9, 0.9)}, "adafactor takes no betas"),
        ({"optimizer": "adam", "weight_decay": 0.1}, "adam takes no weight_decay"),
    ],
)
def test_what_does_not_go_together(options, says):
    with pytest.raises(BadConfig, match=says):
        options = TrainOptions(**options)
        optimizer_of(options), schedule_of(options)


def test_names_are_those_of_the_lists():
    hints = get_type_hints(TrainOptions)
    assert set(get_args(hints["optimizer"])) == set(OPTIMIZERS) and set(get_args(hints["schedule"])) <= set(SCHEDULES)


@pytest.mark.parametrize(("steps", "warmup"), [(5, 1), (82, 8), (100_000, 400)])
def test_the_warmup_is_a_tenth_of_what_the_budget_reaches(steps, warmup):
    assert TrainOptions(minutes=2.0).with_warmup(steps).warmup_steps == warmup
    assert TrainOptions(minutes=2.0, warmup_steps=50).with_warmup(steps).warmup_steps == 50


def test_they_go_to_json_and_back():
    options = TrainOptions(steps=3, betas=(0.5, 0.6), seeds=(1, 2), warmup_steps=None)
    assert parse_options(TrainOptions, to_plain(options), "training") == options


def test_every_process_has_a_micro_batch(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert TrainOptions().for_processes().accumulate == 3 and TrainOptions(accumulate=6).for_processes().accumulate == 6
