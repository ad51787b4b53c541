"""The lineage page: every mechanism by year and family, with its formula, its weights, what it costs, and sliders to try ideas with.

    >>> save_html("lineage.html")  # one file that opens anywhere, without a server or a network

Costs are those of `regard compare --json`, by default the ones measured for the documentation (`costs.json`). A server serves the same page
at /lineage, and `regard compare --html lineage.html` writes it with the costs on your machine.
"""

from __future__ import annotations

import base64
import json
import statistics
from collections.abc import Callable, Iterable
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import torch

from ..attention import Attention, find_mechanism, mechanisms
from ..attention.families import FAMILIES, family_of
from ..docstrings import description, formulas, notes
from ..errors import BadFile, NotSupported
from ..files import write
from .examples import example
from .html import bundle, script_hash, static_file

FORMAT, VERSION = "regard.lineage", 1
TOKENS = 32  # of the pictures
OPERATIONS = ("forward", "train", "step")
Costs = dict[str, Any]


class _Row(msgspec.Struct, frozen=True):
    mechanism: str
    length: int
    operation: str
    seconds: float | None


class _Options(msgspec.Struct, frozen=True):
    lengths: list[int]
    width: int
    heads: int
    batch_size: int
    causal: bool
    dtype: str


class _Comparison(msgspec.Struct, frozen=True):
    """Fields that are read of a comparison."""

    machine: str
    options: _Options
    rows: list[_Row]
    date: str = ""


# -- costs -------------------------------------------------------------------------------------------------------------


def costs_of(comparisons: Iterable[str | bytes]) -> Costs:
    """Collect what the page draws, from the JSON of one or several comparisons on one machine: seconds by mechanism, operation and length.

    A mechanism that was measured several times, as exact attention is in each of them, has the median.
    """
    try:
        read = [msgspec.json.decode(text, type=_Comparison) for text in comparisons]
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
        raise BadFile(f"costs: {str(wrong)[:200]}; expected what `regard compare --json` writes") from None
    if not read:
        raise BadFile("costs: no comparison; expected what `regard compare --json` writes")
    machines = {one.machine for one in read}
    if len(machines) > 1:
        raise BadFile(f"costs of {len(machines)} machines: {'; '.join(sorted(machines))}; expected one")
    o, lengths = read[0].options, sorted({length for one in read for length in one.options.lengths})
    groups = []
    for causal in sorted({one.options.causal for one in read}, reverse=True):
        found: dict[str, dict[str, dict[int, list[float]]]] = {}
        for row in (row for one in read if one.options.causal == causal for row in one.rows):
            if row.seconds is not None:
                found.setdefault(row.mechanism, {}).setdefault(row.operation, {}).setdefault(row.length, []).append(row.seconds)
        curves = {name: {operation: _curve(found[name].get(operation, {}), lengths) for operation in OPERATIONS} for name in found}
        groups.append({"causal": causal, "seconds": curves})
    return {
        "machine": read[0].machine,
        "date": max(one.date for one in read),
        "sizes": f"{o.batch_size} × {o.heads} heads of {o.width // o.heads}, {o.dtype}",
        "lengths": lengths,
        "groups": groups,
    }


def _curve(at: dict[int, list[float]], lengths: list[int]) -> list[float | None]:
    return [float(f"{statistics.median(at[length]):.3g}") if length in at else None for length in lengths]


@cache
def measured_costs() -> Costs:
    """The costs that come with the package; `machine` and `date` say where and when they were measured."""
    return json.loads(files(__package__).joinpath("costs.json").read_bytes())


# -- the page ----------------------------------------------------------------------------------------------------------


def document(costs: Costs | None = None, render: Callable[[str], list[str]] | None = None, link: str | None = None) -> dict[str, Any]:
    """Everything that the page shows, as plain values.

    `render` turns a formula in TeX into lines of MathML; without it the page shows the formulas of `regard list`. `link` is the address of a
    mechanism's page with NAME in it.
    """
    known = list(mechanisms().values())
    families = [family for family in FAMILIES if any(family_of(one) is family for one in known)]
    return {
        "format": FORMAT,
        "format_version": VERSION,
        "link": link,
        "costs": measured_costs() if costs is None else costs,
        "families": [{"title": family.title, "text": family.text} for family in families],
        "mechanisms": [_describe(one, families.index(family_of(one)), render) for one in known],
    }


def _describe(mechanism: type[Attention], family: int, render: Callable[[str], list[str]] | None) -> dict[str, Any]:
    facts, said = mechanism.facts, notes(mechanism)
    tex, where = formulas(description(mechanism)), facts.paper.where
    return {
        "name": facts.name,
        "class": mechanism.__name__,
        "summary": description(mechanism).partition("\n")[0],
        "family": family,
        "year": facts.paper.year,
        "title": facts.paper.title,
        "paper": where,
        "address": where.replace("arXiv:", "https://arxiv.org/abs/") if where.startswith("arXiv:") else None,
        "formula": facts.formula,
        "mathml": [line for one in tex for line in render(one)] if render else [],
        "time": facts.time,
        "memory": facts.memory,
        "causal": facts.causal,
        "state": None if facts.state is None else facts.state.__name__,
        "use": said.get("Use it", ""),
        "avoid": said.get("Avoid it", ""),
        "picture": _picture(facts.name),
    }


@cache
def _picture(name: str) -> dict[str, Any] | None:
    """Weights of the example: a byte per cell, 0 to 255, or around 128 where some are negative."""
    try:
        drawn = example(find_mechanism(name), TOKENS).view()
    except NotSupported:
        return None
    weights_LM = drawn.weights_BHLM[0, 0].float()
    top, signed = float(weights_LM.abs().max()), drawn.signed
    share_LM = weights_LM / max(top, 1e-9)
    cells_LM = (127.5 + 127.5 * share_LM if signed else 255 * share_LM).round().clamp(0, 255).to(torch.uint8)
    cells = base64.b64encode(cells_LM.contiguous().numpy().tobytes()).decode()
    return {"size": TOKENS, "top": float(f"{top:.3g}"), "signed": signed, "pattern": drawn.pattern, "cells": cells}


def page(data: dict[str, Any]) -> str:
    """The page as one file: scripts, styles and data inside."""
    script, style = bundle("lineage.js"), static_file("lineage.css").decode()
    policy = f"default-src 'none'; script-src {script_hash(script)}; style-src {script_hash(style)}; img-src data:"
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    return _html(head, f"<style>{style}</style>", f'<script type="module">{script}</script>', data)


def served_page(data: dict[str, Any]) -> str:
    """The page as a server serves it, with its scripts at /static/."""
    style, script = '<link rel="stylesheet" href="/static/lineage.css">', '<script type="module" src="/static/lineage.js"></script>'
    return _html("", style, script, data)


def _html(head: str, style: str, script: str, data: dict[str, Any]) -> str:
    block = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    names = ", ".join(escape(one["name"]) for one in data["mechanisms"])
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{head}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>The lineage of attention</title>\n'
        f'<link rel="icon" href="data:,">\n{style}\n</head>\n<body class="lx-page">\n<main id="lineage"><noscript>{names}</noscript></main>\n'
        f'<script type="application/json" id="data">{block}</script>\n{script}\n</body>\n</html>\n'
    )


def save_html(
    path: str | Path, costs: Costs | None = None, render: Callable[[str], list[str]] | None = None, link: str | None = None
) -> Path:
    """Write the page as one file; see `document` for the arguments."""
    write(Path(path), page(document(costs, render, link)))
    return Path(path)
