"""Recipe: a paper's claim, the system and the ablation that must lose, and the metrics that decide.

A recipe holds values only: variants, seeds, claims, pictures. `run` first tunes the learning rate of every variant that trains, all alike, with a tuning
seed and on validation data; then it evaluates every variant with reporting seeds, which no setting was chosen with, until the claims are decided
(`statistics`). It writes a directory: `results.json` (every metric of every seed, and where the figures come from) and `report.html`
(self-contained). A claim that fails is reported as failed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ...errors import BadConfig, UnknownName
from ...patterns import Pattern
from ...train import TrainOptions
from .claims import Claim, Results, Verdict, verdicts
from .parts import Parts
from .record import write_results
from .statistics import LOOKS

RATES = (1 / 3, 1.0, 3.0)  # factors of the learning rate that are tried


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
    tuning_seeds: tuple[int, ...] = (0, 1, 2)  # seeds that settings may be chosen with
    seeds: tuple[int, ...] = tuple(range(100, 100 + LOOKS[-1]))  # seeds that are reported; the first three, five, or all eight
    rates: tuple[float, ...] = RATES  # factors of the learning rate of each variant that trains; the best on validation data is kept
    pictures: tuple[Callable[[Results, Path], Path], ...] = ()  # pictures of the report

    def __post_init__(self) -> None:
        if {*self.seeds} & {*self.tuning_seeds}:
            raise BadConfig(f"{self.facts.name}: seeds {self.seeds} and tuning seeds {self.tuning_seeds} overlap; report on others")
        earlier: list[str] = []
        for name, variant in self.variants.items():
            if not isinstance(variant, Reevaluation):
                earlier.append(name)
            elif variant.of not in earlier:
                raise UnknownName(f"variant that comes before {name!r}", variant.of, earlier)


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run of a recipe."""

    results: Results  # metrics of all variants and seeds
    verdicts: tuple[Verdict, ...]  # verdict on each claim
    seconds: float  # CPU time of all parts of the run, also of those that an earlier process did
    out: Path  # folder of the report

    @property
    def held(self) -> bool:
        return all(verdict.held for verdict in self.verdicts)


def run(recipe: Recipe, out: Path, seeds: Sequence[int] | None = None, log: Callable[[str], None] = print, quick: bool = False) -> Outcome:
    """Tune the variants that train, evaluate them with as many seeds as it takes to decide, draw the pictures and write the report.

    What is finished is kept: a run that was stopped goes on where it was, unless settings or data have changed.

    Args:
        recipe: recipe to run.
        out: folder to write results and report to.
        seeds: seeds to use, all of them; None: those of the recipe, until all claims are decided.
        log: function that prints a line.
        quick: train a tenth of the steps with one seed, and do not tune; decides nothing.
    """
    from .report import write_report

    out.mkdir(parents=True, exist_ok=True)
    if quick:
        recipe = replace(recipe, variants={name: _with_steps(variant, 0.1) for name, variant in recipe.variants.items()}, rates=())
        seeds = recipe.seeds[:1] if seeds is None else seeds
    parts = Parts(log)
    tuned, tuning = _tune(recipe, out, parts)
    for some in [recipe.seeds[:n] for n in LOOKS] if seeds is None else [tuple(seeds)]:
        results = Results({name: [_evaluate(tuned, name, seed, out, parts) for seed in some] for name in recipe.variants}, some)
        found = verdicts(recipe.claims, results)
        if all(one.decision != "undecided" or one.reason for one in found):
            break
    outcome = Outcome(results, found, parts.seconds, out)
    write_results(recipe, outcome, tuning, parts, quick)
    write_report(recipe, outcome, [picture(results, out) for picture in recipe.pictures])
    for verdict in found:
        log(f"{verdict.decision}: {verdict.claim}: {verdict.evidence}")
    return outcome


def _evaluate(recipe: Recipe, name: str, seed: int, out: Path, parts: Parts) -> Mapping[str, float]:
    """Metrics of a variant with one seed."""
    variant = recipe.variants[name]
    again = isinstance(variant, Reevaluation)
    folder = variant_folder(out, variant.of if isinstance(variant, Reevaluation) else name, seed)
    return parts.do(name, variant, seed, folder, variant_settings(recipe, name), keep=again)


def _tune(recipe: Recipe, out: Path, parts: Parts) -> tuple[Recipe, dict[str, dict[str, float]]]:
    """The recipe with the best learning rate of each variant that trains, and the validation loss with each factor."""
    chosen, losses = dict(recipe.variants), dict[str, dict[str, float]]()
    for name, variant in recipe.variants.items():
        train = training_of(variant)
        if train is None or not recipe.rates:
            continue
        tried = {rate: with_training(variant, train.replace(lr=train.lr * rate)) for rate in recipe.rates}
        found = {}
        for rate, one in tried.items():
            settings = variant_settings(replace(recipe, variants={**recipe.variants, name: one}), name)
            metrics = parts.do(
                f"{name}, learning rate × {rate:.2g}",
                one,
                recipe.tuning_seeds[0],
                variant_folder(out, name, "tuning") / f"{rate:.2g}",
                settings,
            )
            found[rate] = metrics["validation_loss"] if math.isfinite(metrics["validation_loss"]) else math.inf
        chosen[name], losses[name] = tried[min(found, key=lambda rate: found[rate])], {f"{rate:.2g}": loss for rate, loss in found.items()}
    return replace(recipe, variants=chosen), losses


def _with_steps(variant: Variant, share: float) -> Variant:
    """A variant that trains this share of its steps; what does not train is as it was."""
    train = training_of(variant)
    if train is None:
        return variant
    steps = max(2, round(share * train.steps)) if train.steps else None
    epochs = max(1, round(share * train.epochs)) if train.epochs else None
    return with_training(variant, train.replace(steps=steps, epochs=epochs, evaluate_every=steps or 0))


def training_of(variant: Any) -> TrainOptions | None:
    """Training options of a variant, its own or those of the one that it holds as `model`; None if it does not train."""
    if isinstance(variant, Reevaluation) or not is_dataclass(variant):
        return None
    train = getattr(variant, "train", None)
    return train if isinstance(train, TrainOptions) else training_of(getattr(variant, "model", None))


def with_training(variant: Any, train: TrainOptions) -> Any:
    """The variant with other training options."""
    if isinstance(getattr(variant, "train", None), TrainOptions):
        return replace(variant, train=train)
    return replace(variant, model=with_training(variant.model, train))


def variant_folder(out: Path, name: str, seed: int | str) -> Path:
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
