"""Draw the pictures of docs/handwriting.md from the runs of two recipes: `python docs/handwriting.py RUNS`.

RUNS holds what `regard run graves2013 --out RUNS/graves2013` and `regard run draw2015 --out RUNS/draw2015` have written.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from PIL import Image

from regard.data.labelled_images import read_digits
from regard.look.pen import draw_strokes
from regard.look.pictures import png
from regard.tasks import load_run, predict
from regard.tasks.draw import RedrawOptions
from regard.tasks.handwriting import HandwritingTask, WriteOptions

PICTURES = Path(__file__).parent / "pictures"
TEXT = "pay attention"


def save(name: str, content: bytes) -> None:
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / name).write_bytes(content)
    print(f"wrote {PICTURES / name}, {len(content):,} bytes")


def handwriting(recipe: Path) -> None:
    run = load_run(recipe / "window" / "0")
    task = HandwritingTask()
    written = task.write(run, TEXT, WriteOptions(bias=2.0, seed=1))
    save("handwriting.png", png(draw_strokes(written.points_L3.numpy(), TEXT, written.weights_LM.numpy())))
    for name, prime in (("slanted", "hershey:scripts,seed=11"), ("small", "hershey:scripts,seed=5")):
        written = task.write(run, TEXT, WriteOptions(bias=2.0, prime=prime))
        save(f"handwriting-{name}.png", png(draw_strokes(written.points_L3.numpy())))
    save("handwriting-variants.png", (recipe / "handwriting.png").read_bytes())


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
