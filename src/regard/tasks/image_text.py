"""Base class of tasks on images with captions: options, reading, the processor of images and text, and batches of both."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..data import PAD, Splits, Tokenizer, Tokenizers, load_tokenizers
from ..data.batches import Numbers
from ..data.captions import Captioned, is_scenes, read_captions
from ..data.images import Pixels, read_image
from ..data.scenes import scenes
from ..models import Model
from .dial import Profile, mean_words
from .image_processor import ImageProcessor
from .options.image_text import ImageTextOptions
from .task import Plan, cut
from .text import TokensTask
from .text_processor import TextProcessor

LONGEST = 64  # tokens of a caption, if no number is given
ImageTextOptionsT = TypeVar("ImageTextOptionsT", bound=ImageTextOptions)


@dataclass(frozen=True)
class ImageTextProcessor:
    """Images and text in and out of a model."""

    image: ImageProcessor
    text: TextProcessor

    @property
    def tokenizer(self) -> Tokenizer:
        return self.text.tokenizer

    def save(self, folder: Path) -> None:
        self.image.save(folder)
        self.text.save(folder)

    @classmethod
    def load(cls, folder: Path) -> ImageTextProcessor:
        return cls(ImageProcessor.load(folder), TextProcessor.load(folder))

    def read(self, name: str) -> Pixels:
        """The pixels of a file at its own size; scenes:seed=7 is the first of these generated scenes."""
        if is_scenes(name):
            return scenes(f"{name.partition(':')[2]},count=1".removeprefix(","))[0].pixels
        return read_image(name, self.image.channels)

    def encode_images(self, images: Sequence[Pixels]) -> Tensor:
        """x_BCHW of images of any sizes."""
        return self.image.encode([self.image.fit(one) for one in images])

    def ids(self, caption: str, longest: int) -> list[int]:
        """begin caption end, in at most `longest` tokens."""
        return [self.tokenizer.begin_id, *self.tokenizer.encode(caption)[: longest - 2], self.tokenizer.end_id]


class CaptionBatch(NamedTuple):
    image_BCHW: Tensor
    ids_BL: Tensor  # begin … end, padded
    n_B: Tensor  # tokens per caption, begin and end included


class CaptionRows:
    """Every caption with its image."""

    def __init__(self, images: Sequence[Captioned], processor: ImageTextProcessor, longest: int):
        self.images = images
        self.pairs = [(n, caption) for n, one in enumerate(images) for caption in one.captions]  # image and caption
        self.ids = [processor.ids(caption, longest) for _, caption in self.pairs]

    def __len__(self) -> int:
        return len(self.pairs)

    def select(self, rows: Numbers) -> tuple[list[Pixels], list[list[int]]]:
        """Images and ids of some captions."""
        return [self.images[self.pairs[n][0]].pixels for n in rows], [self.ids[n] for n in rows]


class ImageTextTask(TokensTask[ImageTextOptionsT]):
    """Task on images with captions."""

    Processor = ImageTextProcessor
    unit = "images"
    length_option = "max_length"

    def read(self) -> Splits[list[Captioned]]:
        o = self.options
        parts: dict[str, Any] = {name: o.one_file(name) for name in ("valid", "test")}
        return read_captions(str(o.one_file("data")), size=o.image_size, images=o.images, **o.parts() | parts)

    def profile(self, data: Splits[list[Captioned]]) -> Profile:
        words = mean_words(data.train, lambda one: one.captions)
        height, width, _ = data.train[0].pixels.shape
        return {"examples": len(data.train), "pixels": height * width, "words": words}

    def make_processor(self, data: Splits[list[Captioned]], base: ImageTextProcessor | None) -> ImageTextProcessor:
        return self.fit_processor(data.train) if base is None else base

    def fit_processor(self, train: list[Captioned]) -> ImageTextProcessor:
        """A processor for these examples."""
        o = self.options
        texts = [caption for one in train for caption in one.captions]
        if o.tokenizer_file is not None:
            pair = load_tokenizers(o.tokenizer_file, o.lowercase)
        else:
            least = 2 if len(texts) > 1000 else 1
            pair = Tokenizers(Tokenizer.train(texts, o.tokenizer, o.choose_vocab_size(sum(map(len, texts))), least, o.lowercase))
        return ImageTextProcessor(ImageProcessor.of_pixels([one.pixels for one in train]), TextProcessor(pair))

    def settings(self, model: str, data: Splits[Any]) -> dict[str, Any]:
        image = self.processor.image
        sizes = {"vocab_size": len(self.processor.tokenizer), "max_length": self._max_length(data.train)}
        return {**sizes, "image_size": image.size[0], "channels": image.channels}

    def _max_length(self, train: Sequence[Captioned]) -> int:
        longest = max((len(self.processor.ids(caption, LONGEST)) for one in train for caption in one.captions), default=LONGEST)
        return self.options.max_length or longest

    def parse(self, text: str) -> Captioned:
        """Image of a file; scenes:seed=7 is the first of these generated scenes."""
        return Captioned(text, self.processor.read(text), ("",))

    def encode(self, examples: Sequence[Captioned], model: Model) -> CaptionRows:
        """Captions no longer than this model reads: one that was trained before may read fewer tokens."""
        return CaptionRows(examples, self.processor, min(self.options.max_length or LONGEST, model.max_length))

    def plan(self, rows: CaptionRows, epoch: int | None, seed: int = 0) -> Plan:
        """Batches drawn at random. Sorted by length they would save padding, but scenes with short captions are alike, and the statistics that
        batch norm takes over such a batch tell in training, and only there, what kind of caption follows."""
        order = list(range(len(rows))) if epoch is None else random.Random(f"{seed}/{epoch}").sample(range(len(rows)), len(rows))
        return Plan(rows, cut(np.array(order, dtype=np.int64), self.options.batch_size))

    def batch(self, item: tuple[list[Pixels], list[list[int]]], generator: torch.Generator | None) -> CaptionBatch:
        pixels, ids = item
        longest = max(map(len, ids))
        padded = torch.tensor([one + [PAD] * (longest - len(one)) for one in ids])
        return CaptionBatch(self.processor.encode_images(pixels), padded, torch.tensor([len(one) for one in ids]))


def distinct(rows: CaptionRows, size: int, seed: int, epoch: int) -> list[Numbers]:
    """Batches of an epoch in which no caption occurs twice: contrastive losses take all other captions for wrong ones."""
    draw = random.Random(f"{seed}/{epoch}")
    batches: list[list[int]] = []
    taken: list[set[str]] = []
    waiting = 0  # the first batch that is not full
    for n in draw.sample(range(len(rows)), len(rows)):
        caption = rows.pairs[n][1]
        at = next((b for b in range(waiting, len(batches)) if len(batches[b]) < size and caption not in taken[b]), len(batches))
        if at == len(batches):
            batches.append([])
            taken.append(set())
        batches[at].append(n)
        taken[at].add(caption)
        while waiting < len(batches) and len(batches[waiting]) == size:
            waiting += 1
    return [np.array(batch) for batch in batches if len(batch) > size // 2] or [np.array(batch) for batch in batches]
