"""Write docs/results.md from what recipes found: `python docs/claims.py RUNS` reads RUNS/<recipe>/results.json of each recipe.

What was not run this time stays as it was.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from regard.recipes import RECIPES, Recipe

PAGE = Path(__file__).parent / "results.md"
HEAD = """# Results

Written by `docs/claims.py` (`make claims`) from the runs themselves, never by hand. Figures are means over the seeds, with the smallest and the largest. A claim
that fails stays here as failed.
"""


def section(found: dict[str, object], recipe: Recipe) -> list[str]:
    claims = found["claims"]
    assert isinstance(claims, list)
    rows = [f"| {'holds' if c['held'] else '**fails**'} | {c['says']} | {c['shows']} |" for c in claims]
    seeds, seconds = found["seeds"], found["seconds"]
    assert isinstance(seeds, list)
    told = f"`regard run {recipe.facts.name}`, {len(seeds)} seeds, {seconds:.0f} s in all; {found['machine']}."
    paper = f"After {recipe.facts.title}, {recipe.facts.year}, {recipe.facts.paper}."
    return [f"## {recipe.facts.name}: {recipe.question}", "", f"{paper} {told}", "", "| | claim | seen |", "| --- | --- | --- |", *rows, ""]


def sections() -> dict[str, list[str]]:
    """What the page holds now, by recipe."""
    found: dict[str, list[str]] = {}
    for part in PAGE.read_text(encoding="utf-8").split("\n## ")[1:] if PAGE.exists() else []:
        found[part.split(":")[0]] = f"## {part.rstrip()}\n".split("\n")
    return found


def main(runs: Path) -> None:
    lines, before = [HEAD], sections()
    for recipe in RECIPES:
        path = runs / recipe.facts.name / "results.json"
        if path.exists():
            lines += section(json.loads(path.read_text(encoding="utf-8")), recipe)
        elif recipe.facts.name in before:
            lines += before[recipe.facts.name]
        else:
            lines += [f"## {recipe.facts.name}: {recipe.question}", "", "Not run yet.", ""]
    PAGE.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs"))
