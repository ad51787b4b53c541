"""Draw the pictures of docs/handwriting.md from the runs of two recipes: `python docs/handwriting.py RUNS`.

RUNS holds what `regard run graves2013 --out RUNS/graves2013` and `regard run draw2015 --out RUNS/draw2015` have written.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from regard.data.labelled_images import read_digits
from regard.look.axes import new_figure
from regard.look.pictures import png
from regard.tasks import load_run, predict
from regard.tasks.draw import RedrawOptions
from regard.tasks.handwriting import HandwritingTask, WriteOptions, first_writing
from regard.tasks.handwriting_pictures import Points, curves, draw_strokes, pen_path

PICTURES = Path(__file__).parent / "pictures"
TEXT = "pay attention"
HANDS = tuple(f"hershey:scripts,seed={seed}" for seed in (11, 5, 3))  # the first line of each is written by another writer


def save(name: str, content: bytes) -> None:
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / name).write_bytes(content)
    print(f"wrote {PICTURES / name}, {len(content):,} bytes")


def handwriting(recipe: Path) -> None:
    run = load_run(recipe / "window" / "0")
    task = HandwritingTask()
    written = task.write(run, TEXT, WriteOptions(bias=2.0, seed=5))
    save("handwriting.png", png(draw_strokes(written.points_L3.numpy(), TEXT, written.weights_LM.numpy())))
    rows = []
    for prime in HANDS:
        first, written = first_writing(prime), task.write(run, TEXT, WriteOptions(bias=2.0, prime=prime))
        rows.append((run.processor.points(first).numpy(), written.points_L3.numpy()))
    save("hands.png", png(side_by_side(rows)))
    save("handwriting-variants.png", (recipe / "handwriting.png").read_bytes())


def side_by_side(rows: list[tuple[Points, Points]]) -> Figure:
    """Grey: a line that is given; black: what is written in its hand, at the same scale."""
    figure = new_figure(11, 1.3 * len(rows))
    for row, axes in zip(rows, figure.subplots(len(rows), 2, squeeze=False, sharex="col", sharey=True, width_ratios=(1, 1.6)), strict=True):
        for axis, points, colour in zip(axes, row, ("0.6", "#1a1a2e"), strict=True):
            strokes = pen_path(points)
            low, high = np.concatenate(strokes).min(0), np.concatenate(strokes).max(0)
            for stroke in strokes:
                axis.plot(
                    *(curves(stroke) - (low[0], (low[1] + high[1]) / 2)).reshape(-1, 2).T,
                    color=colour,
                    linewidth=1.6,
                    solid_capstyle="round",
                )
            axis.set_aspect("equal")
            axis.set_axis_off()
    figure.axes[0].invert_yaxis()  # shared by all
    return figure


def drawing(recipe: Path) -> None:
    run = load_run(recipe / "attention" / "0")
    with tempfile.TemporaryDirectory() as folder:
        digit = Path(folder) / "digit.png"
        Image.fromarray(read_digits()[0][3]).save(digit)
        (found,) = predict(run, [str(digit)], RedrawOptions(samples=4, seed=2))
        save("draw.png", found.files[".png"])
        save("draw.gif", found.files[".gif"])


if __name__ == "__main__":
    runs = Path(sys.argv[1] if len(sys.argv) > 1 else "runs")
    handwriting(runs / "graves2013")
    drawing(runs / "draw2015")
