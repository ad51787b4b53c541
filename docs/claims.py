"""Run recipes whose records are missing or stale, and write docs/results.md from the records in docs/results, and from nothing else.

    python docs/claims.py                          write the page
    python docs/claims.py --run [NAME …]           run what is missing or stale, or these; one process of one thread per core
    python docs/claims.py --check                  run one reporting seed of what ran with other code, and compare it with the record

A run that was stopped goes on where it was: finished seeds are kept below runs/claims.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from regard.attention import mechanisms
from regard.models import models
from regard.recipes import RECIPES, Recipe
from regard.recipes._engine.coverage import ORACLE, REIMPLEMENTED, named
from regard.recipes._engine.record import RECORDS, read_record, state_of

DOCS = Path(__file__).parent
PAGE = DOCS / "results.md"
RUNS = DOCS.parent / "runs" / "claims"
HEAD = """# Results

Papers' claims, run at a scale of minutes on a CPU, each beside the ablation that must lose. This page is written from the records in `docs/results`; no
figure is entered by hand.

- **claim**: of the paper; **level**: a number is reached; **control**: must hold unless something is broken.
- Every variant that trains gets the same tuning: three learning rates with one tuning seed, the best on validation data. What is reported was trained
  with other seeds, 100 and up, and measured on test data.
- A claim **holds** if the difference exceeds the margin that it names, by Student's t over seeds and test items, corrected for the number of claims of
  the recipe (Holm); it **fails** if it is below by the same rule. Recipes look after three, five and eight seeds and spend an error of 0.05 in all; what is
  open then is **undecided**. A comparison with a reference that has not learned is undecided, too.
- *stale*: settings, claims or seeds of the recipe have changed since; *code changed*: only modules that the run used have.

Results from before these rules, with settings that were chosen on the seeds that are shown, are in [earlier results](results-earlier.md).
"""


def records() -> dict[str, dict[str, Any]]:
    return {recipe.facts.name: record for recipe in RECIPES if (record := read_record(recipe.facts.name)) is not None}


def page() -> str:
    known = records()
    states = {recipe.facts.name: state_of(recipe, known.get(recipe.facts.name)) for recipe in RECIPES}
    lines = [HEAD, *_overview(known, states), ""]
    for recipe in RECIPES:
        lines += _section(recipe, known.get(recipe.facts.name), states[recipe.facts.name])
    lines += _coverage()
    return "\n".join(lines).rstrip() + "\n"


def _overview(known: dict[str, dict[str, Any]], states: dict[str, str]) -> list[str]:
    """Counts, and a line per recipe."""
    counts = Counter((c["kind"], c["decision"]) for name, record in known.items() if states[name] != "stale" for c in record["claims"])
    stated = Counter(states.values())
    rows = [
        f"| {kind} | " + " | ".join(str(counts[kind, d]) for d in ("holds", "fails", "undecided")) + " |"
        for kind in ("claim", "level", "control")
    ]
    table = ["| | holds | fails | undecided |", "| --- | --- | --- | --- |", *rows, ""]
    return [*table, "Recipes: " + ", ".join(f"{count} {state}" for state, count in stated.items()) + "."]


def _section(recipe: Recipe, record: dict[str, Any] | None, state: str) -> list[str]:
    facts = recipe.facts
    lines = [f"## {facts.name}: {recipe.question}", "", f"After {facts.title}, {facts.year}, {facts.paper}.", ""]
    if record is None:
        return [*lines, f"Not run yet under these rules: `regard run {facts.name}`.", ""]
    seeds = f"seeds {record['seeds'][0]} to {record['seeds'][-1]}"
    where = f"at {', '.join(record['commits'])}, {record['date']}; {record['machine']}; {record['seconds']:,.0f} s of CPU time"
    mark = "" if state == "current" else f"**{state}**. "
    lines += [f"{mark}`regard run {facts.name}`, {seeds}, {where}.", ""]
    lines += ["| | claim | measured | margin, 95 % interval | p | seeds | n |", "| --- | --- | --- | --- | --- | --- | --- |"]
    lines += [_row(claim) for claim in record["claims"]]
    lines += ["", *_variants(record), *_pictures(facts.name)]
    return lines


def _coverage() -> list[str]:
    """Recipes with a claim about each mechanism and model, or the test that compares it with public code."""
    found = named(RECIPES)
    lines = [
        "## Claims by mechanism and model",
        "",
        "Recipes in which a claim compares a variant that is built with it. Models without a claim are reimplementations: their outputs and",
        f"checkpoints are equal to those of transformers, by `{ORACLE}`.",
        "",
    ]
    for kind, names in (("mechanism", mechanisms()), ("model", models())):
        lines += [f"| {kind} | |", "| --- | --- |"]
        for name in names:
            recipes = ", ".join(f"`{one}`" for one in found.get(name, ()))
            lines.append(f"| `{name}` | {recipes or f'equal to transformers: `{REIMPLEMENTED[name]}`'} |")
        lines.append("")
    return lines


def _row(claim: dict[str, Any]) -> str:
    decision = claim["decision"] if claim["decision"] == "holds" else f"**{claim['decision']}**"
    kind = ", ".join(filter(None, (claim["kind"], claim["source"])))
    margin = claim["reason"] or f"{claim['margin']:+.3g} ({claim['low']:.3g} to {claim['high']:.3g})"
    p = "" if claim["p"] is None else f"{claim['p']:.1g}" if claim["p"] >= 1e-6 else "< 1e-6"
    return f"| {decision} | {claim['claim']} ({kind}) | {claim['evidence']} | {margin} | {p} | {claim['agree']}/{claim['seeds']} | {claim['items'] or ''} |"


def _variants(record: dict[str, Any]) -> list[str]:
    """All variants, those without a claim, too: size, CPU time, rate that tuning chose, and the first metric by seed."""
    rows = []
    for name, seeds in record["metrics"].items():
        first = "accuracy" if "accuracy" in seeds[0] else next(iter(seeds[0]))
        by_seed = ", ".join(f"{seed[first]:.3g}" for seed in seeds)
        size = f"{seeds[0]['parameters']:,.0f}" if "parameters" in seeds[0] else ""
        losses = record["tuning"].get(name, {})
        rate = f"× {min(losses, key=lambda one: losses[one])}" if losses else ""
        rows.append(f"| {name} | {size} | {rate} | {first}: {by_seed} |")
    return [
        "<details><summary>All variants</summary>",
        "",
        "| variant | parameters | learning rate | by seed |",
        "| --- | --- | --- | --- |",
        *rows,
        "",
        "</details>",
        "",
    ]


def _pictures(name: str) -> list[str]:
    return [line for path in sorted((DOCS / "results").glob(f"{name}-*.png")) for line in (f"![{path.stem}](results/{path.name})", "")]


# -- running -------------------------------------------------------------------------------------------------------------


def run(names: Sequence[str], jobs: int) -> None:
    """Run recipes, cheap ones first as far as that is known, and keep their records."""
    known = {recipe.facts.name: recipe for recipe in RECIPES}
    stored = records()
    todo = list(names) or [name for name, recipe in known.items() if state_of(recipe, stored.get(name)) in ("stale", "not run")]
    todo.sort(key=lambda name: stored[name]["seconds"] if name in stored else 1e9)
    cost = sum(stored[name]["seconds"] for name in todo if name in stored)
    fresh = sum(name not in stored for name in todo)
    print(f"{len(todo)} recipes: {cost / 3600:.1f} h of CPU time by their records, and {fresh} that have none", flush=True)

    def one(name: str) -> None:
        command = [sys.executable, "-m", "regard", "run", name, "--out", str(RUNS / name)]
        RUNS.mkdir(parents=True, exist_ok=True)
        with (RUNS / f"{name}.log").open("a") as log:
            code = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=log, stderr=log).returncode
        print(f"{name}: exit {code}", flush=True)
        if code == 0:
            keep(name)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, todo))


def keep(name: str) -> None:
    """Copy the record and the pictures of a run into the documentation, and write the page."""
    RECORDS.mkdir(parents=True, exist_ok=True)
    shutil.copy(RUNS / name / "results.json", RECORDS / f"{name}.json")
    for picture in (RUNS / name).glob("*.png"):
        shutil.copy(picture, RECORDS / f"{name}-{picture.name}")
    PAGE.write_text(page(), encoding="utf-8")


def check() -> int:
    """Run the first reporting seed of recipes whose code has changed: each metric must be within the range of its record, widened by half."""
    wrong = 0
    for recipe in RECIPES:
        record = read_record(name := recipe.facts.name)
        if record is None or state_of(recipe, record) != "code changed":
            continue
        out = RUNS / "check" / name
        subprocess.run([sys.executable, "-m", "regard", "run", name, "--seeds", str(recipe.seeds[0]), "--out", str(out)], check=True)
        found = json.loads((out / "results.json").read_text())["metrics"]
        for variant, seeds in record["metrics"].items():
            for metric in [key for claim in recipe.claims for c in claim.comparisons for v, key in c.value.keys if v == variant]:
                values = [seed[metric] for seed in seeds]
                room = 0.5 * (max(values) - min(values)) + 1e-3 * abs(values[0])
                now = found[variant][0][metric]
                if not min(values) - room <= now <= max(values) + room:
                    wrong += 1
                    print(f"{name}: {variant}, {metric}: {now:.4g}, the record has {min(values):.4g} to {max(values):.4g}")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", nargs="*", metavar="NAME", help="run what is missing or stale, or these recipes")
    parser.add_argument(
        "--jobs", type=int, default=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, help="processes"
    )
    parser.add_argument("--check", action="store_true", help="compare one seed of what ran with other code with its record")
    given = parser.parse_args()
    if given.check:
        sys.exit(1 if check() else 0)
    if given.run is not None:
        run(given.run, given.jobs)
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
