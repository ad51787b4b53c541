"""Draw the picture of docs/video.md from a run of `regard train video`: `python docs/video.py runs/motion`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from regard.data.clips import moving_digits
from regard.tasks import attention_maps, load_run

PICTURES = Path(__file__).parent / "pictures"


if __name__ == "__main__":
    run = load_run(sys.argv[1])
    PICTURES.mkdir(exist_ok=True)
    clip = PICTURES / "clip.npy"
    np.save(clip, moving_digits().test[11].pixels)
    print(moving_digits().test[11].label)
    text, maps = attention_maps(run, str(clip), "*")
    print(text)
    maps.save_png(PICTURES / "frames.png")
    clip.unlink()
