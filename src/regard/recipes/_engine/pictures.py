"""Pictures that several recipes draw: curves of a metric, attention maps of trained models, alignments of translators."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from ..._extras import extra
from ...look import Map
from ...models import Translator
from ...tasks import alignment, load_run
from .base import variant_folder
from .claims import Results
from .statistics import Sample


def series(results: Results, metric: str) -> dict[str, dict[int, Sample]]:
    """The metrics "metric, … 12 …" of each variant that has some, by the last number in their names."""
    found = {
        variant: {
            int(re.findall(r"\d+", name)[-1]): results[variant, name] for name in seeds[0] if re.match(rf"{re.escape(metric)}, .*\d", name)
        }
        for variant, seeds in results.metrics.items()
    }
    return {variant: points for variant, points in found.items() if points}


@dataclass(frozen=True, kw_only=True)
class Curves:
    """A `series` of a metric: one line per variant (those whose names begin with `among`), a band from the worst seed to the best."""

    metric: str
    file: str
    x: str
    y: str
    title: str
    log: Literal["", "x", "xy"] = ""
    among: str = ""

    def __call__(self, results: Results, out: Path) -> Path:
        with extra("look"):
            from matplotlib.figure import Figure  # slow to import

        curves = {name: points for name, points in series(results, self.metric).items() if name.startswith(self.among)}
        figure = Figure(figsize=(9, 4.2), layout="constrained")
        axis = figure.subplots()
        for n, (name, points) in enumerate(curves.items()):
            at, dashes = sorted(points), ("-", "--", ":")[n // 10 % 3]  # there are ten colours
            (line,) = axis.plot(at, [points[p].mean for p in at], dashes, marker="o", markersize=4, label=name)
            low, high = [points[p].low for p in at], [points[p].high for p in at]
            axis.fill_between(at, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        axis.set(xlabel=self.x, ylabel=self.y, title=self.title)
        if "x" in self.log:
            axis.set_xscale("log", base=2)
            at = sorted({p for points in curves.values() for p in points})
            axis.set_xticks(at, [f"{p:,}" for p in at])
        if "y" in self.log:
            axis.set_yscale("log")
        axis.grid(alpha=0.25)
        figure.legend(loc="outside right upper", frameon=False, fontsize=8 if len(curves) > 6 else None)  # beside the lines, never on them
        axis.spines[["top", "right"]].set_visible(False)
        figure.savefig(out / f"{self.file}.png", dpi=150)
        return out / f"{self.file}.png"


def validation_curves(metric: Literal["loss", "accuracy"], among: str = "") -> Curves:
    """A metric on validation data by step."""
    y, suffix = {"loss": "loss per token (nats)", "accuracy": "accuracy"}[metric], f"_{among}" if among else ""
    title = f"Validation {metric}" + (f": {among}" if among else "")
    return Curves(metric=f"validation {metric}", file=f"validation_{metric}{suffix}", x="step", y=y, title=title, among=among)


class Watched(Protocol):
    """A variant whose attention can be drawn: `PuzzleVariant`, for example."""

    def attention_map(self, out: Path, layer: int = -1) -> Map: ...


@dataclass(frozen=True, kw_only=True)
class AttentionMaps:
    """Attention maps of trained variants on the first test sequence, for the first seed: the mean over the heads of each of `layers`."""

    variants: Mapping[str, Watched]
    columns: int
    layers: tuple[int, ...] = (-1,)

    def __call__(self, results: Results, out: Path) -> Path:
        maps = {
            name if len(self.layers) == 1 else f"{name}, {layer + 1}": variant.attention_map(
                variant_folder(out, name, results.seeds[0]), layer
            )
            for name, variant in self.variants.items()
            for layer in self.layers
        }
        return draw_maps(out / "attention.png", maps, self.columns)


@dataclass(frozen=True, kw_only=True)
class Alignments:
    """Alignment of each trained translator to the source while it writes its own translation of `sentence`, for the first seed."""

    variants: tuple[str, ...]
    sentence: str
    columns: int

    def __call__(self, results: Results, out: Path) -> Path:
        runs = {name: load_run(variant_folder(out, name, results.seeds[0]), Translator) for name in self.variants}
        return draw_maps(out / "alignments.png", {name: alignment(run, self.sentence)[1] for name, run in runs.items()}, self.columns)


def draw_maps(path: Path, maps: Mapping[str, Map], columns: int) -> Path:
    """A small matrix per map, queries down: the first sequence of the batch, the first head; tokens beside it where they are known.

    White is 0, and the darkest colour 1, or what the title says: maps without large weights would otherwise be blank.
    """
    with extra("look"):
        from matplotlib.figure import Figure

    height = -(-len(maps) // columns)
    figure = Figure(figsize=(2.6 * columns, 2.9 * height), layout="constrained")
    axes = figure.subplots(height, columns, squeeze=False).ravel()
    for axis in axes:
        axis.set_axis_off()
    for axis, (name, drawn) in zip(axes, maps.items(), strict=False):
        weights_LM = drawn.weights_BHLM[0, 0]
        largest = float(weights_LM.abs().max())
        top = largest if drawn.signed or 0 < largest < 0.5 else 1.0
        cmap, bottom = ("RdBu", -top) if drawn.signed else ("Blues", 0.0)
        axis.set_axis_on()
        axis.imshow(weights_LM.numpy(), cmap=cmap, vmin=bottom, vmax=top, interpolation="nearest", aspect="auto")
        if drawn.key_labels:
            queries, keys = drawn.labels()
            axis.set_xticks(range(len(keys)), keys, rotation=90, fontsize=6, parse_math=False)
            axis.set_yticks(range(len(queries)), queries, fontsize=6, parse_math=False)
        else:
            axis.tick_params(labelsize=6)
        axis.set_title(name if top == 1 else f"{name} (to {top:.2g})", fontsize=9, parse_math=False)
    figure.savefig(path, dpi=150)
    return path
