"""Claims: comparisons of metrics, written as they are read, decided by `statistics`.

    Claim("attention has the lower loss, by 0.1 nats", measured("LSTM", "loss") - measured("GPT", "loss") >= 0.1, source="table 2")

`measured` names a metric of a variant, accuracy if none is named; sums, differences, products and ratios are taken seed by seed, so that what two
variants share with a seed cancels. `>=` and `<=` make a comparison. A claim holds if all of its comparisons do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from ...errors import UnknownName
from .statistics import Decision, Sample, decide, holm

Kind = Literal["claim", "control", "level"]
Key = str | tuple[str, str]  # a variant (its accuracy), or a variant and a metric


class Proportion(float):
    """Share of test items, which knows how many there are: the error of a finite test set belongs to the intervals.

    Args:
        share: from 0 to 1.
        items: number of test items.
    """

    items: int

    def __new__(cls, share: float, items: int) -> Proportion:
        found = super().__new__(cls, share)
        found.items = items
        return found

    @property
    def variance(self) -> float:
        """Variance of the share, with two successes and two failures added (Agresti and Coull 1998): that of 1 is not 0."""
        share = (self * self.items + 2) / (self.items + 4)
        return share * (1 - share) / self.items


@dataclass(frozen=True)
class Results:
    """All metrics of a run: `results["variant", "metric"]` is a Sample over the seeds; `results["variant"]` that of its accuracy.

    Args:
        metrics: per variant, per seed.
        seeds: the seeds.
    """

    metrics: Mapping[str, list[Mapping[str, float]]]
    seeds: tuple[int, ...] = ()

    def __getitem__(self, key: Key) -> Sample:
        variant, metric = _full(key)
        if variant not in self.metrics:
            raise UnknownName("variant", variant, self.metrics)
        if metric not in self.metrics[variant][0]:
            raise UnknownName(f"metric of {variant}", metric, self.metrics[variant][0])
        values = [seed[metric] for seed in self.metrics[variant]]
        shares = [one for one in values if isinstance(one, Proportion)]
        variance = sum(one.variance for one in shares) / len(shares) if shares else 0.0
        return Sample(tuple(map(float, values)), variance, shares[0].items if shares else 0)


def _full(key: Key) -> tuple[str, str]:
    return (key, "accuracy") if isinstance(key, str) else key


@dataclass(frozen=True, eq=False)
class Value:
    """A number that claims compare: a metric of a variant, or arithmetic on several.

    Args:
        of: its sample over the seeds.
        text: its figures in words.
        keys: metrics that it is made of.
    """

    of: Callable[[Results], Sample]
    text: Callable[[Results], str]
    keys: tuple[tuple[str, str], ...]

    def __add__(self, other: Value | float) -> Value:
        return self._with(other, lambda a, b: a + b, lambda a, b: (1.0, 1.0), "and")

    def __sub__(self, other: Value | float) -> Value:
        return self._with(other, lambda a, b: a - b, lambda a, b: (1.0, 1.0), "against")

    def __mul__(self, other: Value | float) -> Value:
        return self._with(other, lambda a, b: a * b, lambda a, b: (b * b, a * a), "times")

    def __truediv__(self, other: Value | float) -> Value:
        return self._with(other, lambda a, b: a / b if b else math.nan, lambda a, b: (1 / b**2, a * a / b**4) if b else (0.0, 0.0), "to")

    def __abs__(self) -> Value:
        def of(results: Results) -> Sample:
            mine = self.of(results)
            return Sample(tuple(map(abs, mine.values)), mine.variance, mine.items)

        return Value(of, self.text, self.keys)

    def __ge__(self, bound: Value | float) -> Comparison:
        return Comparison(self - bound if isinstance(bound, Value) else self, 0.0 if isinstance(bound, Value) else bound, 1)

    def __le__(self, bound: Value | float) -> Comparison:
        return Comparison(self - bound if isinstance(bound, Value) else self, 0.0 if isinstance(bound, Value) else bound, -1)

    def _with(
        self, other: Value | float, join: Callable[[float, float], float], weights: Callable[[float, float], tuple[float, float]], word: str
    ) -> Value:
        """Join two values seed by seed. The error of the items is propagated with the squared derivatives `weights`, as if independent."""
        theirs = other if isinstance(other, Value) else constant(other)

        def of(results: Results) -> Sample:
            a, b = self.of(results), theirs.of(results)
            pairs = zip(a.values, b.values if isinstance(other, Value) else b.values * len(a.values), strict=True)
            one, two = weights(a.mean, b.mean)
            items = min((n for n in (a.items, b.items) if n), default=0)
            return Sample(tuple(join(x, y) for x, y in pairs), one * a.variance + two * b.variance, items)

        def text(results: Results) -> str:
            return f"{self.text(results)} {word} {theirs.text(results)}" if isinstance(other, Value) else self.text(results)

        return Value(of, text, (*self.keys, *theirs.keys))


def measured(variant: str, metric: str = "accuracy") -> Value:
    """Metric of a variant.

    Args:
        variant: name of the variant.
        metric: name of the metric.
    """
    return Value(lambda results: results[variant, metric], lambda results: str(results[variant, metric]), ((variant, metric),))


def constant(number: float) -> Value:
    """A number that is the same with every seed.

    Args:
        number: the number.
    """
    return Value(lambda results: Sample((number,)), lambda results: f"{number:g}", ())


@dataclass(frozen=True)
class Comparison:
    """A value and a bound that it must reach (`sign` 1) or not exceed (−1)."""

    value: Value
    bound: float
    sign: int

    def margin(self, results: Results) -> Sample:
        """By how much each seed meets it: positive where it does.

        Args:
            results: metrics of a run.
        """
        found = self.value.of(results)
        return Sample(tuple(self.sign * (one - self.bound) for one in found.values), found.variance, found.items)


class Claim:
    """A statement that can fail.

    Args:
        text: the statement in words.
        *comparisons: what must be so for it to hold.
        kind: claim: of the paper; level: a number is reached; control: holds unless something is broken.
        source: table or figure of the paper.
        learned: levels that a reference must reach, on average, for the comparison to say anything.
    """

    def __init__(self, text: str, *comparisons: Comparison, kind: Kind = "claim", source: str = "", learned: tuple[Comparison, ...] = ()):
        self.text, self.comparisons, self.kind, self.source, self.learned = text, comparisons, kind, source, learned

    def evidence(self, results: Results) -> str:
        """Figures that decide it, in words.

        Args:
            results: metrics of a run.
        """
        return "; ".join(dict.fromkeys(one.value.text(results) for one in self.comparisons))


@dataclass(frozen=True)
class Verdict:
    """Verdict on a claim, and the comparison that is the least clear.

    Args:
        claim: the claim in words.
        kind: its kind.
        source: table or figure of the paper.
        decision: the verdict.
        evidence: figures in words.
        margin: mean margin, positive where the comparison is met.
        low: lower end of its confidence interval of 95 %.
        high: upper end.
        p: of no margin, corrected for the number of claims; None of a control.
        seeds: number of seeds.
        agree: seeds that meet all comparisons by themselves.
        items: number of test items, if known; else 0.
        reason: of an undecided one, if it is not the spread.
    """

    claim: str
    kind: Kind
    source: str
    decision: Decision
    evidence: str
    margin: float
    low: float
    high: float
    p: float | None
    seeds: int
    agree: int
    items: int
    reason: str = ""

    @property
    def held(self) -> bool:
        return self.decision == "holds"


def verdicts(claims: tuple[Claim, ...], results: Results) -> tuple[Verdict, ...]:
    """Decide all claims of a recipe: controls by every seed, the others by their statistics.

    Args:
        claims: the claims.
        results: metrics of a run.
    """
    margins = [[one.margin(results) for one in claim.comparisons] for claim in claims]
    tested = [n for n, claim in enumerate(claims) if claim.kind != "control"]
    decisions = dict(zip(tested, decide([margins[n] for n in tested]), strict=True))
    ps = dict(zip(tested, holm([max(one.p_above() for one in margins[n]) for n in tested]), strict=True))
    return tuple(_verdict(claim, margins[n], decisions.get(n), ps.get(n), results) for n, claim in enumerate(claims))


def _verdict(claim: Claim, margins: list[Sample], decision: Decision | None, p: float | None, results: Results) -> Verdict:
    met = [all(one.values[n] >= 0 for one in margins) for n in range(len(margins[0].values))]
    missed = [one for one in claim.learned if not one.margin(results).mean >= 0]
    reason = f"a reference has not learned: {missed[0].value.text(results)}, expected {missed[0].bound:g}" if missed else ""
    if decision is None:
        decision = "holds" if all(met) else "fails"
    least = max(margins, key=lambda one: (one.p_above(), -one.mean))
    low, high = least.interval()
    return Verdict(
        claim.text, claim.kind, claim.source, "undecided" if missed else decision, claim.evidence(results), least.mean, low, high,
        p, len(met), sum(met), least.items, reason,
    )  # fmt: skip


# -- common forms --------------------------------------------------------------------------------------------------------


def at_least(text: str, bound: float, *keys: Key, kind: Kind = "level", source: str = "") -> Claim:
    """Claim that each metric is at least `bound`.

    Args:
        text: claim in words.
        bound: lower bound.
        *keys: variants (their accuracy), or variants and metrics.
        kind: kind of the claim.
        source: table or figure of the paper.
    """
    return Claim(text, *(measured(*_full(key)) >= bound for key in keys), kind=kind, source=source)


def at_most(text: str, bound: float, *keys: Key, kind: Kind = "level", source: str = "") -> Claim:
    """Claim that each metric is at most `bound`.

    Args:
        text: claim in words.
        bound: upper bound.
        *keys: variants (their accuracy), or variants and metrics.
        kind: kind of the claim.
        source: table or figure of the paper.
    """
    return Claim(text, *(measured(*_full(key)) <= bound for key in keys), kind=kind, source=source)


def between(text: str, low: float, high: float, key: Key, kind: Kind = "level", source: str = "") -> Claim:
    """Claim that a metric is in [low, high].

    Args:
        text: claim in words.
        low: lower bound.
        high: upper bound.
        key: variant (its accuracy), or variant and metric.
        kind: kind of the claim.
        source: table or figure of the paper.
    """
    return Claim(text, measured(*_full(key)) >= low, measured(*_full(key)) <= high, kind=kind, source=source)


def above(
    text: str,
    key: Key,
    other: Key,
    by: float = 0.0,
    kind: Kind = "claim",
    source: str = "",
    learned: tuple[Comparison, ...] = (),
) -> Claim:
    """Claim that `key` exceeds `other` by more than `by`.

    Args:
        text: claim in words.
        key: variant (its accuracy), or variant and metric, that should be higher.
        other: the same to compare with.
        by: least difference.
        kind: kind of the claim.
        source: table or figure of the paper.
        learned: levels that a reference must reach for the comparison to say anything.
    """
    return Claim(text, measured(*_full(key)) - measured(*_full(other)) >= by, kind=kind, source=source, learned=learned)


def below(
    text: str,
    key: Key,
    other: Key,
    by: float = 0.0,
    kind: Kind = "claim",
    source: str = "",
    learned: tuple[Comparison, ...] = (),
) -> Claim:
    """Claim that `key` is lower than `other` by more than `by`.

    Args:
        text: claim in words.
        key: variant (its accuracy), or variant and metric, that should be lower.
        other: the same to compare with.
        by: least difference.
        kind: kind of the claim.
        source: table or figure of the paper.
        learned: levels that a reference must reach for the comparison to say anything.
    """
    return Claim(text, measured(*_full(key)) - measured(*_full(other)) <= -by, kind=kind, source=source, learned=learned)
