"""Images written pixel by pixel: densities in bits per dimension, completion of images, and super-resolution."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.images import Channels, Pixels
from ..data.labelled_images import Part, read_labelled_images
from ..data.lines import Skipped
from ..data.splits import Splits, digest
from ..errors import BadConfig, NotSupported
from ..look import Indices, Layers, Map, Maps, capture
from ..look.gradients import GradientRow, InputGradients
from ..look.images import enlarge, png_of, sheet
from ..look.layouts import Grid
from ..models import SIZES, ImageTransformer, device_of
from ..runs import Run
from ..train import Loss, Metric
from .image_task import ImageTask, Picture, Pictures
from .options.pixels import CompletionOptions, PixelLookOptions, PixelsOptions, PixelsTaskDeclaration
from .pixel_processor import PixelProcessor, count_levels
from .task import Prediction, Report

UNKNOWN = 128  # grey of the pixels that are not given, in pictures


class PixelsTask(PixelsTaskDeclaration, ImageTask[PixelsOptions]):
    Processor = PixelProcessor
    model_kind = ImageTransformer
    metric = Metric("bits_per_dim", higher=False)
    loss_unit = "dimensions"

    # -- data ----------------------------------------------------------------------------------------------------------

    def read(self) -> Splits[Part]:
        return read_labelled_images(self.options.data, **self.options.parts(), labelled=False)

    def make_processor(self, data: Splits[Part], base: PixelProcessor | None) -> PixelProcessor:
        o, first = self.options, data.train.images.shape(int(data.train.numbers[0]))
        if base is not None:
            return base
        size, factor = self.size(data.train), o.super_resolution
        if size[0] % factor or size[1] % factor:
            raise BadConfig(
                f"--super-resolution {factor} of images of {size[0]} × {size[1]} pixels; expected a divisor, or another --image-size"
            )
        channels: Channels = 1 if o.grey else first.channels
        processor = PixelProcessor(size=(size[0], size[1]), channels=channels, levels=256, factor=factor)
        if o.levels is not None:
            return replace(processor, levels=o.levels)
        some = replace(data.train, numbers=data.train.numbers[:: max(1, len(data.train) // 2000)])
        read = PixelsTask(o, processor).load(some, Skipped(on_error=o.on_error))
        return replace(processor, levels=count_levels(read.pixels))

    def prepare(self, data: Splits[Part], cache: Path) -> Splits[Pictures]:
        found = super().prepare(data, cache)
        hashes = (hashlib.blake2b(one.pixels.tobytes(), digest_size=8).hexdigest() for part in found.parts for one in part)
        return replace(found, digest=digest(hashes))

    def batch_size(self, evaluating: bool) -> int:
        return self.options.batch_size

    def batch(self, item: Sequence[Picture], generator: torch.Generator | None) -> Tensor:
        """pixels_BHWC of `levels` values."""
        return self.processor.encode(np.stack([one.pixels for one in item]))

    # -- model ---------------------------------------------------------------------------------------------------------

    def settings(self, model: str, data: Splits[Any]) -> dict[str, Any]:
        p = self.processor
        settings = {"image_size": p.size, "source_size": p.source_size, "channels": p.channels, "levels": p.levels}
        small = {"width": 64, "depth": 3, "hidden": 256} if max(p.size) <= 16 and model not in SIZES else {}
        return {**small, **settings}

    def loss(self, model: ImageTransformer, pixels_BHWC: Tensor) -> Loss:
        """Nats per dimension, that is per channel of a pixel."""
        return Loss(model(pixels_BHWC, self.processor.source(pixels_BHWC)).sum(), pixels_BHWC.numel())

    # -- use -----------------------------------------------------------------------------------------------------------

    def metrics(self, sums: Mapping[str, float], answers: Sequence[Any], examples: Any) -> dict[str, float]:
        nats = sums["loss"] / sums["count"]
        return {"loss": nats, "bits_per_dim": nats / math.log(2)}

    def report(self, sums: Mapping[str, float], answers: Sequence[Any], examples: Any, options: Any) -> Report:
        return Report(metrics=self.metrics(sums, answers, examples), notes=(f"{self.processor.levels} levels",))

    def predict(self, run: Run[ImageTransformer], inputs: Sequence[str], options: CompletionOptions) -> list[Prediction]:
        """A PNG per image: the image, what is given of it, and samples of the rest."""
        return [self._complete(run, path, options) for path in inputs]

    @torch.no_grad()
    def _complete(self, run: Run[ImageTransformer], path: str, options: CompletionOptions) -> Prediction:
        p, n, device = run.processor, options.samples, device_of(run.model)
        image_1HWC, source_1HWC = p.read_pixels(path), p.read_source(path)
        only_source = source_1HWC is not None  # there is no image of full size to compare with
        source_1HWC = p.source(image_1HWC) if source_1HWC is None else source_1HWC
        share = options.keep if options.keep is not None else 0.0 if source_1HWC is not None else 0.5
        keep = 0 if only_source else round(share * p.size[0])
        there_1HWC, source_there = image_1HWC.to(device), None if source_1HWC is None else source_1HWC.to(device)
        found_BHWC = run.model.complete(
            there_1HWC.expand(n, -1, -1, -1),
            keep,
            None if source_there is None else source_there.expand(n, -1, -1, -1),
            temperature=options.temperature,
            generator=torch.Generator().manual_seed(options.seed),
        )
        given, samples = self._given(p, image_1HWC, source_1HWC, keep), list(p.decode(found_BHWC.cpu()))
        shown = [given, *samples] if only_source else [*p.decode(image_1HWC), given, *samples]
        what = f"{n} samples, {keep} of {p.size[0]} rows given"
        values: dict[str, Any] = {"samples": n, "rows_given": keep}
        if not only_source:
            bits = bits_per_dim(run.model(there_1HWC, source_there), image_1HWC)
            what, values = f"{bits:.3f} bits per dimension; {what}", {"bits_per_dim": bits, **values}
        return Prediction(what, values, {".png": png_of(sheet([enlarge(one, 128) for one in shown], len(shown)))})

    @staticmethod
    def _given(processor: PixelProcessor, image_1HWC: Tensor, source_1HWC: Tensor | None, keep: int) -> Pixels:
        """Image as far as the model is told: rows of it, or the image of low resolution, enlarged."""
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
        """Attention of some pixels while they are predicted; of all layers of the decoder, the last if not chosen."""
        processor, model = run.processor, run.model
        image_1HWC = processor.read_pixels(text).to(device_of(model))
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
        return f"{bits:.3f} bits per dimension", Maps(drawn, image=processor.decode(image_1HWC.cpu())[0], gradients=gradients)


def bits_per_dim(nats_BL: Tensor, pixels_BHWC: Tensor) -> float:
    """−log₂ p per channel of a pixel."""
    return float(nats_BL.sum()) / math.log(2) / pixels_BHWC.numel()


# -- what a pixel attends to -------------------------------------------------------------------------------------------


def _some_pixels(size: tuple[int, int]) -> list[tuple[int, int]]:
    """Seven pixels spread over the image."""
    height, width = size
    shares = ((0.25, 0.25), (0.25, 0.75), (0.5, 0.25), (0.5, 0.5), (0.5, 0.75), (0.75, 0.25), (0.75, 0.75))
    return list(dict.fromkeys((min(height - 1, int(row * height)), min(width - 1, int(column * width))) for row, column in shares))


class PixelGradients(InputGradients):
    """Gradients of the values of some pixels with respect to the embeddings of the pixels before them; the channels of a pixel are taken together."""

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
