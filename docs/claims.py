"""Write docs/results.md from the results of recipes: `python docs/claims.py RUNS` reads RUNS/<recipe>/results.json of each recipe.

Recipes that were not run this time keep their section; if their claims or settings have changed since, the head of the page says so.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from regard.recipes import RECIPES, Recipe

PAGE = Path(__file__).parent / "results.md"
HEAD = """# Results

Papers' claims, run at a scale of minutes on two CPU cores. `make claims` writes this page from the runs; no figure is entered by hand. Figures are means over the
seeds, with the minimum and the maximum. A claim that fails stays here as failed.
"""
OTHER_SETTINGS: tuple[str, ...] = ()  # recipes whose training has changed since they were run; to be removed with their next run


def heading(recipe: Recipe) -> str:
    return f"## {recipe.facts.name}: {recipe.question}"


def section(results: dict[str, Any], recipe: Recipe) -> list[str]:
    rows = [f"| {'holds' if c['held'] else '**fails**'} | {c['claim']} | {c['evidence']} |" for c in results["claims"]]
    command = f"`regard run {recipe.facts.name}`, {len(results['seeds'])} seeds, {results['seconds']:.0f} s in all; {results['machine']}."
    paper = f"After {recipe.facts.title}, {recipe.facts.year}, {recipe.facts.paper}."
    return [
        heading(recipe),
        "",
        f"{paper} {command}",
        "",
        "| | claim | figures |",
        "| --- | --- | --- |",
        *rows,
        "",
    ]


def has_changed(lines: list[str], recipe: Recipe) -> bool:
    """Whether a section of an earlier run decides on other claims than the recipe has now, or on claims in other words."""
    rows = [line.split(" | ")[1] for line in lines if line.startswith(("| holds |", "| **fails** |"))]
    return bool(rows) and rows != [claim.text for claim in recipe.claims]


def existing_sections() -> dict[str, list[str]]:
    """What the page holds now, by recipe."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    return {part.split(":")[0]: f"## {part.rstrip()}\n".split("\n") for part in text.split("\n## ")[1:]}


def main(runs: Path) -> None:
    lines, existing, changed = [HEAD], existing_sections(), []
    for recipe in RECIPES:
        path = runs / recipe.facts.name / "results.json"
        if path.exists():
            lines += section(json.loads(path.read_text(encoding="utf-8")), recipe)
        elif recipe.facts.name in existing:
            lines += [heading(recipe), *existing[recipe.facts.name][1:]]
            changed += [recipe.facts.name] * has_changed(existing[recipe.facts.name], recipe)
        else:
            lines += [heading(recipe), "", "Not run yet.", ""]
    if changed:
        lines.insert(1, f"Claims that were changed or reworded after the run shown here: {', '.join(changed)}.\n")
    if before := [name for name in OTHER_SETTINGS if not (runs / name / "results.json").exists()]:
        lines.insert(1, f"Run with other settings than the recipe has now, and not since: {', '.join(before)}.\n")
    PAGE.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs"))
