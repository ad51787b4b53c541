"""The report of a run: one self-contained HTML file with claims, pictures, metrics, what was compared, and how to reproduce it."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from .base import Outcome, Recipe, variant_folder, variant_settings
from .claims import Results, Verdict
from .parts import describe_machine

STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem;color:#1b2733;background:#fff}
h1{font-size:1.6rem;margin-bottom:.2rem} .note{color:#5a6a78}
table{border-collapse:collapse;margin:1rem 0;width:100%} td,th{padding:.3rem .7rem;border-bottom:1px solid #dde4ea;text-align:left;vertical-align:top}
td.number{font-variant-numeric:tabular-nums;white-space:nowrap} .held{color:#13733c;font-weight:600} .failed{color:#b3261e;font-weight:600} .open{color:#8a5a00;font-weight:600}
img{max-width:100%;height:auto;margin:1rem 0} code{background:#f0f4f7;padding:.1em .3em;border-radius:3px} .wide{overflow-x:auto}
"""


CLASSES = {"holds": "held", "fails": "failed", "undecided": "open"}


def write_page(path: Path, title: str, heading: str, parts: Iterable[str]) -> Path:
    """A self-contained HTML file; `parts` are HTML, the title and the heading are text."""
    head = f"<meta charset=utf-8><meta name=viewport content='width=device-width'><title>{escape(title)}</title><style>{STYLE}</style>"
    path.write_text("\n".join([f"<!doctype html><html lang=en>{head}<h1>{escape(heading)}</h1>", *parts, "</html>"]), encoding="utf-8")
    return path


def image(path: Path) -> str:
    """A PNG as an HTML element that holds its bytes."""
    data = base64.b64encode(path.read_bytes()).decode()
    return f"<img alt='{escape(path.stem)}' src='data:image/png;base64,{data}'>"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "text") -> str:
    """Cells of plain text, the first of each row a heading; `kind` is the class of the others: text or number."""
    body = "".join(f"<tr><th>{escape(first)}" + "".join(f"<td class={kind}>{escape(cell)}" for cell in cells) for first, *cells in rows)
    return f"<div class=wide><table><tr>{''.join(f'<th>{escape(name)}' for name in head)}{body}</table></div>"


def write_report(recipe: Recipe, outcome: Outcome, pictures: list[Path]) -> Path:
    """`report.html` beside the results."""
    facts, seeds = recipe.facts, outcome.results.seeds
    held = sum(verdict.held for verdict in outcome.verdicts)
    command = f"regard run {facts.name} --seeds {' '.join(map(str, seeds))}"
    parts = [
        f"<p class=note>After: {escape(facts.title)}, {facts.year}, {_paper(facts.paper)}</p>",
        f"<h2>Claims: {held} of {len(outcome.verdicts)} hold</h2>",
        _claims(outcome),
        *(image(path) for path in pictures),
        f"<h2>Metrics</h2><p class=note>Mean over the seeds {', '.join(map(str, seeds))}, with minimum and maximum."
        " results.json has the metrics of each seed.</p>",
        *_metrics(outcome.results),
        *_compared(recipe),
        f"<h2>Reproduce</h2><p><code>{escape(command)}</code> took {outcome.seconds:.0f} s on this machine: {escape(describe_machine())}.</p>",
        _trained_runs(recipe, outcome),
    ]
    return write_page(outcome.out / "report.html", facts.name, recipe.question, parts)


def _paper(paper: str) -> str:
    number = paper.removeprefix("arXiv:")
    return escape(paper) if number == paper else f"<a href='https://arxiv.org/abs/{escape(number)}'>{escape(paper)}</a>"


def _claims(outcome: Outcome) -> str:
    rows = [
        f"<tr><td class={CLASSES[v.decision]}>{v.decision}<td>{escape(v.claim)}"
        f"<td>{escape(', '.join(filter(None, (v.kind, v.source))))}<td>{escape(v.evidence)}<td class=number>{escape(margin_of(v))}"
        for v in outcome.verdicts
    ]
    return f"<div class=wide><table><tr><th><th>claim<th>kind<th>measured<th>margin, 95 % interval{''.join(rows)}</table></div>"


def margin_of(verdict: Verdict) -> str:
    """The margin with its interval, and p."""
    if verdict.reason:
        return verdict.reason
    p = "" if verdict.p is None else f"; p {verdict.p:.1g}" if verdict.p >= 1e-6 else "; p < 1e-6"
    return f"{verdict.margin:+.3g} ({verdict.low:.3g} to {verdict.high:.3g}){p}; {verdict.agree} of {verdict.seeds} seeds"


def _metrics(results: Results) -> list[str]:
    """One table of plain metrics; those called "bleu, 1–6 words" and so on are in a table "bleu" of their own."""
    names = list(dict.fromkeys(name for seeds in results.metrics.values() for name in seeds[0]))
    groups: dict[str, dict[str, str]] = {"": {}}
    for name in names:
        head, comma, tail = name.partition(", ")
        groups.setdefault(head if comma else "", {})[tail or name] = name
    tables = []
    for head, columns in groups.items():
        rows = [
            [variant, *(str(results[variant, name]) if name in seeds[0] else "" for name in columns.values())]
            for variant, seeds in results.metrics.items()
            if any(name in seeds[0] for name in columns.values())
        ]
        if columns:
            tables.append((f"<h3>{escape(head)}</h3>" if head else "") + table(["variant", *columns], rows, "number"))
    return tables


def _compared(recipe: Recipe) -> list[str]:
    """The settings that differ between variants, and those they share."""
    known = {name: settings for name in recipe.variants if (settings := variant_settings(recipe, name))}
    if not known:
        return []
    first, *others = known.values()
    shared = {key: value for key, value in first.items() if all(one.get(key) == value for one in others)}
    rows = [[name, _join({key: value for key, value in one.items() if key not in shared})] for name, one in known.items()]
    notes = [f"<p class=note>The same for all: {escape(_join(shared))}.</p>"] if shared else []
    return ["<h2>What was compared</h2>", table(["variant", "its own settings"], rows), *notes]


def _join(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in settings.items() if value != "None") or "–"


def _trained_runs(recipe: Recipe, outcome: Outcome) -> str:
    """Explain how to use the trained models, where there are some."""
    for name in recipe.variants:
        trained = variant_folder(outcome.out, name, outcome.results.seeds[0])
        if (trained / "config.json").exists():
            return (
                f"<p>Each trained model is kept, by variant and seed: <code>regard evaluate {escape(str(trained))}</code>, and so on.</p>"
            )
    return ""
