"""A cost curve as SVG: time against length, both logarithmic; the mechanism, exact attention, and all others faint."""

from __future__ import annotations

import math
from typing import Any

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 260, 60, 16, 10, 34


def cost_chart(costs: dict[str, Any], group: dict[str, Any], name: str, operation: str = "train") -> str:
    """Colours come from the style sheet, so that the chart follows the theme."""
    curves = {each: of[operation] for each, of in group["seconds"].items()}
    if not any(curves[name]):
        operation, curves = "forward", {each: of["forward"] for each, of in group["seconds"].items()}
    seconds = [s for curve in curves.values() for s in curve if s]
    low, high = math.log10(min(seconds)), math.log10(max(seconds))
    first, last = math.log2(costs["lengths"][0]), math.log2(costs["lengths"][-1])

    def x(length: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log2(length) - first) / max(last - first, 1e-9)

    def y(s: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (math.log10(s) - low) / max(high - low, 1e-9)

    def line(curve: list[float | None], style: str) -> str:
        points = " ".join(f"{x(length):.1f},{y(s):.1f}" for length, s in zip(costs["lengths"], curve, strict=True) if s)
        return f'<polyline class="{style}" points="{points}"/>'

    parts = []
    for power in range(math.ceil(low), math.floor(high) + 1):
        at = y(10**power)
        parts.append(f'<line class="gridline" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{milliseconds(10**power)}</text>')
    for length in costs["lengths"]:
        anchor = "end" if length == costs["lengths"][-1] else "middle"
        parts.append(f'<text x="{x(length):.1f}" y="{HEIGHT - 12}" text-anchor="{anchor}">{length:,}</text>')
    parts += [line(curve, "other") for each, curve in curves.items() if each not in (name, "softmax")]
    parts += [line(curves["softmax"], "exact")] if "softmax" in curves else []
    parts += [line(curves[name], "mine")] if name != "softmax" else []
    title = {"train": "Forward + backward", "forward": "Forward", "step": "One step of decoding"}[operation]
    label = f"{title} against tokens, both logarithmic: {name}, exact attention dashed, all others faint"
    return (
        f'<figure class="cost"><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
        f"<figcaption>{title} against tokens: {name}; dashed, exact attention; faint, all others.</figcaption></figure>"
    )


def milliseconds(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= 0.9995 * size:
            return f"{float(f'{seconds / size:.3g}'):g} {unit}"
    return f"{float(f'{seconds * 1e6:.3g}'):g} µs"
