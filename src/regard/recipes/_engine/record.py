"""The record of a run, `results.json`: every metric of every seed, the verdicts, and what they depend on.

A record is *stale* if settings, claims or seeds of the recipe are no longer those it was made with; if the code of a module whose functions ran has
changed, comments and docstrings apart, it says so. Records that are part of the documentation are in docs/results, one file per recipe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ... import files
from .claims import Proportion, Results, verdicts
from .parts import PACKAGE, Parts, code_digest, digest, provenance

if TYPE_CHECKING:
    from .base import Outcome, Recipe

VERSION = 3
RECORDS = PACKAGE.parents[1] / "docs" / "results"

State = Literal["current", "code changed", "stale", "not run"]


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """Settings that a record must have been made with to count."""
    from .base import variant_settings

    return {
        "variants": {name: variant_settings(recipe, name) for name in recipe.variants},
        "claims": [[claim.text, claim.kind] for claim in recipe.claims],
        "rates": list(recipe.rates),
        "seeds": list(recipe.seeds),
    }


def write_results(recipe: Recipe, outcome: Outcome, tuning: Mapping[str, Mapping[str, float]], parts: Parts, quick: bool) -> Path:
    """Write `results.json` into the folder of a run.

    Args:
        recipe: recipe as it is written, its learning rates not tuned.
        outcome: outcome of the run.
        tuning: validation loss of each variant by factor of the learning rate.
        parts: parts of the run.
        quick: the run was shortened, and decides nothing.
    """
    metrics = outcome.results.metrics
    record = {
        "format_version": VERSION,
        "recipe": recipe.facts.name,
        "question": recipe.question,
        "paper": f"{recipe.facts.title}, {recipe.facts.year}, {recipe.facts.paper}",
        "quick": quick,
        **provenance(),
        "commits": sorted(parts.commits),  # of all parts; a run may have been stopped and continued
        "seconds": round(outcome.seconds, 1),
        "seeds": list(outcome.results.seeds),
        "settings": settings_of(recipe),
        "settings_digest": digest(settings_of(recipe)),
        "modules": {module: code_digest(module) for module in sorted(parts.modules)},
        "tuning": {name: dict(losses) for name, losses in tuning.items()},
        "metrics": {name: [dict(seed) for seed in seeds] for name, seeds in metrics.items()},
        "items": {
            name: {metric: value.items for metric, value in seeds[0].items() if isinstance(value, Proportion)}
            for name, seeds in metrics.items()
        },
        "claims": [asdict(verdict) for verdict in outcome.verdicts],
    }
    path = outcome.out / "results.json"
    files.write_json(path, record, indent=1)
    return path


def read_record(name: str, folder: Path = RECORDS) -> dict[str, Any] | None:
    """The record of a recipe in the documentation; None if it has not been run.

    Args:
        name: name of the recipe.
        folder: folder of the records.
    """
    path = folder / f"{name}.json"
    return files.read_json(path) if path.is_file() else None


def state_of(recipe: Recipe, record: Mapping[str, Any] | None) -> State:
    """State of a record, compared with the recipe and the code as they are now.

    Args:
        recipe: recipe.
        record: its record; None: there is none.
    """
    if record is None:
        return "not run"
    if record.get("format_version") != VERSION or record.get("settings_digest") != digest(settings_of(recipe)) or record.get("quick"):
        return "stale"
    return "current" if all(code_digest(module) == code for module, code in record["modules"].items()) else "code changed"


def results_of(record: Mapping[str, Any]) -> Results:
    """The metrics of a record, as claims are decided on.

    Args:
        record: record of a recipe.
    """
    items = record["items"]
    metrics: dict[str, list[Mapping[str, float]]] = {
        name: [{one: Proportion(value, items[name][one]) if one in items[name] else value for one, value in seed.items()} for seed in seeds]
        for name, seeds in record["metrics"].items()
    }
    return Results(metrics, tuple(record["seeds"]))


def decided_again(recipe: Recipe, record: Mapping[str, Any]) -> bool:
    """Return whether the claims of the recipe, decided on the metrics of the record, give the verdicts that it holds.

    Args:
        recipe: recipe.
        record: its record.
    """
    return [asdict(verdict) for verdict in verdicts(recipe.claims, results_of(record))] == record["claims"]
