"""An image is predicted better from a larger neighbourhood; a density over ordered values does as well as one over categories.

Paper: Parmar et al. 2018, "Image transformer", arXiv:1802.05751 (table 4: on CIFAR-10 blocks of 8, 16, 64 and 256 give 4.06, 3.47, 3.13 and
       2.99 bits per dimension).
Run:   regard run image_transformer2018        Takes: some minutes on two CPU cores; three seeds of nine small models.

scikit-learn's digits, 8 × 8 pixels of 17 levels, in raster order. Every variant is the same model of three layers but for what its name
says. A neighbourhood of n keys is what a block of queries may attend to. The histogram counts the values of each pixel in the training
images: a model without attention. The mean image is that of the training images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..look.images import png_of
from ..models import ImageTransformer
from ..tasks import PixelsOptions, PixelsTask, evaluate, load_run
from ..tasks._pixel_processor import side_by_side
from ..tasks.pixels import UNKNOWN
from ._engine import Claim, Recipe, RecipeFacts, Results, below, validation_curves
from ._engine.base import variant_folder
from ._engine.variants import short_training, train_run

SETTINGS = {"width": 48, "heads": 4, "depth": 3, "hidden": 128, "dropout": 0.0}
STEPS, LEARNING_RATE = 200, 3e-2
SAMPLES = 8  # completions per image whose mean is compared with the image
WIDE = "1-D, 24 keys"


@dataclass(frozen=True, kw_only=True)
class Pixels:
    """A model trained on digits: bits per dimension of the test images, and the error of completions of their lower halves."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    super_resolution: int = 1
    complete: bool = False

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        options = PixelsOptions(super_resolution=self.super_resolution, shares=(0.1, 0.1))
        train = short_training(STEPS, LEARNING_RATE, evaluations=6).replace(seed=seed)
        run, training = train_run(PixelsTask, options, train, out, settings={**SETTINGS, **self.settings})
        task = PixelsTask(options)
        metrics = {"bits": evaluate(run).metrics["bits_per_dim"]}
        return {**metrics, **(_completion(run, task) if self.complete else {}), **training}


@torch.no_grad()
def _completion(run: Any, task: PixelsTask) -> dict[str, float]:
    """Mean absolute error, in shares of the range, of the lower half."""
    dataset = task.encode(task.read(), run.processor, Path())
    train, test = (run.processor.encode(part).float() for part in (dataset.train, dataset.test))
    half, top = run.processor.size[0] // 2, run.processor.levels - 1
    many = test.long().repeat_interleave(SAMPLES, 0)
    drawn = run.model.complete(many, half, generator=torch.Generator().manual_seed(0)).float().unflatten(0, (-1, SAMPLES))
    errors = {"mean of samples": drawn.mean(1), "one sample": drawn[:, 0], "mean image": train.mean(0).expand_as(test)}
    return {f"error, {name}": float((x - test)[:, half:].abs().mean()) / top for name, x in errors.items()}


@dataclass(frozen=True)
class Histogram:
    """Each pixel on its own: the counts of its values in the training images, plus one half."""

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        task = PixelsTask(PixelsOptions(shares=(0.1, 0.1)))
        raw = task.read()
        processor = task.make_processor(raw, None)
        dataset = task.encode(raw, processor, out)
        train, test = (processor.encode(part)[..., 0].numpy() for part in (dataset.train, dataset.test))
        counts = np.stack([(train == level).sum(0) for level in range(processor.levels)]) + 0.5
        p = counts / counts.sum(0)
        return {"bits": float(-np.log2(np.take_along_axis(p[None], test[:, None], 1)).mean())}


VARIANTS: dict[str, Any] = {
    "histogram": Histogram(),
    WIDE: Pixels(settings={"attention": "image_1d(block=8, memory=16)"}, complete=True),
    "1-D, 12 keys": Pixels(settings={"attention": "image_1d(block=4, memory=8)"}),
    "1-D, 4 keys": Pixels(settings={"attention": "image_1d(block=2, memory=2)"}),
    "2-D, 12 keys": Pixels(settings={"attention": "image_2d(columns=8, block=(1, 2), up=2, side=1)"}),
    "all keys": Pixels(settings={"attention": "softmax"}),
    "no positions": Pixels(settings={"attention": "image_1d(block=8, memory=16)", "positions": False}),
    "logistics": Pixels(settings={"attention": "image_1d(block=8, memory=16)", "output": "logistics"}),
    "super-resolution": Pixels(settings={"attention": "image_1d(block=8, memory=16)", "encoder_depth": 1}, super_resolution=4),
}


def fewer(text: str, key: str, other: str, share: float) -> Claim:
    """`key` needs fewer bits than `other` by at least this share of them (by any if 0), with every seed; a negative one allows as many more."""

    def holds(r: Results) -> bool:
        pairs = zip(r[key, "bits"].values, r[other, "bits"].values, strict=True)
        return all(one < two and one <= (1 - share) * two if share >= 0 else one <= (1 - share) * two for one, two in pairs)

    return Claim(text, holds, lambda r: f"{r[key, 'bits']} against {r[other, 'bits']} bits per dimension")


def draw_completions(results: Results, out: Path) -> Path:
    """Test images, their upper halves, and three completions each; below, images drawn from 2 × 2 pixels."""
    rows, generator = [], torch.Generator().manual_seed(1)
    for name, factor in ((WIDE, 1), ("super-resolution", 4)):
        run = load_run(variant_folder(out, name, results.seeds[0]), ImageTransformer)
        task = PixelsTask(PixelsOptions(super_resolution=factor, shares=(0.1, 0.1)))
        images = run.processor.encode(task.encode(task.read(), run.processor, out).test[:6])
        keep = run.processor.size[0] // 2 if factor == 1 else 0
        given = images.clone()
        source = run.processor.source(images)
        drawn = [run.model.complete(images, keep, source, generator=generator) for _ in range(3)]
        shown = run.processor.decode(given)
        shown[:, keep:] = UNKNOWN
        if source is not None:
            shown = run.processor.decode(source).repeat(factor, 1).repeat(factor, 2)
        rows.append(np.stack([run.processor.decode(images), shown, *map(run.processor.decode, drawn)], 1))
    path = out / "completions.png"
    pairs = [image for one, two in zip(*rows, strict=True) for image in (*one, *two)]
    path.write_bytes(png_of(side_by_side(pairs, columns=10)))
    return path


recipe = Recipe(
    facts=RecipeFacts("image_transformer2018", 2018, "Image transformer", "arXiv:1802.05751", "some minutes"),
    question="How well are pixels predicted from a neighbourhood of earlier ones, and does the order of values help?",
    variants=VARIANTS,
    claims=(
        fewer("local attention to 24 keys needs at least 15 % fewer bits than the histogram of each pixel", WIDE, "histogram", 0.15),
        fewer("24 keys need fewer bits than 12", WIDE, "1-D, 12 keys", 0.0),
        fewer("12 keys need fewer bits than 4, by at least 2 %", "1-D, 12 keys", "1-D, 4 keys", 0.02),
        fewer("12 keys in a rectangle, 2-D, need fewer bits than 12 in raster order, 1-D", "2-D, 12 keys", "1-D, 12 keys", 0.0),
        fewer("24 keys need at most 2 % more bits than all keys", WIDE, "all keys", -0.02),
        fewer("without positions more bits are needed, by at least 2 %", WIDE, "no positions", 0.02),
        fewer("a mixture of logistics needs at most 10 % more bits than categories", "logistics", WIDE, -0.1),
        fewer("categories need at most 10 % more bits than a mixture of logistics", WIDE, "logistics", -0.1),
        below(
            "completion: the mean of 8 samples of the lower half is nearer to the image than the mean image is",
            (WIDE, "error, mean of samples"),
            (WIDE, "error, mean image"),
        ),
        fewer("given 2 × 2 pixels, 4× super-resolution needs fewer bits", "super-resolution", WIDE, 0.0),
    ),
    pictures=(draw_completions, validation_curves("loss")),
)
