"""What a recipe is: a paper's claim, the system and the ablation that must lose, and the figures that decide.

A recipe holds data only: variants, seeds, claims, pictures. `run` works every variant through every seed and writes a
directory: `results.json` (every figure of every seed), `report.html` (self-contained). A claim that fails says so.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from ..errors import UnknownName
from ..patterns import Pattern


class Variant(Protocol):
    """One system under one setting."""

    def __call__(self, seed: int, out: Path) -> Mapping[str, float]:
        """Do the work of one seed, in `out` if files are needed, and return the figures."""


@dataclass(frozen=True)
class Again:
    """What an earlier variant made, judged in another way: other weights, another search. `judge` gets the folder that `of` left."""

    of: str
    judge: Variant

    def __call__(self, seed: int, out: Path) -> Mapping[str, float]:
        return self.judge(seed, out)


class Spread:
    """One figure over all seeds."""

    def __init__(self, values: list[float]):
        self.values = values

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    def __sub__(self, other: Spread) -> Spread:
        """The differences seed by seed: what two variants share with a seed cancels."""
        return Spread([a - b for a, b in zip(self.values, other.values, strict=True)])

    def __str__(self) -> str:
        return f"{self.mean:.3g} ({self.low:.3g} to {self.high:.3g})" if len(self.values) > 1 else f"{self.mean:.3g}"


class Figures:
    """All figures of a run: `figures["variant", "figure"]` is a Spread over the seeds."""

    def __init__(self, seen: Mapping[str, list[Mapping[str, float]]], seeds: tuple[int, ...] = ()):
        self.seen, self.seeds = seen, seeds

    def __getitem__(self, key: tuple[str, str]) -> Spread:
        variant, figure = key
        if variant not in self.seen:
            raise UnknownName("variant", variant, self.seen)
        if figure not in self.seen[variant][0]:
            raise UnknownName(f"figure of {variant}", figure, self.seen[variant][0])
        return Spread([seed[figure] for seed in self.seen[variant]])


@dataclass(frozen=True)
class Claim:
    """A comparison that can fail. `shows` names the figures it was decided on."""

    says: str
    holds: Callable[[Figures], bool]
    shows: Callable[[Figures], str]


@dataclass(frozen=True, kw_only=True)
class RecipeFacts:
    """What is true of a recipe."""

    name: str
    year: int
    title: str
    paper: str
    takes: str  # how long, on what


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A claim that can be run."""

    facts: RecipeFacts
    question: str
    variants: Mapping[str, Variant]
    claims: tuple[Claim, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    pictures: tuple[Callable[[Figures, Path], Path], ...] = field(default=())

    def __post_init__(self) -> None:
        made: list[str] = []
        for name, variant in self.variants.items():
            if isinstance(variant, Again) and variant.of not in made:
                raise UnknownName(f"variant that comes before {name!r}", variant.of, made)
            if not isinstance(variant, Again):
                made.append(name)


@dataclass(frozen=True)
class Verdict:
    """What became of a claim."""

    says: str
    held: bool
    shows: str


@dataclass(frozen=True)
class Outcome:
    """What a run found."""

    figures: Figures
    verdicts: tuple[Verdict, ...]
    seconds: float
    out: Path

    @property
    def held(self) -> bool:
        return all(verdict.held for verdict in self.verdicts)


def run(recipe: Recipe, out: Path, seeds: tuple[int, ...] | None = None, say: Callable[[str], None] = print) -> Outcome:
    """Every variant with every seed; then the claims, the pictures and the report."""
    from .report import write_report

    out.mkdir(parents=True, exist_ok=True)
    seeds, start = seeds or recipe.seeds, time.monotonic()
    seen: dict[str, list[Mapping[str, float]]] = {}
    for name, variant in recipe.variants.items():
        for seed in seeds:
            begun = time.monotonic()
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                maker = variant.of if isinstance(variant, Again) else name
                seen.setdefault(name, []).append(variant(seed, folder(out, maker, seed)))
            say(f"{name}, seed {seed}: {_few(seen[name][-1])} ({time.monotonic() - begun:.1f} s)")
    figures = Figures(seen, seeds)
    verdicts = tuple(Verdict(claim.says, claim.holds(figures), claim.shows(figures)) for claim in recipe.claims)
    outcome = Outcome(figures, verdicts, time.monotonic() - start, out)
    _write(recipe, outcome)
    write_report(recipe, outcome, [picture(figures, out) for picture in recipe.pictures])
    for verdict in verdicts:
        say(f"{'holds' if verdict.held else 'FAILS'}: {verdict.says}: {verdict.shows}")
    return outcome


def folder(out: Path, name: str, seed: int) -> Path:
    """Where a variant leaves what it makes for a seed."""
    return out / "".join(letter if letter.isalnum() else "_" for letter in name) / str(seed)


def settings(recipe: Recipe, name: str) -> dict[str, str]:
    """What a variant was set to, nested ones as `outer.inner`; of variants that are not dataclasses nothing is known."""
    variant: Any = recipe.variants[name]
    found = settings(recipe, variant.of) if isinstance(variant, Again) else {}

    def walk(value: Any, at: str) -> None:
        if is_dataclass(value) and not isinstance(value, Pattern | type):
            if at:
                found[at] = type(value).__name__
            value = {f.name: getattr(value, f.name) for f in fields(value)}
        if isinstance(value, Mapping):
            for key, inner in value.items():
                if key != "seed":  # the run's, not the variant's
                    walk(inner, f"{at}.{key}" if at else str(key))
        elif told := _told(value):
            found[at] = told

    if is_dataclass(variant):
        walk(variant, "")
    return found


def _told(value: Any) -> str:
    """A value in a few characters: factories as one would call them, functions without a name not at all."""
    if isinstance(value, partial):
        given = [*map(_told, value.args), *(f"{name}={_told(one)}" for name, one in value.keywords.items())]
        return f"{_told(value.func)}({', '.join(given)})"
    if callable(value) and hasattr(value, "__name__"):
        return "" if value.__name__ == "<lambda>" else str(value.__name__)
    return str(value)


def machine() -> str:
    """One line about where a result was had."""
    from ..kernels import cpu_model

    return f"{cpu_model()}, {torch.get_num_threads()} threads, Python {platform.python_version()}, torch {torch.__version__}"


def _write(recipe: Recipe, outcome: Outcome) -> None:
    found: dict[str, Any] = {
        "format_version": 1,
        "recipe": recipe.facts.name,
        "question": recipe.question,
        "paper": f"{recipe.facts.title}, {recipe.facts.year}, {recipe.facts.paper}",
        "machine": machine(),
        "seconds": round(outcome.seconds, 1),
        "seeds": list(outcome.figures.seeds),
        "variants": {name: settings(recipe, name) for name in recipe.variants},
        "figures": {name: [dict(one) for one in each] for name, each in outcome.figures.seen.items()},
        "claims": [{"says": v.says, "held": v.held, "shows": v.shows} for v in outcome.verdicts],
    }
    (outcome.out / "results.json").write_text(json.dumps(found, indent=2, ensure_ascii=False), encoding="utf-8")


def _few(figures: Mapping[str, float]) -> str:
    shown = [f"{name} {value:.3g}" for name, value in figures.items()]
    return ", ".join(shown[:4]) + (", …" if len(shown) > 4 else "")
