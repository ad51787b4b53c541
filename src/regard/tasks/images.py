"""Image classification: a vision transformer or an MLP-Mixer, from scratch on small images, or from a pretrained checkpoint.

Small data need augmentation (`data.augment`), label smoothing and stochastic depth, or a transformer learns the images by heart. An
exponential moving average of the parameters is what is evaluated and kept (`train`'s `--ema`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.augment import Augmentation
from ..data.images import Channels, Pixels
from ..data.labelled_images import DIGITS, LabelledImages, Part, load_pixels, read_labelled_images
from ..errors import NotSupported
from ..look import Indices, Layers, Maps, capture
from ..look.gradients import InputGradients
from ..look.layouts import Grid
from ..models import SIZES, ImageEncoder, Model
from ..runs import Run
from ..train import Loss, Metric, TrainOptions
from ._base import Dataset, Example, NoOptions, Prediction, Report, Task, check_range, digest, require_parts
from ._image_processor import ImageProcessor
from ._labelled import classification_metrics, confusion_rows, counted
from ._options import DataOptions, Files, OnError, show_files

EVALUATED = 256  # images per batch without gradients
ROLLOUT = "rollout"  # may be asked for like a layer


@dataclass(frozen=True, kw_only=True)
class ImagesOptions(DataOptions):
    """Which images, at which size, and how they are changed in training."""

    data: Files = DIGITS
    """Folder with a folder of images per class, or with IDX files; .npz; images.npy labels.npy; or digits, which is embedded."""
    on_error: OnError = "stop"
    """Files that are not images: stop with the name of the file, or skip and count them."""
    labels: tuple[str, ...] = ()
    """Names of the classes, where the data have numbers: that of 0, of 1, …"""
    image_size: tuple[int, ...] = ()
    """Height and width in pixels, or one number for both; if not given, that of the images up to 64; with --init-from that of the run."""
    crop: int | None = None
    """Random shift in pixels; an eighth of the height if not given."""
    flip: Literal["auto", "yes", "no"] = "auto"
    """Mirror half of the images; auto: those in colour."""
    rand_augment: float = 0.0
    """Strength, up to 1, of two random operations per image: contrast, brightness, rotation, shear and others; 0: none."""
    erase: float = 0.0
    """Probability that a random rectangle of an image is replaced by noise."""
    mixup: float = 0.0
    """Mix pairs of images with a share from Beta(α, α), for this α; 0: do not."""
    cutmix: float = 0.0
    """Paste a rectangle of another image, with an area from Beta(α, α), for this α; 0: do not."""
    label_smoothing: float = 0.1
    """Probability that the target gives to all classes alike."""
    batch_size: int = 64
    """Images per batch."""

    def __post_init__(self) -> None:
        check_range(
            self,
            image_size=(
                len(self.image_size) <= 2 and all(4 <= side <= 1024 for side in self.image_size),
                "one or two numbers from 4 to 1,024",
            ),
            crop=(self.crop is None or self.crop >= 0, "0 or more"),
            rand_augment=(0 <= self.rand_augment <= 1, "0 to 1"),
            erase=(0 <= self.erase <= 1, "0 to 1"),
            mixup=(self.mixup >= 0, "0 or more"),
            cutmix=(self.cutmix >= 0, "0 or more"),
            label_smoothing=(0 <= self.label_smoothing < 1, "0 or more, below 1"),
            batch_size=(self.batch_size >= 1, "1 or more"),
        )

    def augmentation(self, size: tuple[int, int], channels: int) -> Augmentation:
        """What is done to training images of this size."""
        crop = max(1, min(size) // 8) if self.crop is None else self.crop
        flip = channels == 3 if self.flip == "auto" else self.flip == "yes"
        return Augmentation(crop, flip, self.rand_augment, self.erase, self.mixup, self.cutmix)


@dataclass(frozen=True, kw_only=True)
class ImagesPredictOptions:
    """What to print."""

    nbest: int = 1
    """Labels per image, most likely first, with their probabilities."""


@dataclass(frozen=True)
class ImageData:
    """Images at the size of the model and the numbers of their labels."""

    pixels: Pixels
    label_E: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.label_E)


class Images(Task[ImagesOptions]):
    """Train a classifier of images.

    As in:  regard train images --out runs/digits
            regard train images --data photos --out runs/photos --minutes 30
            regard train images --data fashion-mnist --flip yes --epochs 10 --out runs/fashion
            regard train images --data flowers --init-from downloads/vit-base-patch16-224 --epochs 3 --lr 1e-4 --out runs/flowers
    """

    name = "images"
    inputs = "file"
    Options = ImagesOptions
    PredictOptions = ImagesPredictOptions
    model_kind = ImageEncoder
    default_model = "vit"
    default_train = TrainOptions(epochs=30, lr=1e-3, schedule="cosine", weight_decay=0.05, ema=0.999, average=0)
    next_commands = "regard evaluate {out}        regard predict {out} image.png        regard look {out} image.png"

    # -- training ------------------------------------------------------------------------------------------------------

    def read(self) -> LabelledImages:
        o = self.options
        return read_labelled_images(o.data, names=o.labels, **o.parts())

    def make_processor(self, raw: LabelledImages, base: ImageProcessor | None) -> ImageProcessor:
        found = {raw.train.labels[n] for n in raw.train.numbers}
        labels = tuple(sorted(found, key=lambda name: (not name.isdecimal(), int(name) if name.isdecimal() else 0, name)))
        if len(labels) < 2:
            raise NotSupported(
                f"{show_files(self.options.data)}: all images have the label {labels[0]!r}; give images of at least two classes"
            )
        if self.options.labels:
            labels = self.options.labels
        if base is not None:
            same = base.labels if found == set(base.labels) else labels
            return base.resized(self._given_size() or base.size).with_labels(same)
        some = raw.train.numbers[:: max(1, len(raw.train) // 2000)].tolist()
        shapes = {raw.train.images.shape(n) for n in raw.train.numbers.tolist()}
        channels: Channels = 1 if all(shape.channels == 1 for shape in shapes) else 3
        size = self._given_size() or _default_size([(shape.height, shape.width) for shape in shapes])
        return ImageProcessor.of_pixels([raw.train.images.read(n, channels) for n in some], labels, size)

    def load_processor(self, folder: Path) -> ImageProcessor:
        return ImageProcessor.load(folder)

    def encode(self, raw: LabelledImages, processor: ImageProcessor, cache: Path) -> Dataset[ImageData]:
        skipped, parts = list(raw.skipped), []
        for part in (raw.train, raw.valid, raw.test):
            data, wrong = self._load(part, processor)
            skipped += wrong
            parts.append(data)
        fingerprint = digest(part.images.key(n).hex() + part.labels[n] for part in (raw.train, raw.valid, raw.test) for n in part.numbers)
        words = f"{len(skipped):,} files skipped, the first: {skipped[0]}" if skipped else ""
        return Dataset(parts[0], parts[1], parts[2], fingerprint, words, unit="images")

    def _load(self, part: Part, processor: ImageProcessor) -> tuple[ImageData, list[str]]:
        number = {label: n for n, label in enumerate(processor.labels)}
        unknown = sorted({part.labels[n] for n in part.numbers} - number.keys())
        if unknown:
            raise NotSupported(
                f"the label {unknown[0]!r} does not occur among the training images, whose labels are {', '.join(processor.labels)[:200]}"
            )
        pixels, labels, skipped = load_pixels(part, processor.channels, processor.fit, processor.size, self.options.on_error)
        return ImageData(pixels, np.array([number[label] for label in labels], dtype=np.int64)), skipped

    def model_settings(self, model: str, processor: ImageProcessor) -> dict[str, Any]:
        self.check_kind(model)
        settings = {"image_size": processor.size, "channels": processor.channels, "classes": len(processor.labels)}
        return settings if model in SIZES else {**settings, "patch_size": default_patch(processor.size)}

    def adapt(self, body: Model, processor: ImageProcessor) -> ImageEncoder:
        """The model for images of this size and these classes: positions are interpolated, a head for other classes is new."""
        model = super().adapt(body, processor)
        assert isinstance(model, ImageEncoder)
        if model.config.channels != processor.channels:
            raise NotSupported(f"a model of {model.config.channels} channels, and images of {processor.channels}")
        if model.config.image_size != processor.size:
            model = model.with_image_size(processor.size)
        return model if model.config.classes == len(processor.labels) else model.with_classes(len(processor.labels))

    def objective(self, dataset: Dataset[ImageData], processor: ImageProcessor, model: Model, seed: int) -> ImagesObjective:
        require_parts(self.options.data, len(dataset.train), len(dataset.valid), "images")
        return ImagesObjective(dataset.train, dataset.valid, processor, self.options, seed)

    def _given_size(self) -> tuple[int, int] | None:
        size = self.options.image_size
        return (size[0], size[-1]) if size else None

    # -- use -----------------------------------------------------------------------------------------------------------

    def evaluate(self, run: Run[ImageEncoder], data: Files | None, options: NoOptions) -> Report:
        labels, images = run.processor.labels, self.test_data(run, data)
        logits_EN = all_logits(run.model, run.processor, images.pixels)
        counts = counted(images.label_E, logits_EN.argmax(1).numpy(), len(labels))
        metrics = {"loss": float(F.cross_entropy(logits_EN, torch.from_numpy(images.label_E)))}
        metrics |= {name: value for name, value in classification_metrics(counts, labels).items() if name in ("accuracy", "f1")}
        worst = [(int(counts[i, j]), labels[i], labels[j]) for i in range(len(labels)) for j in range(len(labels)) if i != j]
        confused = [f"{a} taken for {b} {n} times" for n, a, b in sorted(worst, key=lambda one: -one[0])[:3] if n]
        return Report(
            metrics=metrics,
            notes=(
                f"{self.test_name(data)}: {len(images):,} images",
                *([f"most often confused: {'; '.join(confused)}"] if confused else []),
            ),
            columns=("label", "support", "predicted", "precision", "recall"),
            rows=confusion_rows(counts, labels),
            details={"data": self.test_name(data), "examples": len(images), "labels": list(labels), "confusion": counts.tolist()},
            outputs=[labels[n] for n in logits_EN.argmax(1)],
        )

    def predict(self, run: Run[ImageEncoder], inputs: Sequence[str], options: ImagesPredictOptions) -> list[Prediction]:
        """Names of image files."""
        if not inputs:
            return []
        logits_EN = all_logits(run.model, run.processor, np.stack([run.processor.read(path) for path in inputs]))
        return [_labelled(run.processor.labels, p_N, options.nbest) for p_N in logits_EN.softmax(-1)]

    def attention_maps(self, run: Run[ImageEncoder], text: str, layers: Layers, heads: Indices, options: NoOptions) -> tuple[str, Maps]:
        """Attention over the patches, of layers or as their rollout (`layers="rollout"`); beside it the most likely labels."""
        p_N, maps = image_maps(run, run.processor.read(text), layers, heads)
        return "" if p_N is None else _labelled(run.processor.labels, p_N, 3).text, maps

    @classmethod
    def example(cls, folder: Path) -> Example:
        from PIL import Image

        generator = np.random.default_rng(0)
        for label, ends in (("dark", (0, 120)), ("light", (135, 255))):
            (folder / "images" / label).mkdir(parents=True)
            for n in range(30):
                Image.fromarray(generator.integers(*ends, (8, 8), dtype=np.uint8)).save(folder / "images" / label / f"{n}.png")
        options = ImagesOptions(data=str(folder / "images"), batch_size=8, shares=(0.1, 0.1))
        return Example(
            options=options,
            settings={"width": 16, "heads": 2, "depth": 1, "hidden": 16},
            input=str(folder / "images" / "light" / "0.png"),
            broken=_break,
        )


def _break(folder: Path) -> None:
    (folder / "dark" / "text.png").write_text("no image")


class ImagesObjective:
    """What the training loop asks."""

    unit = "images"
    metric = Metric("accuracy", higher=True)

    def __init__(self, train: ImageData, valid: ImageData, processor: ImageProcessor, options: ImagesOptions, seed: int):
        self.train, self.valid, self.processor, self.options, self.seed = train, valid, processor, options, seed
        self.augmentation = options.augmentation(processor.size, processor.channels)
        self.x_ECHW = processor.channels_first(train.pixels)

    def batches(self, epoch: int) -> Sequence[npt.NDArray[np.int64]]:
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.train))
        return [order[at : at + self.options.batch_size] for at in range(0, len(order), self.options.batch_size)]

    def batch(self, item: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """x_BCHW, augmented and normalised, and target_BN."""
        target_BN = F.one_hot(torch.from_numpy(self.train.label_E[item]), len(self.processor.labels)).float()
        x_BCHW = self.augmentation.change(self.x_ECHW[torch.from_numpy(item)])
        return self.augmentation.mix(self.processor.normalise(x_BCHW), target_BN)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Loss:
        x_BCHW, target_BN = batch
        logits_BN = model(x_BCHW).float()
        total = F.cross_entropy(logits_BN, target_BN, label_smoothing=self.options.label_smoothing, reduction="sum")
        right = (logits_BN.argmax(1) == target_BN.argmax(1)).sum()
        return Loss(total, len(x_BCHW), {"accuracy": float(right)})

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        assert isinstance(model, ImageEncoder)
        logits_EN, label_E = all_logits(model, self.processor, self.valid.pixels), torch.from_numpy(self.valid.label_E)
        right = (logits_EN.argmax(1) == label_E).double().mean()
        return {"loss": float(F.cross_entropy(logits_EN, label_E)), "accuracy": float(right)}


@torch.no_grad()
def all_logits(model: ImageEncoder, processor: ImageProcessor, pixels: Pixels) -> Tensor:
    """logits_EN of images at the size of the model."""
    device = next(model.parameters()).device
    starts = range(0, len(pixels), EVALUATED)
    return torch.cat([model(processor.encode(pixels[at : at + EVALUATED]).to(device)).float().cpu() for at in starts])


@torch.no_grad()
def image_maps(run: Run[ImageEncoder], pixels: Pixels, layers: Layers = None, heads: Indices = None) -> tuple[Tensor | None, Maps]:
    """The probability of each class, if there is a head, and maps over the patches of an image that has the size of the model."""
    model = run.model
    with capture(model, None if layers == ROLLOUT else layers, heads) as maps:
        x_BLD = model.features(x_BCHW := run.processor.encode([pixels]))
    grid, prefix = model.config.grid, model.class_tokens
    names = [*(["class"] if prefix else []), *(f"{row},{column}" for row in range(grid[0]) for column in range(grid[1]))]
    maps.image = pixels
    maps = maps.label(names, names, Grid(*grid, prefix_tokens=prefix))
    if layers == ROLLOUT:
        maps = Maps(maps.with_rollout(ROLLOUT)[ROLLOUT], image=pixels)
    if model.output is None:
        return None, maps
    logits_1N = model.output(model.pooled(x_BLD))
    label_1 = logits_1N.argmax(-1)
    maps.gradients = InputGradients(
        model,
        (x_BCHW,),
        lambda model: model(x_BCHW),
        label_1,
        [run.processor.labels[int(label_1)]],
        dict.fromkeys(maps.layers, 0),
        logits=lambda _, x_N: x_N,
    )
    return logits_1N[0].softmax(-1), maps


def _labelled(labels: Sequence[str], p_N: Tensor, nbest: int) -> Prediction:
    """The most likely labels, a line each."""
    best = p_N.topk(min(max(nbest, 1), len(labels)))
    found = [{"label": labels[n], "probability": p} for p, n in zip(best.values.tolist(), best.indices.tolist(), strict=True)]
    return Prediction("\n".join(f"{one['label']}\t{one['probability']:.4f}" for one in found), {"labels": found})


def _default_size(sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """That of the images if all have the same, up to 64 pixels; else 64 × 64. Rounded up to whole patches."""
    height, width = sizes[0] if len(sizes) == 1 and max(sizes[0]) <= 64 else (64, 64)
    patch = _patch(max(height, width))
    return math.ceil(height / patch) * patch, math.ceil(width / patch) * patch


def _patch(side: int) -> int:
    return 2 if side <= 16 else 4 if side <= 48 else 8 if side <= 112 else 16


def default_patch(size: tuple[int, int]) -> tuple[int, int]:
    """Patches that make some 16 to 200 tokens of an image, and divide its height and width."""
    height, width = (max(p for p in range(1, _patch(max(size)) + 1) if side % p == 0) for side in size)
    return height, width
