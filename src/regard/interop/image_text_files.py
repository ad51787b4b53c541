"""Preprocessor and tokenizer of models of images and text, in transformers' files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..data import HFTokenizer, Tokenizers
from ..models import CLIP, Model
from ..runs import Run
from ..tasks import ImageProcessor, TextProcessor
from ..tasks.image_text import ImageTextProcessor

# of the published checkpoints
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


class ImageTextFiles:
    def read(self, folder: Path, described: Mapping[str, Any], model: Model) -> ImageTextProcessor:
        """Read the processor; without a preprocessor_config.json that of the published checkpoints: the shorter side resized, the centre cut out."""
        assert isinstance(model, CLIP)
        size, channels = (model.config.image_size, model.config.image_size), model.config.channels
        image = ImageProcessor.find(folder) or ImageProcessor(
            size=size,
            channels=1 if channels == 1 else 3,
            mean=MEAN[:channels],
            std=STD[:channels],
            resample="bicubic",
            shortest_edge=size[0],
        )
        tokenizer = HFTokenizer.from_directory(folder)
        return ImageTextProcessor(
            image.resized(size), TextProcessor(None if tokenizer is None else Tokenizers(tokenizer), origin=str(folder))
        )

    def facts(self, run: Run[Any]) -> tuple[Sequence[str], Mapping[str, Any]]:
        return (), {}

    def write(self, run: Run[Any], out: Path) -> None:
        run.processor.image.with_labels(()).save(out)
        if run.processor.text.pair is not None:
            HFTokenizer.from_tokenizer(run.processor.tokenizer, "both").save_pretrained(out)


IMAGE_TEXT = ImageTextFiles()
