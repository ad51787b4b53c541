"""An image is predicted better from a larger neighbourhood; a density over ordered values does as well as one over categories.

Paper: Parmar et al. 2018, "Image transformer", arXiv:1802.05751 (table 4: on CIFAR-10 blocks of 8, 16, 64 and 256 give 4.06, 3.47, 3.13 and
       2.99 bits per dimension).
Run:   regard run image_transformer2018        Takes: some minutes on two CPU cores; three seeds of nine small models.

Two of scikit-learn's digits side by side, 8 rows of 16 pixels of 17 levels, in raster order; the test images have other digits. Every variant
is the same model of three layers but for what its name says. A neighbourhood of n keys is what a block of queries may attend to: 4 or 12 keys
in raster order end before the pixel above, 24 hold it, as in the paper, whose rows are 96 positions long. The histogram counts the values of
each pixel in the training images: a model without attention. The mean image is that of the training images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..data.labelled_images import read_digits
from ..look.images import enlarge, png_of, sheet
from ..models import ImageTransformer
from ..tasks import PixelsOptions, PixelsTask, evaluate, load_run
from ..tasks.pixel_processor import PixelProcessor
from ..tasks.pixels import UNKNOWN
from ..train import TrainOptions
from ._engine import Claim, Comparison, Recipe, RecipeFacts, Results, below, measured, validation_curves
from ._engine.base import variant_folder
from ._engine.variants import short_training, train_run

SETTINGS = {"width": 48, "heads": 4, "depth": 3, "hidden": 128, "dropout": 0.0}
LEARNED = 1.95  # bits per dimension of a reference that has learned; the histogram of each pixel needs 2.43
TRAIN, BATCH = short_training(600, 3e-2, evaluations=6), 16
IMAGES = {"data": 6000, "valid": 200, "test": 300}
SAMPLES = 8  # completions per image whose mean is compared with the image
WIDE = "1-D, 24 keys"


def write_pairs(folder: Path) -> dict[str, Any]:
    """Images of two digits, as the options of a task name them; each part has digits of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels, _ = read_digits()
    generator, found = np.random.default_rng(0), dict[str, Any]()
    parts = np.split(generator.permutation(len(pixels)), [len(pixels) * 8 // 10, len(pixels) * 9 // 10])
    for (name, count), some in zip(IMAGES.items(), parts, strict=True):
        left, right = pixels[generator.choice(some, (2, count))]
        found[name] = str(folder / f"{name}.npy")
        np.save(found[name], np.concatenate([left, right], -1))
    return found


@dataclass(frozen=True, kw_only=True)
class Pixels:
    """A model trained on pairs of digits: bits per dimension of the test images, and the error of completions of their lower halves."""

    train: TrainOptions = TRAIN
    settings: Mapping[str, Any] = field(default_factory=dict)
    super_resolution: int = 1
    complete: bool = False

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        options = PixelsOptions(super_resolution=self.super_resolution, batch_size=BATCH, **write_pairs(out))
        run, training = train_run(PixelsTask, options, self.train.replace(seed=seed), out, settings={**SETTINGS, **self.settings})
        metrics = {"bits": evaluate(run).metrics["bits_per_dim"]}
        return {**metrics, **(_completion(run) if self.complete else {}), **training}


@torch.no_grad()
def _completion(run: Any) -> dict[str, float]:
    """Mean absolute error, in shares of the range, of the lower half."""
    train, test = (run.processor.encode(np.load(run.folder / f"{part}.npy")).float() for part in ("data", "test"))
    half, top = run.processor.size[0] // 2, run.processor.levels - 1
    many = test.long().repeat_interleave(SAMPLES, 0)
    drawn = run.model.complete(many, half, generator=torch.Generator().manual_seed(0)).float().unflatten(0, (-1, SAMPLES))
    errors = {"mean of samples": drawn.mean(1), "one sample": drawn[:, 0], "mean image": train.mean(0).expand_as(test)}
    return {f"error, {name}": float((x - test)[:, half:].abs().mean()) / top for name, x in errors.items()}


@dataclass(frozen=True)
class Histogram:
    """Each pixel on its own: the counts of its values in the training images, plus one half."""

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        files, processor = write_pairs(out), PixelProcessor(size=(8, 16), channels=1, levels=17)
        train, test = (processor.encode(np.load(files[part]))[..., 0].numpy() for part in ("data", "test"))
        counts = np.stack([(train == level).sum(0) for level in range(processor.levels)]) + 0.5
        p = counts / counts.sum(0)
        return {"bits": float(-np.log2(np.take_along_axis(p[None], test[:, None], 1)).mean())}


VARIANTS: dict[str, Any] = {
    "histogram": Histogram(),
    WIDE: Pixels(settings={"attention": "image_1d(block=8, memory=16)"}, complete=True),
    "1-D, 12 keys": Pixels(settings={"attention": "image_1d(block=4, memory=8)"}),
    "1-D, 4 keys": Pixels(settings={"attention": "image_1d(block=2, memory=2)"}),
    "2-D, 12 keys": Pixels(settings={"attention": "image_2d(columns=16, block=(1, 2), up=2, side=1)"}),
    "all keys": Pixels(settings={"attention": "softmax"}),
    "no positions": Pixels(settings={"attention": "image_1d(block=8, memory=16)", "positions": False}),
    "logistics": Pixels(settings={"attention": "image_1d(block=8, memory=16)", "output": "logistics"}),
    "super-resolution": Pixels(settings={"attention": "image_1d(block=8, memory=16)", "encoder_depth": 1}, super_resolution=4),
}


def fewer(text: str, key: str, other: str, share: float, learned: tuple[Comparison, ...] = ()) -> Claim:
    """`key` needs fewer bits than `other` by at least this share of them (by any if 0); a negative one allows as many more."""
    return Claim(text, measured(key, "bits") - measured(other, "bits") * (1 - share) <= 0, learned=learned)


def draw_completions(results: Results, out: Path) -> Path:
    """Test images, their upper halves, and three completions each; beside them the same drawn from 2 × 4 pixels."""
    rows, generator = [], torch.Generator().manual_seed(1)
    for name, factor in ((WIDE, 1), ("super-resolution", 4)):
        run = load_run(variant_folder(out, name, results.seeds[0]), ImageTransformer)
        images = run.processor.encode(np.load(run.folder / "test.npy")[:6])
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
    path.write_bytes(png_of(sheet([enlarge(one, 128) for one in pairs], columns=10)))
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
        fewer("24 keys need at most 2 % more bits than all keys", WIDE, "all keys", -0.02, (measured("all keys", "bits") <= LEARNED,)),
        fewer("without positions more bits are needed, by at least 2 %", WIDE, "no positions", 0.02),
        fewer("a mixture of logistics needs at most 10 % more bits than categories", "logistics", WIDE, -0.1),
        fewer("categories need at most 10 % more bits than a mixture of logistics", WIDE, "logistics", -0.1),
        below(
            "completion: the mean of 8 samples of the lower half is nearer to the image than the mean image is",
            (WIDE, "error, mean of samples"),
            (WIDE, "error, mean image"),
        ),
        fewer("given 2 × 4 pixels, 4× super-resolution needs fewer bits", "super-resolution", WIDE, 0.0),
    ),
    pictures=(draw_completions, validation_curves("loss")),
)
