"""Base classes of tasks on images: reading, sizes, pixels in memory; classification of images and of clips."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor

from ..baselines import most_frequent, nearest_neighbour
from ..data.images import Channels, Pixels
from ..data.labelled_images import Part, load_pixels, read_labelled_images
from ..data.lines import Skipped
from ..data.splits import Splits, digest
from ..errors import NotSupported
from ..look.gradients import InputGradients
from ..metrics.classification import COLUMNS, classification_metrics, confusion_matrix, confusion_rows, confusions
from ..train import Loss, Metric
from .dial import Profile
from .image_processor import ImageProcessor
from .options import ClassesOptions, show_files
from .options.image import ImageOptions, PictureOptions
from .task import Prediction, Report, Task

COMPARED = 20_000_000  # pixels of training images that test images are compared with, for a baseline
EVALUATED = 256  # images per batch without gradients
Side = Annotated[int, Meta(ge=4, le=1024)]


class Picture(NamedTuple):
    """Pixels at the size of the model, of an image or of a clip, and the number of the label."""

    pixels: Pixels
    label: int = 0


@dataclass(frozen=True)
class Pictures(Sequence[Picture]):
    """Pictures of one size in memory."""

    pixels: Pixels
    label_E: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.label_E)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return Pictures(self.pixels[at], self.label_E[at])
        return Picture(self.pixels[at], int(self.label_E[at]))


ImageOptionsT = TypeVar("ImageOptionsT", bound=ImageOptions)
PictureOptionsT = TypeVar("PictureOptionsT", bound=PictureOptions)


class ImageTask(Task[ImageOptionsT]):
    """Task on images: a folder, IDX, .npz or .npy files, or scikit-learn's digits."""

    inputs = "file"
    unit = "images"
    Processor: ClassVar[type[Any]] = ImageProcessor
    next_commands = "regard evaluate {out}        regard predict {out} image.png        regard look {out} image.png"

    def read(self) -> Splits[Any]:
        return read_labelled_images(self.options.data, **self.options.parts())

    def size(self, part: Part) -> tuple[int, int]:
        """Height and width that images are read at: those given, or those of the first image.

        Args:
            part: training part.
        """
        height, width, _ = part.images.shape(int(part.numbers[0]))
        return self.options.size or (height, width)

    def profile(self, data: Splits[Any]) -> Profile:
        height, width = self.size(data.train)
        return {"examples": len(data.train), "pixels": height * width, "colour": "yes" if channels_of(data.train) == 3 else "no"}

    def prepare(self, data: Splits[Any], cache: Path) -> Splits[Pictures]:
        skipped = data.skipped
        assert isinstance(skipped, Skipped)
        train, valid, test = (self.load(part, skipped) for part in data.parts)
        return Splits(train, valid, test, skipped, digest(self.contents(data)))

    def load(self, part: Part, skipped: Skipped) -> Pictures:
        """Pictures of a part at the size of the model."""
        pixels, names = load_pixels(part, self.processor.channels, self.processor.fit, self.processor.size, skipped)
        return Pictures(pixels, self.label_numbers(names))

    def label_numbers(self, names: Sequence[str]) -> npt.NDArray[np.int64]:
        """Numbers of these labels."""
        return np.zeros(len(names), dtype=np.int64)

    def contents(self, data: Splits[Part]) -> Iterator[str]:
        """Content of each image, for the fingerprint of the data."""
        return (part.images.key(n).hex() for part in data.parts for n in part.numbers)

    def parse(self, text: str) -> Picture:
        return Picture(self.processor.read(text))

    def batch_size(self, evaluating: bool) -> int:
        return EVALUATED if evaluating else super().batch_size(evaluating)


def channels_of(part: Part) -> Channels:
    """1 if all images are grey, else 3."""
    return 1 if all(part.images.shape(n).channels == 1 for n in part.numbers.tolist()) else 3


class ImageClassification(ImageTask[PictureOptionsT]):
    """Classification of pictures: a label for each."""

    PredictOptions = ClassesOptions
    metric = Metric("accuracy", higher=True)

    def label_names(self, found: set[str], given: Sequence[str] = ()) -> tuple[str, ...]:
        """Names of the labels in the training data, numbers in their order."""
        labels = sorted(found, key=lambda name: (not name.isdecimal(), int(name) if name.isdecimal() else 0, name))
        if len(labels) < 2:
            raise NotSupported(
                f"{show_files(self.options.data)}: all {self.unit} have the label {labels[0]!r}; give {self.unit} of at least two classes"
            )
        return tuple(given or labels)

    def label_numbers(self, names: Sequence[str]) -> npt.NDArray[np.int64]:
        number = {label: n for n, label in enumerate(self.processor.labels)}
        if unknown := sorted(set(names) - number.keys()):
            raise NotSupported(
                f"the label {unknown[0]!r} does not occur among the training {self.unit}, whose labels are "
                f"{', '.join(self.processor.labels)[:200]}"
            )
        return np.array([number[name] for name in names], dtype=np.int64)

    def batch(self, item: Sequence[Picture], generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """x_BCHW or x_BTCHW, normalised, and label_B."""
        x = self.processor.encode(np.stack([one.pixels for one in item]))
        return x, torch.tensor([one.label for one in item])

    def loss(self, model: Any, batch: tuple[Tensor, Tensor]) -> Loss:
        """Cross-entropy; targets are numbers of labels, or in training perhaps probabilities of all of them."""
        x, target = batch
        logits_BN = model(x).float()
        smoothing = self.options.label_smoothing if model.training else 0.0
        total = F.cross_entropy(logits_BN, target, label_smoothing=smoothing, reduction="sum")
        right = (logits_BN.argmax(1) == (target if target.dim() == 1 else target.argmax(1))).sum()
        return Loss(total, len(x), {"accuracy": right}, logits_BN)

    def answers(self, outputs: Tensor, batch: Any) -> list[Tensor]:
        """p_N of each picture."""
        return list(outputs.softmax(-1).cpu())

    def baselines(self, train: Pictures, examples: Pictures) -> dict[str, dict[str, float]]:
        some = slice(None, None, -(-train.pixels.size // COMPARED))
        nearest_E = nearest_neighbour(train.pixels[some], train.label_E[some], examples.pixels)
        usual = most_frequent(train.label_E)
        found = {"most frequent class": np.full(len(examples), usual), "nearest neighbour": nearest_E}
        return {name: {"accuracy": float((label_E == examples.label_E).mean())} for name, label_E in found.items()}

    def report(self, sums: Mapping[str, float], answers: Sequence[Tensor], examples: Pictures, options: Any) -> Report:
        labels, predicted_E = self.processor.labels, torch.stack(list(answers)).argmax(1).numpy()
        counts = confusion_matrix(examples.label_E, predicted_E, len(labels))
        scores = classification_metrics(counts, labels)
        confused = confusions(counts, labels)
        return Report(
            metrics={**self.metrics(sums, answers, examples), "f1": scores["f1"]},
            notes=("", f"most often confused: {'; '.join(confused)}") if confused else (),
            columns=COLUMNS,
            rows=confusion_rows(counts, labels),
            details={"labels": list(labels), "confusion": counts.tolist()},
            outputs=[labels[n] for n in predicted_E],
        )

    def prediction(self, example: Picture, answer: Tensor, options: ClassesOptions) -> Prediction:
        return likely_labels(self.processor.labels, answer, options.nbest)


def likely_labels(labels: Sequence[str], p_N: Tensor, nbest: int) -> Prediction:
    """The most likely labels, a line each."""
    best = p_N.topk(min(max(nbest, 1), len(labels)))
    found = [{"label": labels[n], "probability": p} for p, n in zip(best.values.tolist(), best.indices.tolist(), strict=True)]
    return Prediction("\n".join(f"{one['label']}\t{one['probability']:.4f}" for one in found), {"labels": found})


def label_gradients(model: Any, x: Tensor, logits_1N: Tensor, labels: Sequence[str], layers: Sequence[str]) -> InputGradients:
    """Gradients of the most likely label of a picture."""
    label_1 = logits_1N.argmax(-1)
    return InputGradients.of_logits(model, x, lambda model: model(x), label_1, [labels[int(label_1)]], layers)


def patch_side(size: tuple[int, int], most: int) -> tuple[int, int]:
    """Sides of patches of at most this many pixels that divide height and width."""
    height, width = (max(p for p in range(1, most + 1) if side % p == 0) for side in size)
    return height, width
