"""Images written pixel by pixel: densities in bits per dimension, completion of images, and super-resolution."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from ..data.images import Channels, Pixels
from ..data.labelled_images import LabelledImages, Part, load_pixels, read_labelled_images
from ..errors import BadConfig, NotSupported
from ..look import Indices, Layers, Map, Maps, capture
from ..look.gradients import GradientRow, InputGradients
from ..look.images import png_of
from ..look.layouts import Grid
from ..models import SIZES, ImageTransformer, Model
from ..runs import Run
from ..train import Loss, Metric, TrainOptions
from ._base import Dataset, Example, NoOptions, Prediction, Report, Task, check_range, digest, require_parts
from ._options import DataOptions, Files
from ._pixel_processor import PixelProcessor, count_levels, side_by_side

UNKNOWN = 128  # grey of the pixels that are not given, in pictures


@dataclass(frozen=True, kw_only=True)
class PixelsOptions(DataOptions):
    """Which images, and what is to be learned about them."""

    data: Files = "digits"
    """Images: a folder, IDX files (MNIST), .npz or .npy; digits: 1,797 embedded images of 8 × 8 pixels."""
    image_size: tuple[int, int] | None = None
    """Height and width in pixels that all images are resized to; that of the first image if not given."""
    grey: bool = False
    """Read colours as grey."""
    levels: int | None = None
    """Values per channel, 2 to 256; if not given, those of the images where they are evenly spaced, else 256."""
    super_resolution: int = 1
    """Learn to draw images from ones that are this many times smaller, such as 4; 1: without."""
    batch_size: int = 32
    """Images per batch."""

    def __post_init__(self) -> None:
        check_range(
            self,
            batch_size=(self.batch_size >= 1, "1 or more"),
            super_resolution=(self.super_resolution >= 1, "1 or more"),
            levels=(self.levels is None or 2 <= self.levels <= 256, "2 to 256"),
            image_size=(self.image_size is None or min(self.image_size) >= 1, "two numbers above 0"),
        )


@dataclass(frozen=True, kw_only=True)
class CompletionOptions:
    """What is given, and how the rest is drawn."""

    keep: float | None = None
    """Share of the rows, from above, that is given; half if not given, and none for super-resolution."""
    samples: int = 4
    """Images drawn per input."""
    temperature: float = 1.0
    """Below 1: more likely pixels; 0: the most likely."""
    seed: int = 0
    """Random seed of the samples."""

    def __post_init__(self) -> None:
        check_range(
            self,
            keep=(self.keep is None or 0 <= self.keep <= 1, "0 to 1"),
            samples=(1 <= self.samples <= 64, "1 to 64"),
            temperature=(self.temperature >= 0, "0 or more"),
        )


@dataclass(frozen=True, kw_only=True)
class PixelLookOptions:
    """Whose attention to show."""

    pixel: tuple[int, int] | None = None
    """Row and column, from 0, of the pixel that attends; some of the image if not given."""


class PixelsTask(Task[PixelsOptions]):
    """Train a model that writes images pixel by pixel: for densities, completion and super-resolution.

    As in:  regard train pixels --out runs/pixels
            regard train pixels --data fashion-mnist --set output=logistics --set attention=image_2d --out runs/fashion
            regard train pixels --super-resolution 4 --out runs/sharper
    """

    name = "pixels"
    Options = PixelsOptions
    PredictOptions = CompletionOptions
    LookOptions = PixelLookOptions
    model_kind = ImageTransformer
    default_model = "image_transformer"
    inputs = "file"
    default_train = TrainOptions(epochs=20, optimizer="muon", lr=2e-2, schedule="cosine", warmup_steps=None, average=0)
    next_commands = "regard evaluate {out}        regard predict {out} image.png        regard look {out} image.png"

    # -- training ------------------------------------------------------------------------------------------------------

    def read(self) -> LabelledImages:
        return read_labelled_images(self.options.data, **self.options.parts(), labelled=False)

    def make_processor(self, raw: LabelledImages, base: PixelProcessor | None) -> PixelProcessor:
        o, first = self.options, raw.train.images.shape(int(raw.train.numbers[0]))
        if base is not None:
            return base
        size, factor = o.image_size or (first.height, first.width), o.super_resolution
        if size[0] % factor or size[1] % factor:
            raise BadConfig(
                f"--super-resolution {factor} of images of {size[0]} × {size[1]} pixels; expected a divisor, or another --image-size"
            )
        channels: Channels = 1 if o.grey else first.channels
        processor = PixelProcessor(size=(size[0], size[1]), channels=channels, levels=256, factor=factor)
        if o.levels is not None:
            return replace(processor, levels=o.levels)
        some = replace(raw.train, numbers=raw.train.numbers[:: max(1, len(raw.train) // 2000)])
        return replace(processor, levels=count_levels(_load(some, processor, o.on_error)[0]))

    def load_processor(self, folder: Path) -> PixelProcessor:
        return PixelProcessor.load(folder)

    def encode(self, raw: LabelledImages, processor: PixelProcessor, cache: Path) -> Dataset[Pixels]:
        parts, skipped = [], list(raw.skipped)
        for part in (raw.train, raw.valid, raw.test):
            pixels, lost = _load(part, processor, self.options.on_error)
            parts.append(pixels)
            skipped += lost
        fingerprint = digest(hashlib.blake2b(image.tobytes(), digest_size=8).hexdigest() for pixels in parts for image in pixels)
        said = f"skipped {len(skipped):,} files, the first: {skipped[0]}" if skipped else ""
        return Dataset(parts[0], parts[1], parts[2], fingerprint, said, "images")

    def model_settings(self, model: str, processor: PixelProcessor) -> dict[str, Any]:
        self.check_kind(model)
        settings: dict[str, Any] = {"image_size": processor.size, "source_size": processor.source_size}
        settings |= {"channels": processor.channels, "levels": processor.levels}
        small = {"width": 64, "depth": 3, "hidden": 256} if max(processor.size) <= 16 and model not in SIZES else {}
        return {**small, **settings}

    def objective(self, dataset: Dataset[Pixels], processor: PixelProcessor, model: Model, seed: int) -> PixelObjective:
        require_parts(self.options.data, len(dataset.train), len(dataset.valid), "images")
        return PixelObjective(dataset, processor, self.options.batch_size, seed)

    # -- use -----------------------------------------------------------------------------------------------------------

    def evaluate(self, run: Run[ImageTransformer], data: Files | None, options: NoOptions) -> Report:
        pixels = self.test_data(run, data)
        metrics = density(run.model, run.processor, pixels, self.options.batch_size)
        notes = (f"{self.test_name(data)}: {len(pixels):,} images, {run.processor.levels} levels",)
        return Report(metrics=metrics, notes=notes, details={"data": self.test_name(data), "images": len(pixels)})

    def predict(self, run: Run[ImageTransformer], inputs: Sequence[str], options: CompletionOptions) -> list[Prediction]:
        """A PNG per image: the image, what is given of it, and samples of the rest."""
        return [self._complete(run, path, options) for path in inputs]

    @torch.no_grad()
    def _complete(self, run: Run[ImageTransformer], path: str, options: CompletionOptions) -> Prediction:
        processor, n = run.processor, options.samples
        image_1HWC, source_1HWC = processor.read(path), processor.read_source(path)
        only_source = source_1HWC is not None  # there is no image of full size to compare with
        source_1HWC = processor.source(image_1HWC) if source_1HWC is None else source_1HWC
        share = options.keep if options.keep is not None else 0.0 if source_1HWC is not None else 0.5
        keep = 0 if only_source else round(share * processor.size[0])
        source_BHWC = None if source_1HWC is None else source_1HWC.expand(n, -1, -1, -1)
        generator = torch.Generator().manual_seed(options.seed)
        found_BHWC = run.model.complete(
            image_1HWC.expand(n, -1, -1, -1), keep, source_BHWC, temperature=options.temperature, generator=generator
        )
        samples = list(processor.decode(found_BHWC))
        given = self._given(processor, image_1HWC, source_1HWC, keep)
        shown = [given, *samples] if only_source else [*processor.decode(image_1HWC), given, *samples]
        what = f"{n} samples, {keep} of {processor.size[0]} rows given"
        values: dict[str, Any] = {"samples": n, "rows_given": keep}
        if not only_source:
            bits = bits_per_dim(run.model(image_1HWC, source_1HWC), image_1HWC)
            what, values = f"{bits:.3f} bits per dimension; {what}", {"bits_per_dim": bits, **values}
        return Prediction(what, values, {".png": png_of(side_by_side(shown))})

    @staticmethod
    def _given(processor: PixelProcessor, image_1HWC: Tensor, source_1HWC: Tensor | None, keep: int) -> Pixels:
        """What the model is told: rows of the image, or the image of low resolution, enlarged."""
        given = processor.decode(image_1HWC)[0].copy()
        given[keep:] = UNKNOWN
        if source_1HWC is not None:
            low = processor.decode(source_1HWC)[0].repeat(processor.factor, 0).repeat(processor.factor, 1)
            given[keep:] = low[keep:]
        return given

    @torch.no_grad()
    def attention_maps(
        self, run: Run[ImageTransformer], text: str, layers: Layers, heads: Indices, options: PixelLookOptions
    ) -> tuple[str, Maps]:
        """What some pixels attend to while they are predicted; of all layers of the decoder, the last if not chosen."""
        processor, model = run.processor, run.model
        image_1HWC = processor.read(text)
        values_BLE, memory_BMD = model.values.split(image_1HWC), model.encode(processor.source(image_1HWC))
        pixels = [options.pixel] if options.pixel else _some_pixels(processor.size)
        for row, column in pixels:
            if not (0 <= row < processor.size[0] and 0 <= column < processor.size[1]):
                raise NotSupported(
                    f"--pixel {row} {column}: the image has {processor.size[0]} rows and {processor.size[1]} columns, from 0"
                )
        per_pixel = model.grid_columns // processor.size[1]
        positions = [row * model.grid_columns + column * per_pixel for row, column in pixels]
        names = [f"row {row}, column {column}" for row, column in pixels]
        chosen: Layers = f"decoder.{model.config.depth - 1}.mixer*" if layers is None else layers
        with capture(model, chosen, heads, rows=positions) as maps:
            model.features(values_BLE[:, :-1], memory_BMD)
        drawn = [_on_pixels(m, processor.size, per_pixel, names) for m in maps.all if ".cross" not in m.layer]
        gradients = PixelGradients(model, processor, image_1HWC, pixels, [m.layer for m in drawn])
        bits = bits_per_dim(model(image_1HWC, processor.source(image_1HWC)), image_1HWC)
        return f"{bits:.3f} bits per dimension", Maps(drawn, image=processor.decode(image_1HWC)[0], gradients=gradients)

    @classmethod
    def example(cls, folder: Path) -> Example:
        from PIL import Image

        images = folder / "images"
        images.mkdir()
        generator = np.random.default_rng(0)
        for n in range(40):
            Image.fromarray(generator.integers(0, 4, (4, 4)).astype(np.uint8) * 85).save(images / f"{n}.png")
        options = PixelsOptions(data=str(images), batch_size=8)
        settings = {"width": 16, "heads": 2, "depth": 1, "hidden": 16}
        return Example(options=options, settings=settings, input=str(images / "3.png"), broken=_add_broken)


def _add_broken(folder: Path) -> None:
    (folder / "broken.png").write_text("no image")


def _load(part: Part, processor: PixelProcessor, on_error: str) -> tuple[Pixels, list[str]]:
    pixels, _, skipped = load_pixels(part, processor.channels, processor.fit, processor.size, on_error)
    return pixels, skipped


class PixelObjective:
    """What the training loop asks; the loss is in nats per dimension, that is per channel of a pixel."""

    unit = "dimensions"
    metric = Metric("bits_per_dim", higher=False)

    def __init__(self, dataset: Dataset[Pixels], processor: PixelProcessor, batch_size: int, seed: int):
        self.train, self.valid, self.processor, self.size, self.seed = dataset.train, dataset.valid, processor, batch_size, seed

    def batches(self, epoch: int) -> Sequence[Any]:
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.train))
        return [order[at : at + self.size] for at in range(0, len(order), self.size)]

    def batch(self, item: Any) -> Tensor:
        return self.processor.encode(self.train[item])

    def loss(self, model: nn.Module, pixels_BHWC: Tensor) -> Loss:
        return Loss(model(pixels_BHWC, self.processor.source(pixels_BHWC)).sum(), pixels_BHWC.numel())

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        return density(cast(ImageTransformer, model), self.processor, self.valid, self.size)


@torch.no_grad()
def density(model: ImageTransformer, processor: PixelProcessor, pixels: Pixels, batch_size: int) -> dict[str, float]:
    """Loss in nats per dimension, and the same in bits."""
    nats, count = 0.0, 0
    for some in _batches(pixels, batch_size):
        image_BHWC = processor.encode(some)
        nats += float(model(image_BHWC, processor.source(image_BHWC)).sum())
        count += image_BHWC.numel()
    return {"loss": nats / count, "bits_per_dim": nats / count / math.log(2)}


def bits_per_dim(nats_BL: Tensor, pixels_BHWC: Tensor) -> float:
    """−log₂ p per channel of a pixel."""
    return float(nats_BL.sum()) / math.log(2) / pixels_BHWC.numel()


def _batches(pixels: Pixels, size: int) -> Iterator[Pixels]:
    for at in range(0, len(pixels), size):
        yield pixels[at : at + size]


# -- what a pixel attends to -------------------------------------------------------------------------------------------


def _some_pixels(size: tuple[int, int]) -> list[tuple[int, int]]:
    """Seven pixels spread over the image."""
    height, width = size
    shares = ((0.25, 0.25), (0.25, 0.75), (0.5, 0.25), (0.5, 0.5), (0.5, 0.75), (0.75, 0.25), (0.75, 0.75))
    return list(dict.fromkeys((min(height - 1, int(row * height)), min(width - 1, int(column * width))) for row, column in shares))


class PixelGradients(InputGradients):
    """Of the values of some pixels, with respect to the embeddings of the pixels before them; the channels of a pixel are taken together."""

    def __init__(
        self,
        model: ImageTransformer,
        processor: PixelProcessor,
        image_1HWC: Tensor,
        pixels: Sequence[tuple[int, int]],
        layers: Sequence[str],
    ):
        self.per_pixel = model.grid_columns // processor.size[1]
        values_1LE = model.values.split(image_1HWC)
        at_T = torch.tensor([row * model.grid_columns + column * self.per_pixel for row, column in pixels])
        self.values_TE, read_1NE = values_1LE[0, at_T], values_1LE[:, :-1]  # the last value is never read

        def features(model: ImageTransformer) -> Tensor:
            return model.features(read_1NE, model.encode(processor.source(image_1HWC)))[0, at_T]

        names = [
            f"{row},{column} = {', '.join(map(str, value))}" for (row, column), value in zip(pixels, self.values_TE.tolist(), strict=True)
        ]
        super().__init__(model, (read_1NE,), features, at_T, names, dict.fromkeys(layers, 0))

    def log_probability(self, model: ImageTransformer, x_D: Tensor, n: int) -> Tensor:
        return model.output.log_probs(x_D[None], self.values_TE[n][None])[0]

    def rows(self, numbers: Sequence[int]) -> list[GradientRow]:
        return [
            row._replace(norm=(self._of_pixels(row.norm[0]).norm(dim=-1),), times_input=(self._of_pixels(row.times_input[0]).sum(-1),))
            for row in super().rows(numbers)
        ]

    def _of_pixels(self, x_N: Tensor) -> Tensor:
        """(pixels, positions per pixel): the last position of the image is not an input, and nothing depends on it."""
        return torch.cat([x_N, x_N.new_zeros(1)]).unflatten(0, (-1, self.per_pixel))


def _on_pixels(m: Map, size: tuple[int, int], per_pixel: int, names: Sequence[str]) -> Map:
    """A map whose keys are pixels: the input at position t is the value before it, and the channels of a pixel are added up."""
    w = m.weights_BHLM
    every = torch.zeros(*w.shape[:3], 1 + size[0] * size[1] * per_pixel)
    every[..., torch.tensor(m.columns)] = w.float()
    pixels = every[..., 1:].unflatten(-1, (-1, per_pixel)).sum(-1)
    labels = [f"{row},{column}" for row in range(size[0]) for column in range(size[1])]
    return replace(
        m,
        columns=tuple(range(1 + len(labels))),
        weights_BHLM=torch.cat([every[..., :1], pixels], -1),
        query_labels=(tuple(names),),
        key_labels=(("start", *labels),),
        layout=Grid(*size, prefix_tokens=1),
        pattern=m.pattern if per_pixel == 1 else f"{m.pattern}, channels added up",  # no pattern of pixels, so that none is drawn
        inputs=None,
    )
