"""Draw the pictures of docs/functions.md from two runs: `python docs/functions.py runs/functions runs/completion`, of `regard train functions` without
and with --data digits:."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from regard.baselines import Kernel
from regard.look import capture
from regard.look.pictures import png
from regard.models import ProcessModel
from regard.tasks import load_run, task_of
from regard.tasks.function_pictures import Band, draw_bands, draw_pixels
from regard.tasks.function_processor import arranged
from regard.tasks.measuring import answer

PICTURES = Path(__file__).parent / "pictures"
KNOWN = (5, 20, 50)
PLACE = 0.7  # whose attention is drawn


def bands(folder: str) -> bytes:
    """Test functions of each kernel with 5, 20 and 50 known points, beside the exact posterior, and the attention of one place."""
    run, panels = load_run(folder, ProcessModel), []
    task = task_of(run)
    test = task.test_data(run, None)
    for kind in ("rbf", "matern", "periodic"):
        one = next(each for each in test if each.kernel.kind == kind and 0.4 < each.kernel.length < 0.7)
        for known in KNOWN:
            given = arranged(one, 1, (known, known))
            places = np.append(np.linspace(-2, 2, 120), PLACE).astype(np.float32)[:, None]
            asked = given._replace(x=np.concatenate([given.x[:known], places]), y=np.concatenate([given.y[:known], 0 * places]))
            with capture(run.model) as maps:
                (found,) = answer(task, run.model, [asked], None)
            weights = (PLACE, float(found.mean_TY[-1, 0]), maps.all[-1].head().weights_BHLM[0, 0, -1].tolist())
            panels.append(Band.of(asked, found.mean_TY, found.std_TY, one.kernel, title=title(one.kernel, known), weights=weights))
    return png(draw_bands(panels, len(KNOWN)))


def title(kernel: Kernel, known: int) -> str:
    """Words above a panel."""
    return f"{kernel.kind}, length {kernel.length:.2g}, {known} known"


def pixels(folder: str) -> bytes:
    """A test digit with 5, 15 and 40 known pixels."""
    run, panels = load_run(folder, ProcessModel), []
    task = task_of(run)
    one = task.test_data(run, None)[3]
    for known in (5, 15, 40):
        given = arranged(one, 2, (known, known))
        asked = given._replace(x=np.concatenate([given.x[:known], one.x]), y=np.concatenate([given.y[:known], 0 * one.y]))
        (found,) = answer(task, run.model, [asked], None)
        panels.append(Band.of(asked, found.mean_TY, found.std_TY, true=one.y[:, 0]))
    return png(draw_pixels(panels, run.processor))


if __name__ == "__main__":
    curves, digits = sys.argv[1:]
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / "functions.png").write_bytes(bands(curves))
    (PICTURES / "functions-pixels.png").write_bytes(pixels(digits))
