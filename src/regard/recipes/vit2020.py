"""A vision transformer reads an image as a sequence of patches: it learns from the order of the patches, which only positions tell.

Paper: Dosovitskiy et al. 2020, "An image is worth 16x16 words", arXiv:2010.11929, table 8 (without positions 61 instead of 64 %; there ImageNet,
       here scikit-learn's digits); Tolstikhin et al. 2021, "MLP-Mixer", arXiv:2105.01601.
Run:   regard run vit2020        Takes: about four minutes on one CPU core; three seeds of four small models.

1,797 digits of 8 × 8 pixels, a fifth of them for testing. Patches of 2 × 2, four layers of width 64, 25 epochs, no augmentation. The mixer has
no positions to leave out: its weights differ from patch to patch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import tasks
from ..look.overlays import Panel, draw_panels, over_patches
from ..models import ImageEncoder
from ..runs import Run
from ..tasks.images import image_maps
from ..train import TrainOptions
from ._engine import Recipe, RecipeFacts, Results, above, at_least, at_most, validation_curves, variant_folder
from ._engine.variants import BaselineVariant, TaskVariant

OPTIONS = tasks.ImagesOptions(data="digits", shares=(0.1, 0.2), crop=0, label_smoothing=0.0)
TRAIN = TrainOptions(epochs=25, lr=2e-3, schedule="cosine", weight_decay=0.05, average=0, ema=0.99, evaluate_every=105, log_every=50)
SIZE: dict[str, Any] = {"width": 64, "depth": 4, "hidden": 256}
VIT, MEAN, BAG, MIXER, NEAREST = "ViT", "ViT, mean of patches", "ViT without positions", "MLP-Mixer", "nearest neighbour"


def variant(model: str = "vit", **settings: Any) -> TaskVariant:
    return TaskVariant(task=tasks.Images, options=OPTIONS, train=TRAIN, model=model, settings=SIZE | settings, evaluate=accuracy_and_loss)


def accuracy_and_loss(run: Run[Any]) -> dict[str, float]:
    metrics = tasks.evaluate(run).metrics
    return {name: metrics[name] for name in ("accuracy", "loss")}


@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """Attention of the class token: rollout over an image of each digit, for the first seed of each variant."""

    variants: tuple[str, ...]

    def __call__(self, results: Results, out: Path) -> Path:
        panels: list[Panel] = []
        images: list[Any] = []
        for name in self.variants:
            run = tasks.load_run(variant_folder(out, name, results.seeds[0]), ImageEncoder)
            test = tasks.Images(OPTIONS, run.processor).test_data(run, None)
            for digit in range(10):
                pixels = test.pixels[list(test.label_E).index(digit)]
                p_N, maps = image_maps(run, pixels, "rollout")
                assert p_N is not None
                panels.append((f"{digit}: {run.processor.labels[int(p_N.argmax())]} {float(p_N.max()):.2f}", over_patches(maps.all[0])))
                images.append(pixels)
        figure = draw_panels(images, panels, columns=10, title=" (above); ".join(self.variants) + " (below)")
        figure.savefig(out / "rollouts.png", dpi=150)
        return out / "rollouts.png"


recipe = Recipe(
    facts=RecipeFacts("vit2020", 2020, "An image is worth 16x16 words", "arXiv:2010.11929", "about four minutes"),
    question="Can a transformer classify images as sequences of patches, and does it need to know where they are?",
    variants={
        VIT: variant(heads=4),
        MEAN: variant(heads=4, pool="mean"),
        BAG: variant(heads=4, positions=False),
        MIXER: variant("mlp_mixer", token_hidden=32),
        NEAREST: BaselineVariant(task=tasks.Images, options=OPTIONS, name="nearest neighbour"),
    },
    claims=(
        at_least("the digits: at least 95 % right", 0.95, VIT),
        at_least("by the mean of the patches instead of a class token: at least 95 %, too", 0.95, MEAN),
        at_most("without positions: at most 85 %", 0.85, BAG),
        above("positions add at least 10 points", VIT, BAG, 0.1, source="table 8"),
        above("the transformer is better than the nearest neighbour", VIT, NEAREST, kind="level"),
        at_least("a mixer without attention: at least 95 %", 0.95, MIXER),
    ),
    pictures=(validation_curves("loss"), Rollouts(variants=(VIT, BAG))),
)
