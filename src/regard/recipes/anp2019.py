"""Neural processes forget which value belongs where; with attention from targets to known points they do not.

Paper: Kim et al. 2019, "Attentive neural processes", arXiv:1901.05761, section 4 (there functions from kernels of random length, and MNIST and CelebA).
Run:   regard run anp2019        Takes: about an hour on one CPU core; three seeds of five small models.

Functions of one variable from a Gaussian process (rbf, length 0.4, noise 0.1), 40 points each, of which 5 to 25 are known; and digits as functions of
8 × 8 pixels. Errors are mean squared errors in units of the data, whose variance is 1 (pixels: 0.14). The posterior of the process itself is the ceiling.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..models import ProcessModel
from ..tasks import FunctionsOptions, FunctionsTask, load_run, task_of
from ..tasks.function_pictures import Band, draw_bands
from ..tasks.function_processor import arranged
from ..tasks.measuring import answer
from ..train import TrainOptions
from ._engine import Curves, Recipe, RecipeFacts, Results, above, at_least, at_most, below, variant_folder
from ._engine.variants import BaselineVariant, TaskVariant

CURVES = FunctionsOptions(data="gp:rbf,length=0.4,points=40,count=8000", context=(5, 25), shares=(0.05, 0.1))
PIXELS = FunctionsOptions(data="digits:", context=(5, 40), shares=(0.05, 0.1))
TRAIN = TrainOptions(
    steps=4000, lr=1e-3, schedule="cosine", average=0, weight_decay=0.0, log_every=100, evaluate_every=500, save_every=4000
)
ANP, NP, PATH, EXACT = "attentive", "plain", "attentive, no latent path", "exact Gaussian process"
ANP_PIXELS, NP_PIXELS = "attentive, pixels", "plain, pixels"
SHOWN = (5, 10, 20)  # known points


def variant(options: FunctionsOptions, model: str = "attentive_neural_process", **settings: Any) -> TaskVariant:
    return TaskVariant(task=FunctionsTask, options=options, train=TRAIN, model=model, settings=settings)


@dataclass(frozen=True, kw_only=True)
class Bands:
    """One test function with more and more known points, by each variant, beside the exact posterior; the first seed."""

    variants: tuple[str, ...]

    def __call__(self, results: Results, out: Path) -> Path:
        panels = []
        for name in self.variants:
            run = load_run(variant_folder(out, name, results.seeds[0]), ProcessModel)
            task = task_of(run)
            one = task.test_data(run, None)[0]
            for known in SHOWN:
                given = arranged(one, 0, (known, known))
                places = np.linspace(-2, 2, 81, dtype=np.float32)[:, None]
                asked = given._replace(x=np.concatenate([given.x[:known], places]), y=np.concatenate([given.y[:known], 0 * places]))
                (found,) = answer(task, run.model, [asked], None)
                true = (given.x[known:, 0], given.y[known:, 0])
                panels.append(Band.of(asked, found.mean_TY, found.std_TY, one.kernel, true=true, title=f"{name}, {known} known"))
        draw_bands(panels, len(SHOWN)).savefig(out / "bands.png")
        return out / "bands.png"


recipe = Recipe(
    facts=RecipeFacts("anp2019", 2019, "Attentive neural processes", "arXiv:1901.05761", "about an hour"),
    question="Does attention from targets to known points cure the underfitting of neural processes?",
    variants={
        ANP: variant(CURVES),
        NP: variant(CURVES, "neural_process"),
        PATH: variant(CURVES, latent=0),
        EXACT: BaselineVariant(task=FunctionsTask, options=CURVES, name="exact Gaussian process"),
        ANP_PIXELS: variant(PIXELS),
        NP_PIXELS: variant(PIXELS, "neural_process"),
    },
    claims=(
        at_most("with attention the error at known points is at most 0.1", 0.1, (ANP, "context_mse")),
        at_least("without, it is at least 0.25: the mean of the points underfits", 0.25, (NP, "context_mse"), source="figure 1"),
        below("attention lowers the error at other points by at least 0.1", (ANP, "mse"), (NP, "mse"), by=0.1, source="figure 3"),
        above(
            "it raises the density of other points by at least 0.3 nats",
            (ANP, "log_density"),
            (NP, "log_density"),
            by=0.3,
            source="figure 3",
        ),
        above("the exact process is the ceiling", (EXACT, "log_density"), (ANP, "log_density"), kind="control"),
        above(
            "a path without z, which has attention, is above the plain process, too",
            (PATH, "log_density"),
            (NP, "log_density"),
            kind="level",
        ),
        below(
            "pixels: attention lowers the error at known ones", (ANP_PIXELS, "context_mse"), (NP_PIXELS, "context_mse"), source="figure 4"
        ),
        below("pixels: and at the others", (ANP_PIXELS, "mse"), (NP_PIXELS, "mse"), source="figure 4"),
    ),
    pictures=(
        Bands(variants=(ANP, NP)),
        Curves(metric="validation loss", file="validation_loss", x="step", y="loss per point (nats)", title="Validation"),
    ),
)
