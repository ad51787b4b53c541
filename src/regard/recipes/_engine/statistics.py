r"""Verdicts: does a difference exceed its margin, given a few seeds and a finite test set?

A comparison gives one number per seed, positive where the seed meets it. Their mean m has two sources of error: seeds differ, and all of them are
measured on the same test items, so that k seeds do not make the items more:

$$\mathrm{se}^2 = \frac{s^2}{k} + \sigma^2_\text{items}, \qquad t = \frac{m}{\mathrm{se}}, \qquad
  \nu = \frac{\mathrm{se}^4}{(s^2/k)^2/(k-1) + (\sigma^2_\text{items})^2/(n-1)}$$

with Student's t of ν degrees of freedom (Welch 1947; Satterthwaite 1946). A claim of several comparisons holds if all of them do: its p is the
largest (Berger 1982). Over the claims of a recipe p values are corrected by Holm (1979).

Seeds are added until every claim is decided: a recipe looks after 3, 5 and 8 of them, and spends 0.01, 0.015 and 0.025 of its error of 0.05 there,
whose sum bounds the error of all looks together (Bonferroni). A claim *holds* if the corrected p of "not above the margin" is below what is
spent, *fails* if that of "not below the margin" is, and is *undecided* if neither is so at the last look.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

LOOKS = (3, 5, 8)  # seeds
SPENT = (0.01, 0.015, 0.025)  # error at each look
LEVEL = 0.95  # of the intervals that are shown

Decision = Literal["holds", "fails", "undecided"]


@dataclass(frozen=True)
class Sample:
    """One number per seed, and the error that all seeds share.

    Args:
        values: number with each seed.
        variance: variance of the mean that comes from the finite test set.
        items: size of the test set; 0: there is none, or its error is part of the seeds'.
    """

    values: tuple[float, ...]
    variance: float = 0.0
    items: int = 0

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / len(self.values)

    @property
    def low(self) -> float:
        return self.mean if math.isnan(self.mean) else min(self.values)  # Python's min skips a NaN that is not the first

    @property
    def high(self) -> float:
        return self.mean if math.isnan(self.mean) else max(self.values)

    def __str__(self) -> str:
        return f"{self.mean:.3g} ({self.low:.3g} to {self.high:.3g})" if len(self.values) > 1 else f"{self.mean:.3g}"

    @property
    def error(self) -> float:
        """Standard error of the mean; infinite for a single seed."""
        return math.sqrt(self._of_seeds + self.variance)

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the standard error."""
        k, n = len(self.values), max(self.items, 2)
        if k < 2 or not self.error:
            return 1.0
        return self.error**4 / (self._of_seeds**2 / (k - 1) + self.variance**2 / (n - 1))

    @property
    def _of_seeds(self) -> float:
        k = len(self.values)
        return math.fsum((one - self.mean) ** 2 for one in self.values) / (k - 1) / k if k > 1 else math.inf

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Two-sided confidence interval of the mean.

        Args:
            level: probability that it holds the true mean.
        """
        if math.isinf(self.error):
            return -math.inf, math.inf
        away = student_quantile((1 + level) / 2, self.freedom) * self.error if self.error else 0.0
        return self.mean - away, self.mean + away

    def p_above(self) -> float:
        """Probability of such a mean, or a higher one, if the true one were 0."""
        if math.isnan(self.mean) or math.isinf(self.error):
            return 1.0
        if not self.error:
            return 0.0 if self.mean > 0 else 1.0
        return 1 - student(self.mean / self.error, self.freedom)

    def p_below(self) -> float:
        """Probability of such a mean, or a lower one, if the true one were 0."""
        return Sample(tuple(-one for one in self.values), self.variance, self.items).p_above()


def decide(claims: Sequence[Sequence[Sample]], looks: Sequence[int] = LOOKS) -> list[Decision]:
    """Decide the claims of a recipe, each by the differences of its comparisons, at the first look that does.

    Args:
        claims: per claim its comparisons, positive where they are met.
        looks: numbers of seeds at which to look; those beyond the seeds there are do not count.
    """
    decisions: list[Decision] = ["undecided"] * len(claims)
    for seeds, spent in zip(looks, SPENT, strict=True):
        if not claims or any(len(one.values) < seeds for comparisons in claims for one in comparisons):
            break
        now = [[Sample(one.values[:seeds], one.variance, one.items) for one in comparisons] for comparisons in claims]
        above = holm([max(one.p_above() for one in comparisons) for comparisons in now])
        below = holm([min(1.0, len(comparisons) * min(one.p_below() for one in comparisons)) for comparisons in now])
        for n, old in enumerate(decisions):
            if old == "undecided":
                decisions[n] = "holds" if above[n] <= spent else "fails" if below[n] <= spent else old
    return decisions


def holm(ps: Sequence[float]) -> list[float]:
    """Correct p values for their number (Holm 1979): the probability of any false rejection is at most the level.

    Args:
        ps: p values.
    """
    found, largest = [0.0] * len(ps), 0.0
    for rank, n in enumerate(sorted(range(len(ps)), key=lambda n: ps[n])):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[n]))
        found[n] = largest
    return found


def student(t: float, freedom: float) -> float:
    """Distribution function of Student's t.

    Args:
        t: value.
        freedom: degrees of freedom.
    """
    tail = incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t)) / 2
    return 1 - tail if t > 0 else tail


def student_quantile(p: float, freedom: float) -> float:
    """Value that Student's t stays below with probability p, at least 0.5.

    Args:
        p: probability.
        freedom: degrees of freedom.
    """
    low, high = 0.0, 1.0
    while student(high, freedom) < p:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if student(middle, freedom) < p else (low, middle)
    return high


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function I_x(a, b), by its continued fraction (Press et al. 2007, section 6.4).

    Args:
        a: first parameter, positive.
        b: second parameter, positive.
        x: from 0 to 1.
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    front = math.exp(a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)) / a
    numerator, denominator, found = 1.0, 1 / _away(1 - (a + b) * x / (a + 1)), 0.0
    found = denominator
    for m in range(1, 500):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            denominator = 1 / _away(1 + term * denominator)
            numerator = _away(1 + term / numerator)
            found *= numerator * denominator
        if abs(numerator * denominator - 1) < 1e-15:
            break
    return front * found


def _away(value: float) -> float:
    """A value that can be divided by."""
    return value if abs(value) > 1e-300 else 1e-300
