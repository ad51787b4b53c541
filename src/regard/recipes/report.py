"""The report of a run: one HTML file that needs nothing else, with claims, figures and pictures."""

from __future__ import annotations

import base64
from html import escape
from pathlib import Path

from ._base import Figures, Outcome, Recipe, Spread, machine

STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem;color:#1b2733;background:#fff}
h1{font-size:1.6rem;margin-bottom:.2rem} .note{color:#5a6a78}
table{border-collapse:collapse;margin:1rem 0;width:100%} td,th{padding:.3rem .7rem;border-bottom:1px solid #dde4ea;text-align:left;vertical-align:top}
td.number{font-variant-numeric:tabular-nums;white-space:nowrap} .held{color:#13733c;font-weight:600} .failed{color:#b3261e;font-weight:600}
img{max-width:100%;height:auto;margin:1rem 0} code{background:#f0f4f7;padding:.1em .3em;border-radius:3px} .wide{overflow-x:auto}
"""


def write_report(recipe: Recipe, outcome: Outcome, pictures: list[Path]) -> Path:
    """`report.html` beside the results."""
    facts = recipe.facts
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'><title>{escape(facts.name)}</title>",
        f"<style>{STYLE}</style><h1>{escape(recipe.question)}</h1>",
        f"<p class=note><code>regard run {escape(facts.name)}</code> · {escape(facts.title)}, {facts.year}, {escape(facts.paper)}</p>",
        "<h2>Claims</h2>",
        _claims(outcome),
        *(_picture(path) for path in pictures),
        "<h2>Figures</h2><p class=note>Mean over the seeds, and the smallest and largest of them.</p>",
        _table(outcome.figures),
        f"<p class=note>{escape(machine())}; {outcome.seconds:.0f} s in all.</p></html>",
    ]
    path = outcome.out / "report.html"
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


def _claims(outcome: Outcome) -> str:
    rows = [
        f"<tr><td class={'held' if v.held else 'failed'}>{'holds' if v.held else 'FAILS'}<td>{escape(v.says)}<td>{escape(v.shows)}"
        for v in outcome.verdicts
    ]
    return f"<div class=wide><table><tr><th><th>claim<th>seen{''.join(rows)}</table></div>"


def _table(figures: Figures) -> str:
    names = list(dict.fromkeys(name for each in figures.seen.values() for name in each[0]))
    head = "".join(f"<th>{escape(name)}" for name in names)
    rows = []
    for variant, each in figures.seen.items():
        cells = [f"<td class=number>{Spread([one[name] for one in each])}" if name in each[0] else "<td>" for name in names]
        rows.append(f"<tr><td>{escape(variant)}{''.join(cells)}")
    return f"<div class=wide><table><tr><th>variant{head}{''.join(rows)}</table></div>"


def _picture(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f"<img alt='{escape(path.stem)}' src='data:image/png;base64,{data}'>"
