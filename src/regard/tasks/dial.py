r"""The dial: model, sizes and options that suit the data and the budget, for whatever the user does not give, and a forecast of the result.

`tables/TASK.json` holds settings that tuning runs have found best, each for a profile of data and a number of minutes, with the result on
validation data (`make tune TASK=…` makes it again). The row that is nearest to the user's data and budget is taken:

$$\text{distance} = \Big|\log\frac{\text{minutes} \cdot s}{\text{minutes of the row}}\Big| +
  \tfrac14 \sum_i \Big|\log\frac{\text{profile}_i}{\text{profile of the row}_i}\Big|$$

with the speed s of this machine, as a multiple of that of the machine the row was measured on. Entries of a profile that are not numbers must be
equal, and numbers that are not amounts of data, such as the pixels of an image, within a factor of four. Between two rows that differ in nothing but numbers, such as the learning rate, those are interpolated along log minutes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import Any

import msgspec

from ..errors import BadFile
from ..train.options import STEPS, TrainOptions

Profile = Mapping[str, float | str]
SIZES = {"width", "heads", "depth", "hidden"}  # settings of a model: where the user gives one, the others keep the model's defaults
OF_OPTIMIZER = {"lr", "weight_decay", "betas"}  # options whose best values belong to an optimizer
ENDS = {"steps", "epochs"}  # a row may stop before its minutes are over, unless the user says when to stop
AMOUNTS = {"examples", "characters"}  # entries of a profile that may differ by any factor
WARMUP = 0.2  # share of the steps that a warm-up of a row may take
ALIKE = 4.0  # factor within which other numbers must be
ELSEWHERE = 0.25  # weight of a factor between sizes of data, where a factor between minutes weighs 1


def mean_words(examples: Sequence[Any], texts: Callable[[Any], Iterable[str]]) -> float:
    """Mean number of words per text in about a thousand examples, at least 1: an entry of a profile.

    Args:
        examples: examples of the training part.
        texts: texts of an example.
    """
    words = [len(text.split()) for one in examples[:: max(1, len(examples) // 1000)] for text in texts(one)]
    return max(sum(words) / max(len(words), 1), 1.0)


@dataclass(frozen=True, kw_only=True)
class Row:
    """The best setting known for some data and a number of minutes.

    Args:
        data: data that it was found with, in words.
        profile: profile of that data (`Task.profile`).
        minutes: budget, on the machine of the table.
        gflops: matmul speed of that machine (`machine.matmul_speed`).
        model: name of the model.
        settings: settings of the model.
        options: options of the task.
        train: training options.
        steps: optimizer steps in that time.
        epochs: passes over the data.
        metric: name of the metric of `results`.
        results: on validation data, by tuning seed.
        made: commit, date, machine and versions.
    """

    data: str
    profile: dict[str, float | str]
    minutes: float
    gflops: float
    model: str
    settings: dict[str, Any]
    options: dict[str, Any]
    train: dict[str, Any]
    steps: int
    epochs: float
    metric: str
    results: list[float]
    made: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Budget:
    """A budget as training options have it, and the speed of the machine as a multiple of that of the table."""

    minutes: float | None
    steps: int | None
    epochs: float | None
    gflops: float | None = None

    @classmethod
    def of(cls, options: TrainOptions, gflops: float | None) -> Budget:
        """Budget of some training options, shared by the seeds.

        Args:
            options: training options.
            gflops: matmul speed of this machine; None: unknown.
        """
        minutes = None if options.minutes is None else options.minutes / max(1, len(options.seeds))
        return cls(minutes, options.steps, options.epochs, gflops)

    def at(self, row: Row) -> float:
        """Minutes of the budget on the machine of a row, by that row's speed where the budget has steps or epochs; the shortest counts."""
        speed = 1.0 if self.gflops is None else self.gflops / row.gflops
        limits = [] if self.minutes is None else [self.minutes * speed]
        limits += [] if self.epochs is None else [row.minutes * self.epochs / row.epochs]
        if self.steps is not None or not limits:
            limits.append(row.minutes * (self.steps or STEPS) / row.steps)
        return min(limits)


@dataclass(frozen=True)
class Forecast:
    """Expected result: the metric, its middle, and a band around it."""

    metric: str
    value: float
    low: float
    high: float
    data: str  # that the results it comes from were reached on

    def __str__(self) -> str:
        return f"{self.metric} {self.value:.3g} ({self.low:.3g} to {self.high:.3g}) on data like {self.data}"


@dataclass(frozen=True)
class Choice:
    """The values of the dial for what the user has not given."""

    model: str
    settings: Mapping[str, Any]
    options: Mapping[str, Any]
    train: Mapping[str, Any]
    forecast: Forecast | None  # None if the user has changed what the table was made with

    @property
    def words(self) -> str:
        """All values, in a line."""
        values = {**self.settings, **self.options, **self.train}
        return ", ".join([self.model, *(f"{name} {_short(value)}" for name, value in values.items())])

    @property
    def expected(self) -> str:
        """The forecast, in words."""
        return str(self.forecast or "unknown: no tuning run has had these options")


@cache
def table(task: str) -> tuple[Row, ...]:
    """Read the rows of a task; none if it has no table.

    Args:
        task: name of the task.
    """
    path = files(__package__).joinpath("tables", f"{task}.json")
    if not path.is_file():
        return ()
    try:
        return tuple(msgspec.json.decode(path.read_bytes(), type=list[Row]))
    except msgspec.DecodeError as wrong:
        raise BadFile(f"{path}: {wrong}") from wrong


def choose(rows: Sequence[Row], profile: Profile, budget: Budget, model: str | None, given: Collection[str]) -> Choice | None:
    """Choose model, settings and options; None if no row is of such data and such a model.

    Args:
        rows: table of the task.
        profile: profile of the data.
        budget: budget of the training.
        model: name of the model; None: that of the row.
        given: names of options and settings that the user has given, which stay as they are.
    """
    fitting = [row for row in rows if model in (None, row.model) and math.isfinite(_apart(row, profile))]
    if not fitting:
        return None
    best, other = _neighbours(fitting, profile, budget)
    row = best if other is None else _between(best, other, budget)
    changed = {name for name in given if name in {*row.settings, *row.options, *row.train}}
    dropped = set(given)
    dropped |= SIZES if SIZES & set(given) else set()
    dropped |= OF_OPTIMIZER if "optimizer" in given else set()
    dropped |= ENDS if ENDS & set(given) else set()

    def kept(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if name not in dropped}

    expected, train = None if changed else forecast(fitting, profile, budget), kept(row.train)
    if train.get("warmup_steps", 0) > row.steps * budget.at(row) / row.minutes * WARMUP:
        del train["warmup_steps"]  # it was for a longer budget: the default, a share of the steps, is taken
    return Choice(row.model, kept(row.settings), kept(row.options), train, expected)


def forecast(rows: Sequence[Row], profile: Profile, budget: Budget) -> Forecast:
    """Interpolate the results of the rows of the nearest data along log minutes; beyond their ends the nearest one counts.

    The band is that of the tuning seeds, and wider where no row has that number of minutes.

    Args:
        rows: rows of a task, at least one.
        profile: profile of the data.
        budget: budget of the training.
    """
    nearest = min(rows, key=lambda row: _apart(row, profile))
    curve = sorted((row for row in rows if row.data == nearest.data), key=lambda row: row.minutes)
    at = budget.at(_closest(curve, budget))
    below = max((row for row in curve if row.minutes <= at), key=lambda row: row.minutes, default=curve[0])
    above = min((row for row in curve if row.minutes >= at), key=lambda row: row.minutes, default=curve[-1])
    share = _share(below.minutes, above.minutes, at)

    def mixed(of: Any) -> float:
        return float((1 - share) * of(below.results) + share * of(above.results))

    value = mixed(lambda results: sum(results) / len(results))
    away = abs(math.log(at / _closest(curve, budget).minutes)) / math.log(4)  # 1: four times as long, or a quarter
    spread = max(mixed(max) - mixed(min), 0.01 * abs(value)) / 2 + away * max(_step(curve), 0.02 * abs(value))
    return Forecast(nearest.metric, value, min(mixed(min), value - spread), max(mixed(max), value + spread), nearest.data)


def _neighbours(rows: Sequence[Row], profile: Profile, budget: Budget) -> tuple[Row, Row | None]:
    """The nearest row, and one of the same data, on the other side of the budget, that differs from it in numbers only."""

    def distance(row: Row) -> float:
        return abs(math.log(budget.at(row) / row.minutes)) + ELSEWHERE * _apart(row, profile)

    best = min(rows, key=distance)
    at = budget.at(best)
    beyond = [row for row in rows if row.data == best.data and (row.minutes - at) * (at - best.minutes) > 0 and _alike(row, best)]
    return best, min(beyond, key=distance, default=None)


def _between(one: Row, other: Row, budget: Budget) -> Row:
    """The first of two rows, with its fractions interpolated."""
    share = _share(one.minutes, other.minutes, budget.at(one))

    def mixed(mine: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
        return {name: _mix(value, others[name], share) for name, value in mine.items()}

    return replace(one, train=mixed(one.train, other.train), settings=mixed(one.settings, other.settings))


def _mix(one: Any, other: Any, share: float) -> Any:
    if isinstance(one, float) and isinstance(other, float) and one > 0 and other > 0:
        return float(f"{math.exp((1 - share) * math.log(one) + share * math.log(other)):.3g}")
    return one


def _alike(one: Row, other: Row) -> bool:
    """True if two rows differ in nothing but fractions."""

    def rest(row: Row) -> list[Any]:
        parts = (row.settings, row.options, row.train)
        return [row.model, *({name: None if isinstance(value, float) else value for name, value in part.items()} for part in parts)]

    return rest(one) == rest(other)


def _apart(row: Row, profile: Profile) -> float:
    """Distance of the data of a row from others; infinite if they are of another kind."""
    found = 0.0
    for name, mine in row.profile.items():
        value = profile.get(name)
        if isinstance(mine, str) or isinstance(value, str) or value is None:
            found += 0.0 if mine == value else math.inf
        else:
            apart = abs(math.log(max(value, 1e-9) / max(mine, 1e-9)))
            found += apart if name in AMOUNTS or apart <= math.log(ALIKE) else math.inf
    return found


def _closest(curve: Sequence[Row], budget: Budget) -> Row:
    return min(curve, key=lambda row: abs(math.log(budget.at(row) / row.minutes)))


def _step(curve: Sequence[Row]) -> float:
    """The largest difference between results of neighbouring minutes."""
    means = [sum(row.results) / len(row.results) for row in curve]
    return max((abs(b - a) for a, b in pairwise(means)), default=0.0)


def _share(low: float, high: float, at: float) -> float:
    """Position of a number between two others along their logarithms, from 0 to 1."""
    return 0.0 if low == high else min(1.0, max(0.0, math.log(at / low) / math.log(high / low)))


def _short(value: Any) -> str:
    return "×".join(map(str, value)) if isinstance(value, list | tuple) else f"{value:g}" if isinstance(value, float) else str(value)
