"""Options of tasks on images and their captions."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Self

from msgspec import Meta

from ...bounds import Size
from .shared import Files, TokenizerKind, TokenizerOptions


@dataclass(frozen=True, kw_only=True)
class ImageTextOptions(TokenizerOptions):
    """Images, captions and tokens."""

    data: Files = "scenes:count=4000,size=24"
    """A .csv (file, caption), COCO's captions .json, a folder with captions.csv or .json, or scenes:count=4000,size=24, generated."""
    images: str | None = None
    """Folder of the images; that of the captions if not given."""
    image_size: Size | None = None
    """Pixels per side; images are squashed to a square (default: 32; generated scenes keep their size)."""
    tokenizer: TokenizerKind = "word"
    """Kind of tokens; with --init-from those of that run."""
    max_length: Annotated[int, Meta(ge=3)] | None = None
    """Tokens per caption, its begin and end included; longer ones are cut (default: those of the longest in training, at most 64)."""
    batch_size: Size = 64
    """Captions per batch."""

    def absolute(self) -> Self:
        images = os.path.abspath(self.images) if self.images and Path(self.images).exists() else self.images
        return replace(super().absolute(), images=images)
