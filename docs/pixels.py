"""Draw the pictures of docs/pixels.md from two runs: `python docs/pixels.py runs/pixels runs/sharper`, of `regard train pixels` without and with
--super-resolution 4."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from regard.look.images import enlarge, png_of, sheet
from regard.tasks import attention_maps, load_run, task_of
from regard.tasks.pixels import UNKNOWN, PixelLookOptions

PICTURES = Path(__file__).parent / "pictures"
IMAGES, SAMPLES = 5, 4


def completions(folder: str) -> bytes:
    """A row per test image: the image, what is given of it, and samples."""
    run = load_run(folder)
    task = task_of(run)
    images = run.processor.encode(task.test_data(run, None).pixels[:IMAGES])
    source, keep = run.processor.source(images), 0 if run.processor.factor > 1 else run.processor.size[0] // 2
    given = run.processor.decode(images).copy()
    given[:, keep:] = UNKNOWN
    if source is not None:
        given = run.processor.decode(source).repeat(run.processor.factor, 1).repeat(run.processor.factor, 2)
    generator = torch.Generator().manual_seed(0)
    drawn = [run.processor.decode(run.model.complete(images, keep, source, generator=generator)) for _ in range(SAMPLES)]
    rows = np.stack([run.processor.decode(images), given, *drawn], 1)
    return png_of(sheet([enlarge(image, 128) for row in rows for image in row], columns=2 + SAMPLES))


def attention(folder: str, path: Path) -> None:
    """What some pixels of a test image attend to."""
    from PIL import Image

    run = load_run(folder)
    file = path.with_name("digit.png")
    Image.fromarray(task_of(run).test_data(run, None)[2].pixels).save(file)
    _, maps = attention_maps(run, str(file), options=PixelLookOptions())
    maps.save_png(path)
    file.unlink()


if __name__ == "__main__":
    plain, sharper = sys.argv[1:]
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / "completions.png").write_bytes(completions(plain))
    (PICTURES / "super-resolution.png").write_bytes(completions(sharper))
    attention(plain, PICTURES / "pixel-attention.png")
