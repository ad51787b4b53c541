"""Recipe: a paper's claim, the system and the ablation that must lose, and the metrics that decide.

A recipe holds values only: variants, seeds, claims, pictures. `run` evaluates every variant with every seed and writes a
directory: `results.json` (every metric of every seed) and `report.html` (self-contained). A claim that fails is reported as failed.
"""

from __future__ import annotations

import json
import math
import platform
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from ...errors import UnknownName
from ...machine import cpu_model
from ...patterns import Pattern


class Variant(Protocol):
    """One system under one setting."""

    def __call__(self, seed: int, out: Path) -> Mapping[str, float]:
        """Train or measure with one seed, using the folder `out` if files are needed, and return the metrics."""


@dataclass(frozen=True)
class Reevaluation:
    """The trained model of the earlier variant `of`, evaluated differently; `evaluate` gets its folder.

    Args:
        of: name of the earlier variant.
        evaluate: folder of its run → metrics.
    """

    of: str
    evaluate: Variant

    def __call__(self, seed: int, out: Path) -> Mapping[str, float]:
        return self.evaluate(seed, out)


# -- results -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """One metric over all seeds. If one of them is NaN, so are mean, minimum and maximum, and no comparison with them holds.

    Args:
        values: value with each seed.
    """

    values: list[float]

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)

    @property
    def low(self) -> float:
        return self.mean if math.isnan(self.mean) else min(self.values)  # Python's min skips a NaN that is not the first

    @property
    def high(self) -> float:
        return self.mean if math.isnan(self.mean) else max(self.values)

    def __sub__(self, other: Spread) -> Spread:
        """The differences per seed: what two variants share with a seed cancels."""
        return Spread([a - b for a, b in zip(self.values, other.values, strict=True)])

    def __str__(self) -> str:
        return f"{self.mean:.3g} ({self.low:.3g} to {self.high:.3g})" if len(self.values) > 1 else f"{self.mean:.3g}"


Key = str | tuple[str, str]  # a variant (its accuracy), or a variant and a metric


@dataclass(frozen=True)
class Results:
    """All metrics of a run: `results["variant", "metric"]` is a Spread over the seeds; `results["variant"]` that of its accuracy.

    Args:
        seeds: metrics of each variant by seed.
    """

    metrics: Mapping[str, list[Mapping[str, float]]]  # per variant, per seed
    seeds: tuple[int, ...] = ()

    def __getitem__(self, key: Key) -> Spread:
        variant, metric = (key, "accuracy") if isinstance(key, str) else key
        if variant not in self.metrics:
            raise UnknownName("variant", variant, self.metrics)
        if metric not in self.metrics[variant][0]:
            raise UnknownName(f"metric of {variant}", metric, self.metrics[variant][0])
        return Spread([seed[metric] for seed in self.metrics[variant]])


# -- claims ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """A comparison that can fail. `evidence` shows the metrics it was decided on."""

    text: str  # claim in words
    holds: Callable[[Results], bool]  # results → verdict
    evidence: Callable[[Results], str]  # results → metrics that decide it, as text


def at_least(text: str, bound: float, *keys: Key) -> Claim:
    """Each metric is at least `bound` with every seed.

    Args:
        text: claim in words.
        bound: lower bound.
        *keys: (variant, metric) pairs.
    """
    return Claim(text, lambda r: all(r[key].low >= bound for key in keys), lambda r: "; ".join(str(r[key]) for key in keys))


def at_most(text: str, bound: float, *keys: Key) -> Claim:
    """Each metric is at most `bound` with every seed.

    Args:
        text: claim in words.
        bound: upper bound.
        *keys: (variant, metric) pairs.
    """
    return Claim(text, lambda r: all(r[key].high <= bound for key in keys), lambda r: "; ".join(str(r[key]) for key in keys))


def between(text: str, low: float, high: float, key: Key) -> Claim:
    """The metric is in [low, high] with every seed.

    Args:
        text: claim in words.
        low: lower bound, included.
        high: upper bound, included.
        key: (variant, metric).
    """
    return Claim(text, lambda r: low <= r[key].low and r[key].high <= high, lambda r: str(r[key]))


def above(text: str, key: Key, other: Key, by: float = 0.0, *, on_average: bool = False) -> Claim:
    """`key` exceeds `other` by at least `by` (by anything if 0), compared per seed: with every seed, or on average over them.

    Args:
        text: claim in words.
        key: (variant, metric) that should be higher.
        other: (variant, metric) to compare with.
        by: least difference.
        on_average: compare means over seeds; False: every seed by itself.
    """
    return Claim(text, lambda r: _exceeds(r[key] - r[other], by, on_average), lambda r: f"{r[key]} against {r[other]}")


def below(text: str, key: Key, other: Key, by: float = 0.0, *, on_average: bool = False) -> Claim:
    """`key` is lower than `other` by at least `by` (by anything if 0), compared per seed: with every seed, or on average over them.

    Args:
        text: claim in words.
        key: (variant, metric) that should be lower.
        other: (variant, metric) to compare with.
        by: least difference.
        on_average: compare means over seeds; False: every seed by itself.
    """
    return Claim(text, lambda r: _exceeds(r[other] - r[key], by, on_average), lambda r: f"{r[key]} against {r[other]}")


def _exceeds(difference: Spread, by: float, on_average: bool) -> bool:
    least = difference.mean if on_average else difference.low
    return least >= by if by else least > 0


# -- recipes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecipeFacts:
    """Facts about a recipe."""

    name: str  # name of the recipe
    year: int  # year of the paper
    title: str  # title of the paper
    paper: str  # where it appeared, such as an arXiv number
    takes: str  # duration on two CPU cores


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A claim that can be run."""

    facts: RecipeFacts  # facts about the paper
    question: str  # question that the recipe answers
    variants: Mapping[str, Variant]  # systems to compare, by name; the order is that of the run
    claims: tuple[Claim, ...]  # claims to check
    seeds: tuple[int, ...] = (0, 1, 2)  # seeds of each variant
    pictures: tuple[Callable[[Results, Path], Path], ...] = ()  # pictures of the report

    def __post_init__(self) -> None:
        earlier: list[str] = []
        for name, variant in self.variants.items():
            if not isinstance(variant, Reevaluation):
                earlier.append(name)
            elif variant.of not in earlier:
                raise UnknownName(f"variant that comes before {name!r}", variant.of, earlier)


@dataclass(frozen=True)
class Verdict:
    """Verdict on a claim, with the metrics that decided it."""

    claim: str
    held: bool
    evidence: str


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run of a recipe."""

    results: Results  # metrics of all variants and seeds
    verdicts: tuple[Verdict, ...]  # verdict on each claim
    seconds: float  # duration of the run
    out: Path  # folder of the report

    @property
    def held(self) -> bool:
        return all(verdict.held for verdict in self.verdicts)


def run(recipe: Recipe, out: Path, seeds: tuple[int, ...] | None = None, log: Callable[[str], None] = print) -> Outcome:
    """Evaluate every variant with every seed; then check the claims, draw the pictures and write the report.

    Args:
        recipe: recipe to run.
        out: folder to write results and report to.
        seeds: seeds to use; the recipe's own if not given.
        log: function that prints a line.
    """
    from .report import write_report

    out.mkdir(parents=True, exist_ok=True)
    seeds, start = seeds or recipe.seeds, time.monotonic()
    metrics: dict[str, list[Mapping[str, float]]] = {}
    for name, variant in recipe.variants.items():
        for seed in seeds:
            begin = time.monotonic()
            folder = variant_folder(out, variant.of if isinstance(variant, Reevaluation) else name, seed)
            if not isinstance(variant, Reevaluation):
                shutil.rmtree(folder, ignore_errors=True)  # a recipe is a measurement: nothing of an earlier run counts
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                metrics.setdefault(name, []).append(variant(seed, folder))
            log(f"{name}, seed {seed}: {_summary(metrics[name][-1])} ({time.monotonic() - begin:.1f} s)")
    results = Results(metrics, seeds)
    verdicts = tuple(Verdict(claim.text, claim.holds(results), claim.evidence(results)) for claim in recipe.claims)
    outcome = Outcome(results, verdicts, time.monotonic() - start, out)
    _write_results(recipe, outcome)
    write_report(recipe, outcome, [picture(results, out) for picture in recipe.pictures])
    for verdict in verdicts:
        log(f"{'holds' if verdict.held else 'FAILS'}: {verdict.claim}: {verdict.evidence}")
    return outcome


def variant_folder(out: Path, name: str, seed: int) -> Path:
    """The folder of a variant and a seed, for files that it writes."""
    return out / "".join(letter if letter.isalnum() else "_" for letter in name) / str(seed)


def variant_settings(recipe: Recipe, name: str) -> dict[str, str]:
    """The settings of a variant, nested ones as `outer.inner`; none of variants that are not dataclasses."""
    variant: Any = recipe.variants[name]
    found = variant_settings(recipe, variant.of) if isinstance(variant, Reevaluation) else {}

    def walk(value: Any, at: str) -> None:
        if is_dataclass(value) and not isinstance(value, Pattern | type):
            if at:
                found[at] = type(value).__name__
            value = {f.name: getattr(value, f.name) for f in fields(value)}
        if isinstance(value, Mapping):
            for key, inner in value.items():
                if key != "seed":  # the run's, not the variant's
                    walk(inner, f"{at}.{key}" if at else str(key))
        elif text := format_value(value):
            found[at] = text

    if is_dataclass(variant):
        walk(variant, "")
    return found


def format_value(value: Any) -> str:
    """A value in a few characters: factories as one would call them, functions without a name not at all."""
    if isinstance(value, partial):
        given = [*map(format_value, value.args), *(f"{name}={format_value(one)}" for name, one in value.keywords.items())]
        return f"{format_value(value.func)}({', '.join(given)})"
    if callable(value) and hasattr(value, "__name__"):
        return "" if value.__name__ == "<lambda>" else str(value.__name__)
    return str(value)


def describe_machine() -> str:
    """One line about the machine that a result was measured on."""
    return f"{cpu_model()}, {torch.get_num_threads()} threads, Python {platform.python_version()}, torch {torch.__version__}"


def _write_results(recipe: Recipe, outcome: Outcome) -> None:
    plain = {
        "format_version": 2,
        "recipe": recipe.facts.name,
        "question": recipe.question,
        "paper": f"{recipe.facts.title}, {recipe.facts.year}, {recipe.facts.paper}",
        "machine": describe_machine(),
        "seconds": round(outcome.seconds, 1),
        "seeds": list(outcome.results.seeds),
        "variants": {name: variant_settings(recipe, name) for name in recipe.variants},
        "metrics": {name: [dict(seed) for seed in seeds] for name, seeds in outcome.results.metrics.items()},
        "claims": [asdict(verdict) for verdict in outcome.verdicts],
    }
    (outcome.out / "results.json").write_text(json.dumps(plain, indent=2, ensure_ascii=False), encoding="utf-8")


def _summary(metrics: Mapping[str, float]) -> str:
    shown = [f"{name} {value:.3g}" for name, value in metrics.items()]
    return ", ".join(shown[:4]) + (", …" if len(shown) > 4 else "")
