"""Flat training options: what each becomes in the loop's configuration, and what is refused."""

import dataclasses
from typing import get_args, get_type_hints

import pytest

from regard.errors import BadConfig
from regard.runs import parse_options, to_plain
from regard.train import (
    OPTIMIZERS,
    SCHEDULES,
    WSD,
    AdamW,
    Budget,
    Constant,
    Cosine,
    Every,
    InverseSquareRoot,
    Linear,
    TrainConfig,
    TrainOptions,
)


def test_each_option_reaches_the_configuration():
    """Every field of TrainConfig can be set."""
    options = TrainOptions(
        steps=50, epochs=7, minutes=2.0, optimizer="adamw", lr=0.5, schedule="cosine", warmup_steps=3, min_lr=0.1, weight_decay=0.2,
        betas=(0.5, 0.6), clip=2.0, outlier=9.0, accumulate=4, average=6, ema=0.9, patience=8, evaluate_every=11, log_every=12,
        save_every=13, keep=5, seed=14, precision="auto", sharding="full", tensorboard=True, wandb=True, mlflow=True,
        deterministic=True,
    )  # fmt: skip
    found = options.to_config()
    assert found == TrainConfig(
        budget=Budget(steps=50, epochs=7, minutes=2.0), optimizer=AdamW(betas=(0.5, 0.6), weight_decay=0.2),
        schedule=Cosine(lr=0.5, warmup_steps=3, steps=50, floor=0.1), every=Every(log=12, evaluate=11, save=13), accumulate=4, clip=2.0,
        outlier=9.0, ema=0.9, average=6, patience=8, keep=5, sharding="full", precision="auto", tensorboard=True, seed=14, wandb=True, mlflow=True,
        deterministic=True,
    )  # fmt: skip
    plain = TrainOptions(steps=1).to_config()
    same = {field.name for field in dataclasses.fields(TrainConfig) if getattr(found, field.name) == getattr(plain, field.name)}
    assert same == {"compile"}  # which does not go with sharding
    assert TrainOptions(steps=1, compile=True).to_config().compile


def test_without_a_budget_there_are_3000_steps():
    assert TrainOptions().to_config().budget == Budget(steps=3000)
    assert TrainOptions(minutes=1.0).to_config().budget == Budget(minutes=1.0)


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
    assert TrainOptions(**options).to_config(steps_per_epoch).schedule == schedule


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"minutes": 1.0, "schedule": "cosine"}, "needs to know its end"),
        ({"epochs": 2, "schedule": "linear"}, "needs to know its end"),
        ({"optimizer": "adafactor", "betas": (0.9, 0.9)}, "adafactor takes no betas"),
        ({"optimizer": "adam", "weight_decay": 0.1}, "adam takes no weight_decay"),
        ({"steps": 0}, "steps"),
    ],
)
def test_what_does_not_go_together(options, says):
    with pytest.raises(BadConfig, match=says):
        TrainOptions(**options).to_config()


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
    assert TrainOptions().to_config().accumulate == 3 and TrainOptions(accumulate=6).to_config().accumulate == 6
