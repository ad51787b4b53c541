"""What tasks on images with captions share: the options, reading, the processor of images and text, and batches of both."""

from __future__ import annotations

import io
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..data import PAD, Tokenizer, Tokenizers, load_tokenizers
from ..data.captions import Captioned, Captions, is_scenes, read_captions
from ..data.hf_tokenizer import SpecialTokens
from ..data.images import Pixels, read_image
from ..data.scenes import scenes
from ..errors import NotSupported
from ..models import Model
from ._base import Dataset, Task, require_parts
from ._image_processor import ImageProcessor
from ._options import Files, TokenizerKind, TokenizerOptions
from ._processor import TextProcessor


@dataclass(frozen=True, kw_only=True)
class ImageTextOptions(TokenizerOptions):
    """Which images and captions, which tokens."""

    data: Files = "scenes:count=2000,size=32"
    """A .csv (file, caption), COCO's captions .json, a folder with captions.csv or .json, or scenes:count=2000,size=32, generated."""
    images: str | None = None
    """Folder of the images; that of the captions if not given."""
    image_size: int = 32
    """Pixels per side; images are squashed to a square."""
    tokenizer: TokenizerKind = "word"
    """Kind of tokens; with --init-from those of that run."""
    max_length: int = 32
    """Tokens per caption, its begin and end included; longer captions are cut."""
    batch_size: int = 64
    """Captions per batch."""

    def absolute(self) -> Self:
        images = os.path.abspath(self.images) if self.images and Path(self.images).exists() else self.images
        return replace(super().absolute(), images=images)


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
        special = SpecialTokens.of(self.tokenizer)
        return [special.begin, *self.tokenizer.encode(caption)[: longest - 2], special.end]


class CaptionBatch(NamedTuple):
    image_BCHW: Tensor
    ids_BL: Tensor  # begin … end, padded
    n_B: Tensor  # tokens per caption, begin and end included


class ImageTextTask(Task[ImageTextOptionsT]):
    """A task on images with captions."""

    length_option = "max_length"

    def read(self) -> Captions:
        o = self.options
        parts: dict[str, Any] = {name: _one(name, value) for name, value in o.parts().items() if name in ("valid", "test")}
        return read_captions(str(_one("data", o.data)), size=o.image_size, images=o.images, **o.parts() | parts)

    def make_processor(self, raw: Captions, base: ImageTextProcessor | None) -> ImageTextProcessor:
        o = self.options
        if base is not None:
            return base
        texts = [caption for one in raw.train for caption in one.captions]
        if o.tokenizer_file is not None:
            pair = load_tokenizers(o.tokenizer_file, o.lowercase)
        else:
            least = 2 if len(texts) > 1000 else 1
            pair = Tokenizers(Tokenizer.train(texts, o.tokenizer, o.choose_vocab_size(sum(map(len, texts))), least, o.lowercase))
        require_parts(o.data, len(raw.train), len(raw.valid), "images")
        return ImageTextProcessor(ImageProcessor.of_pixels([one.pixels for one in raw.train]), TextProcessor(pair))

    def options_for(self, model: Model) -> ImageTextOptionsT:
        """The options with captions no longer than this model reads: one that was trained before may read fewer tokens."""
        return replace(self.options, max_length=min(self.options.max_length, model.max_length))

    def load_processor(self, folder: Path) -> ImageTextProcessor:
        return ImageTextProcessor.load(folder)

    def encode(self, raw: Captions, processor: ImageTextProcessor, cache: Path) -> Dataset[list[Captioned]]:
        return Dataset(raw.train, raw.valid, raw.test, raw.digest, str(raw.skipped) if len(raw.skipped) else "", unit="images")


class CaptionBatches:
    """Every caption with its image once per epoch, in batches."""

    def __init__(self, images: Sequence[Captioned], processor: ImageTextProcessor, longest: int, size: int, seed: int = 0):
        self.images, self.processor, self.size, self.seed = images, processor, size, seed
        self.pairs = [(n, caption) for n, one in enumerate(images) for caption in one.captions]  # image and caption
        self.ids = [processor.ids(caption, longest) for _, caption in self.pairs]

    def in_order(self) -> list[list[int]]:
        """Batches in the order of the data."""
        return [list(range(at, min(at + self.size, len(self.pairs)))) for at in range(0, len(self.pairs), self.size)]

    def shuffled(self, epoch: int) -> list[list[int]]:
        """Batches of this epoch, drawn at random. Sorted by length they would save padding, but scenes with short captions are alike, and the
        statistics that batch norm takes over such a batch tell in training, and only there, what kind of caption follows."""
        order = random.Random(f"{self.seed}/{epoch}").sample(range(len(self.pairs)), len(self.pairs))
        return [order[at : at + self.size] for at in range(0, len(order), self.size)]

    def distinct(self, epoch: int) -> list[list[int]]:
        """Batches of this epoch in which no caption occurs twice: contrastive losses take all other captions for wrong ones."""
        draw = random.Random(f"{self.seed}/{epoch}")
        batches: list[list[int]] = []
        taken: list[set[str]] = []
        waiting = 0  # the first batch that is not full
        for n in draw.sample(range(len(self.pairs)), len(self.pairs)):
            caption = self.pairs[n][1]
            at = next((b for b in range(waiting, len(batches)) if len(batches[b]) < self.size and caption not in taken[b]), len(batches))
            if at == len(batches):
                batches.append([])
                taken.append(set())
            batches[at].append(n)
            taken[at].add(caption)
            while waiting < len(batches) and len(batches[waiting]) == self.size:
                waiting += 1
        return [batch for batch in batches if len(batch) > self.size // 2] or batches

    def collate(self, rows: Sequence[int]) -> CaptionBatch:
        pixels = [self.images[self.pairs[n][0]].pixels for n in rows]
        ids = [self.ids[n] for n in rows]
        longest = max(map(len, ids))
        padded = np.array([one + [PAD] * (longest - len(one)) for one in ids], dtype=np.int64)
        return CaptionBatch(
            self.processor.encode_images(pixels), torch.from_numpy(padded), torch.tensor([len(one) for one in ids], dtype=torch.long)
        )


def example_images(folder: Path, count: int = 40) -> Path:
    """A small file of captions, and images beside it."""
    from PIL import Image

    rows = []
    for n, one in enumerate(scenes(f"count={count},size=16,objects=1")):
        Image.fromarray(one.pixels).save(folder / f"{n}.png")
        rows += [f"{n}.png,{caption}\n" for caption in one.captions]
    path = folder / "captions.csv"
    path.write_text("".join(["file,caption\n", *rows]), encoding="utf-8")
    return path


def png_of(pixels: Pixels) -> bytes:
    """An image as PNG, without a date or a version: the same pixels, the same bytes."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _one(name: str, files: Files | None) -> str | None:
    if files is None or isinstance(files, str):
        return files
    if len(files) != 1:
        raise NotSupported(f"--{name} {' '.join(files)}: expected one file or folder of captions")
    return files[0]
