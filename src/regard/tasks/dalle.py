r"""Images from texts: pictures with sentences in, a model that draws out.

Two stages in one training. During the first --vae-epochs the discrete VAE learns its codes: reconstruction plus β KL to the uniform distribution; over
the first half the temperature of the Gumbel-softmax falls from 1 to 1/16, and β rises from 0 to --kl. Then its parameters stay as they are, and
the transformer learns text and codes: (text + 7 · image) / 8, cross-entropies per token. Each stage has a learning rate of its own, a factor of the
schedule's: of the VAE it falls along half a cosine to zero, of the transformer it rises from zero in its first epoch.

The deciding metric is the joint bound of both stages, −log p(text, image) ≤ −log p(image | codes) − log p(text, codes), in nats per number in the image.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import cos, isqrt, pi
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..data.captions import Captioned, Captions
from ..data.images import Pixels
from ..errors import NotSupported
from ..look import Grid, Indices, Layers, Maps, capture
from ..models import CLIP, DALLE, Model, eval_mode
from ..models.dalle import PADDING
from ..runs import Run
from ..train import Loss, Metric, TrainOptions
from ._base import Dataset, Example, NoOptions, Prediction, Report, check_range
from ._image_processor import ImageProcessor
from ._image_text import CaptionBatch, CaptionBatches, ImageTextOptions, ImageTextProcessor, ImageTextTask, example_images, png_of
from ._options import Files
from ._runs import load_run
from .clip import image_vectors, text_vectors

COLDEST = 1 / 16  # temperature at the end of the first stage


@dataclass(frozen=True, kw_only=True)
class DalleOptions(ImageTextOptions):
    """Which images and captions, which tokens, and the terms of the loss."""

    vae_epochs: int = 20
    """Epochs over the images in which the discrete VAE is trained; the transformer is trained in those after."""
    kl: float = 1.0
    """Weight β of the VAE's KL term, at its end."""
    image_weight: float = 7.0
    """Weight of the image tokens in the loss; that of the text is 1."""

    def __post_init__(self) -> None:
        check_range(
            self,
            vae_epochs=(self.vae_epochs >= 1, "at least 1"),
            kl=(self.kl >= 0, "0 or more"),
            image_weight=(self.image_weight > 0, "above 0"),
            max_length=(self.max_length >= 3, "at least 3: a begin, a word and an end"),
            batch_size=(self.batch_size >= 1, "at least 1"),
        )


@dataclass(frozen=True, kw_only=True)
class DrawOptions:
    """How to draw."""

    n: int = 1
    """Images to draw per text; several are put in one PNG, best first with --rank-by."""
    rank_by: str | None = None
    """A run of the task clip: images are ranked by how well they fit the text."""
    temperature: float = 1.0
    """Of the codes; lower is safer, 0 takes the most likely code."""
    seed: int = 0
    """Random seed."""

    def __post_init__(self) -> None:
        check_range(
            self, n=(1 <= self.n <= 512, "1 to 512"), temperature=(self.temperature >= 0, "0 or more"), seed=(self.seed >= 0, "0 or more")
        )


class Dalle(ImageTextTask[DalleOptions]):
    """Train a model that draws images from texts.

    As in:  regard train dalle --out runs/dalle --minutes 10
            regard train dalle --data captions.csv --images photos --image-size 64 --out runs/mine --minutes 120
            regard predict runs/dalle "a red circle left of a blue square" --n 16 --rank-by runs/clip
    """

    name = "dalle"
    Options = DalleOptions
    PredictOptions = DrawOptions
    LookOptions = DrawOptions
    model_kind = DALLE
    default_model = "dalle"
    default_train = TrainOptions(lr=2e-3, epochs=60, schedule="wsd", average=0)
    next_commands = 'regard evaluate {out}        regard predict {out} "a red circle left of a blue square"'

    # -- training ------------------------------------------------------------------------------------------------------

    def make_processor(self, raw: Captions, base: ImageTextProcessor | None) -> ImageTextProcessor:
        made = super().make_processor(raw, base)
        if base is not None:
            return made
        size, channels = made.image.size, made.image.channels  # pixels from 0 to 1
        return ImageTextProcessor(ImageProcessor(size=size, channels=channels, mean=(0.0,) * channels, std=(1.0,) * channels), made.text)

    def model_settings(self, model: str, processor: ImageTextProcessor) -> dict[str, Any]:
        sizes = {"image_size": processor.image.size[0], "channels": processor.image.channels}
        return {**super().model_settings(model, processor), **sizes}

    def objective(self, dataset: Dataset[list[Captioned]], processor: ImageTextProcessor, model: Model, seed: int) -> DalleObjective:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise NotSupported("dalle trains on one process: each of its stages leaves half of the parameters without gradients")
        return DalleObjective(dataset, processor, self.options_for(model), seed)

    # -- use -----------------------------------------------------------------------------------------------------------

    def evaluate(self, run: Run[DALLE], data: Files | None, options: NoOptions) -> Report:
        images, o = self.test_data(run, data), self.options
        batches = CaptionBatches(images, run.processor, self.options_for(run.model).max_length, o.batch_size)
        notes = f"{self.test_name(data)}: {len(images):,} images, {len(batches.pairs):,} captions"
        return Report(
            metrics=bound(run.model, batches, len(batches.pairs)),
            notes=(notes,),
            details={"data": self.test_name(data), "images": len(images)},
        )

    def predict(self, run: Run[DALLE], inputs: Sequence[str], options: DrawOptions) -> list[Prediction]:
        judge = None if options.rank_by is None else load_run(options.rank_by, CLIP)
        return [self._prediction(run, text, options, judge) for text in inputs]

    def _prediction(self, run: Run[DALLE], text: str, options: DrawOptions, judge: Run[CLIP] | None) -> Prediction:
        images = draw(run.model, run.processor, [text] * options.n, options.temperature, options.seed)
        scores = [] if judge is None else ranks(judge, text, images)
        if scores:
            order = sorted(range(len(images)), key=lambda n: -scores[n])
            images, scores = [images[n] for n in order], [scores[n] for n in order]
        size = f"{images[0].shape[0]} × {images[0].shape[1]} pixels"
        said = f"an image of {size}" if len(images) == 1 else f"{len(images)} images of {size}"
        values = {"images": len(images), **({"scores": scores} if scores else {})}
        return Prediction(said + (f", best score {scores[0]:.3f}" if scores else ""), values, {".png": png_of(sheet(images))})

    @torch.no_grad()
    def attention_maps(self, run: Run[DALLE], text: str, layers: Layers, heads: Indices, options: DrawOptions) -> tuple[str, Maps]:
        """An image drawn for the text, and what its last code attends to; with `layers` all rows of these layers."""
        model, processor = run.model, run.processor
        c, rows = model.config, -1 if layers is None else None
        text_1T = text_ids(processor, [text], c.max_length)
        with eval_mode(model):
            codes_1M = model.sample(text_1T, temperature=options.temperature, generator=torch.Generator().manual_seed(options.seed))
            ids_1L = model.sequence(text_1T, codes_1M)
            with capture(model, layers, heads, rows=rows) as maps:
                model.features(ids_1L)
        words = processor.tokenizer.strings(text_1T[0].tolist())  # one text: no padding
        names = [*words, *[""] * (c.max_length - len(words)), *(f"{r + 1},{k + 1}" for r in range(c.grid) for k in range(c.grid))]
        grid = Grid(c.grid, c.grid, prefix_tokens=c.max_length)
        pixels = processor.image.decode(model.vae.draw(codes_1M)[0])
        return "", Maps([m.label(names, names, layout=grid) for m in maps.all], maps.idle, image=pixels)

    @classmethod
    def example(cls, folder: Path) -> Example:
        options = DalleOptions(
            data=str(example_images(folder)), image_size=16, batch_size=12, vae_epochs=1, max_length=8, shares=(0.1, 0.1)
        )
        settings = {"features": 8, "codes": 5, "width": 8, "heads": 2, "depth": 2}
        return Example(options=options, settings=settings, input="a red circle", broken="nowhere.png,a red circle\n")


class Item(NamedTuple):
    """A batch: of images, with the share of the first stage that is done, or of captions in the second stage."""

    rows: list[int]
    progress: float | None = None
    rate: float = 1.0  # factor of the learning rate


class ImageBatch(NamedTuple):
    image_BCHW: Tensor
    progress: float


class DalleObjective:
    """What the training loop asks."""

    unit = "images"
    metric = Metric("loss", higher=False)

    def __init__(self, dataset: Dataset[list[Captioned]], processor: ImageTextProcessor, options: DalleOptions, seed: int = 0):
        self.options, self.processor, self.seed = options, processor, seed
        self.train = CaptionBatches(dataset.train, processor, options.max_length, options.batch_size, seed)
        self.valid = CaptionBatches(dataset.valid, processor, options.max_length, options.batch_size)

    def batches(self, epoch: int) -> Sequence[Item]:
        o, images = self.options, self.train.images
        if epoch >= o.vae_epochs:
            plan = self.train.shuffled(epoch)
            return [Item(rows, rate=(n + 1) / len(plan) if epoch == o.vae_epochs else 1.0) for n, rows in enumerate(plan)]
        order = random.Random(f"{self.seed}/{epoch}").sample(range(len(images)), len(images))
        starts = range(0, len(order), o.batch_size)
        done = [(epoch + at / len(order)) / o.vae_epochs for at in starts]
        return [Item(order[at : at + o.batch_size], share, _fall(share)) for at, share in zip(starts, done, strict=True)]

    def batch_rate(self, item: Item) -> float:
        return item.rate

    def batch(self, item: Item) -> Any:
        if item.progress is None:
            return self.train.collate(item.rows)
        return ImageBatch(self.processor.encode_images([self.train.images[n].pixels for n in item.rows]), item.progress)

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        assert isinstance(model, DALLE)
        o, B = self.options, len(batch.image_BCHW)
        if isinstance(batch, ImageBatch):
            terms = model.vae.terms(batch.image_BCHW, temperature(batch.progress))
            beta = o.kl * min(1.0, 2 * batch.progress)
            total = (terms.reconstruction_B + beta * terms.kl_B).sum() / batch.image_BCHW[0].numel()
            return Loss(total, B, {"kl": float(terms.kl_B.detach().sum())})
        found, c = model(_without_padding(batch), model.vae.encode(batch.image_BCHW)), model.config
        text_B, image_B = found.text_B / (c.max_length - 1), found.image_B / c.grid**2
        return Loss((text_B + o.image_weight * image_B).sum() / (1 + o.image_weight), B, {"image": float(image_B.detach().sum())})

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        assert isinstance(model, DALLE)
        return bound(model, self.valid, 500)


def temperature(progress: float) -> float:
    """Of the Gumbel-softmax: half a cosine from 1 down to 1/16, which is reached after half of the stage."""
    return COLDEST + (1 - COLDEST) * _fall(2 * progress)


def _fall(progress: float) -> float:
    """Half a cosine from 1 down to 0."""
    return (1 + cos(pi * min(progress, 1.0))) / 2


@torch.no_grad()
def bound(model: DALLE, batches: CaptionBatches, captions: int) -> dict[str, float]:
    """The joint bound per number in the image and its parts: reconstruction, and cross-entropies per token of text and image."""
    sums, count, used = np.zeros(4), 0, torch.zeros(model.config.codes)
    with eval_mode(model):
        for rows in batches.in_order()[: -(-captions // batches.size)]:
            batch = batches.collate(rows)
            codes_BM = model.vae.encode(batch.image_BCHW)
            found, drawn = model(_without_padding(batch), codes_BM), model.vae.draw(codes_BM)
            error_B = (drawn - batch.image_BCHW).abs().flatten(1).mean(1)
            parts = (model.vae.reconstruction(batch.image_BCHW), found.text_B, found.image_B, error_B)
            sums += [float(part.sum()) for part in parts]
            count += len(rows)
            used += torch.bincount(codes_BM.flatten(), minlength=len(used))
    c = model.config
    (reconstruction, text, image, error), numbers = (sums / count).tolist(), c.channels * c.image_size**2
    share = used / used.sum()
    return {
        "loss": (reconstruction + text + image) / numbers,
        "reconstruction": reconstruction / numbers,
        "absolute_error": error,
        "code_perplexity": float(torch.special.entr(share).sum().exp()),
        "text_loss": text / (c.max_length - 1),
        "image_loss": image / c.grid**2,
    }


def _without_padding(batch: CaptionBatch) -> Tensor:
    """The ids of a batch as the model takes them: each text position has a padding of its own."""
    beyond_BL = torch.arange(batch.ids_BL.shape[1], device=batch.ids_BL.device) >= batch.n_B[:, None]
    return batch.ids_BL.masked_fill(beyond_BL, PADDING)


def text_ids(processor: ImageTextProcessor, texts: Sequence[str], longest: int) -> Tensor:
    """Padded ids of texts."""
    ids = [processor.ids(text, longest) for text in texts]
    length = max(map(len, ids))
    return torch.tensor([one + [PADDING] * (length - len(one)) for one in ids])


@torch.no_grad()
def draw(
    model: DALLE, processor: ImageTextProcessor, texts: Sequence[str], temperature: float = 1.0, seed: int = 0, batch_size: int = 64
) -> list[Pixels]:
    """An image per text; the same seed, the same images."""
    generator, found = torch.Generator().manual_seed(seed), list[Pixels]()
    with eval_mode(model):
        for at in range(0, len(texts), batch_size):
            text_BT = text_ids(processor, texts[at : at + batch_size], model.config.max_length)
            codes_BM = model.sample(text_BT, temperature=temperature, generator=generator)
            found += [processor.image.decode(x_CHW) for x_CHW in model.vae.draw(codes_BM)]
    return found


def ranks(judge: Run[CLIP], text: str, images: Sequence[Pixels]) -> list[float]:
    """The cosine of each image with the text."""
    i_BE, t_1E = image_vectors(judge.model, judge.processor, images), text_vectors(judge.model, judge.processor, [text])
    found: list[float] = (i_BE @ t_1E.T)[:, 0].tolist()
    return found


def sheet(images: Sequence[Pixels], gap: int = 2) -> Pixels:
    """Images side by side, row by row, as nearly square as possible."""
    columns = isqrt(len(images) - 1) + 1
    rows = -(-len(images) // columns)
    height, width = images[0].shape[:2]
    whole = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap, *images[0].shape[2:]), 128, dtype=np.uint8)
    for n, image in enumerate(images):
        top, left = n // columns * (height + gap), n % columns * (width + gap)
        whole[top : top + height, left : left + width] = image
    return whole
