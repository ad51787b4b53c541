"""The report of a run: one HTML file that needs nothing else: claims, pictures, figures, what was compared, how to do it again."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from ._base import Figures, Outcome, Recipe, Spread, folder, machine, settings

STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem;color:#1b2733;background:#fff}
h1{font-size:1.6rem;margin-bottom:.2rem} .note{color:#5a6a78}
table{border-collapse:collapse;margin:1rem 0;width:100%} td,th{padding:.3rem .7rem;border-bottom:1px solid #dde4ea;text-align:left;vertical-align:top}
td.number{font-variant-numeric:tabular-nums;white-space:nowrap} .held{color:#13733c;font-weight:600} .failed{color:#b3261e;font-weight:600}
img{max-width:100%;height:auto;margin:1rem 0} code{background:#f0f4f7;padding:.1em .3em;border-radius:3px} .wide{overflow-x:auto}
"""


def write_report(recipe: Recipe, outcome: Outcome, pictures: list[Path]) -> Path:
    """`report.html` beside the results."""
    facts, seeds = recipe.facts, outcome.figures.seeds
    held = sum(verdict.held for verdict in outcome.verdicts)
    command = f"regard run {facts.name} --seeds {' '.join(map(str, seeds))}"
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'><title>{escape(facts.name)}</title>",
        f"<style>{STYLE}</style><h1>{escape(recipe.question)}</h1>",
        f"<p class=note>After: {escape(facts.title)}, {facts.year}, {_paper(facts.paper)}</p>",
        f"<h2>Claims: {held} of {len(outcome.verdicts)} hold</h2>",
        _claims(outcome),
        *(_picture(path) for path in pictures),
        f"<h2>Figures</h2><p class=note>Mean over the seeds {', '.join(map(str, seeds))}, and the smallest and largest of them."
        " Those of each seed are in results.json.</p>",
        *_tables(outcome.figures),
        *_compared(recipe),
        f"<h2>Again</h2><p><code>{escape(command)}</code> took {outcome.seconds:.0f} s on this machine: {escape(machine())}.</p>",
        _runs(recipe, outcome),
        "</html>",
    ]
    path = outcome.out / "report.html"
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


def _paper(paper: str) -> str:
    number = paper.removeprefix("arXiv:")
    return escape(paper) if number == paper else f"<a href='https://arxiv.org/abs/{escape(number)}'>{escape(paper)}</a>"


def _claims(outcome: Outcome) -> str:
    rows = [
        f"<tr><td class={'held' if v.held else 'failed'}>{'holds' if v.held else 'FAILS'}<td>{escape(v.says)}<td>{escape(v.shows)}"
        for v in outcome.verdicts
    ]
    return f"<div class=wide><table><tr><th><th>claim<th>seen{''.join(rows)}</table></div>"


def _tables(figures: Figures) -> list[str]:
    """One table of the plain figures; "exact match, 1–6 words" and its like stand in a table "exact match" of their own."""
    names = list(dict.fromkeys(name for each in figures.seen.values() for name in each[0]))
    groups: dict[str, dict[str, str]] = {"": {}}
    for name in names:
        head, comma, tail = name.partition(", ")
        groups.setdefault(head if comma else "", {})[tail or name] = name
    return [(f"<h3>{escape(head)}</h3>" if head else "") + _table(figures, columns) for head, columns in groups.items() if columns]


def _table(figures: Figures, columns: Mapping[str, str]) -> str:
    rows = [
        [variant, *(str(Spread([one[name] for one in each])) if name in each[0] else "" for name in columns.values())]
        for variant, each in figures.seen.items()
        if any(name in each[0] for name in columns.values())
    ]
    return _html(["variant", *columns], rows, "number")


def _compared(recipe: Recipe) -> list[str]:
    """What the variants share, and what each has of its own."""
    known = {name: found for name in recipe.variants if (found := settings(recipe, name))}
    if not known:
        return []
    every = list(known.values())
    shared = {key: value for key, value in every[0].items() if all(one.get(key) == value for one in every)}
    rows = [[name, _listed({key: value for key, value in one.items() if key not in shared})] for name, one in known.items()]
    return [
        "<h2>What was compared</h2>",
        _html(["variant", "its own"], rows),
        f"<p class=note>The same for all: {escape(_listed(shared))}.</p>",
    ]


def _listed(found: Mapping[str, str]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in found.items())


def _runs(recipe: Recipe, outcome: Outcome) -> str:
    """How to go on with trained models, where there are some."""
    for name in recipe.variants:
        trained = folder(outcome.out, name, outcome.figures.seeds[0])
        if (trained / "config.json").exists():
            return f"<p>Each trained model stays, by variant and seed: <code>regard evaluate {escape(str(trained))}</code>, and so on.</p>"
    return ""


def _html(head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "text") -> str:
    body = "".join(f"<tr><th>{escape(first)}" + "".join(f"<td class={kind}>{escape(cell)}" for cell in cells) for first, *cells in rows)
    return f"<div class=wide><table><tr>{''.join(f'<th>{escape(name)}' for name in head)}{body}</table></div>"


def _picture(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f"<img alt='{escape(path.stem)}' src='data:image/png;base64,{data}'>"
