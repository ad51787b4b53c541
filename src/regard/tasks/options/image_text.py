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

    data: Files = "scenes:count=2000,size=32"
    """A .csv (file, caption), COCO's captions .json, a folder with captions.csv or .json, or scenes:count=2000,size=32, generated."""
    images: str | None = None
    """Folder of the images; that of the captions if not given."""
    image_size: Size = 32
    """Pixels per side; images are squashed to a square."""
    tokenizer: TokenizerKind = "word"
    """Kind of tokens; with --init-from those of that run."""
    max_length: Annotated[int, Meta(ge=3)] = 32
    """Tokens per caption, its begin and end included; longer captions are cut."""
    batch_size: Size = 64
    """Captions per batch."""

    def absolute(self) -> Self:
        images = os.path.abspath(self.images) if self.images and Path(self.images).exists() else self.images
        return replace(super().absolute(), images=images)
