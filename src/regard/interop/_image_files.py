"""preprocessor_config.json, and the labels of images, in the files of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import Misfit
from ..models import ImageEncoder, Model
from ..runs import Run
from ..tasks import ImageProcessor
from ._hf_config import labels_of


class ImageFiles:
    def read(self, folder: Path, described: Mapping[str, Any], model: Model) -> ImageProcessor:
        """Without a preprocessor_config.json that of the published models: bilinear, mean and deviation 0.5."""
        assert isinstance(model, ImageEncoder)
        c = model.config
        labels = labels_of(described) if c.classes else ()
        if len(labels) != c.classes:
            raise Misfit(f"{folder} has {len(labels)} labels and scores for {c.classes}")
        half = (0.5,) * c.channels
        processor = ImageProcessor.find(folder) or ImageProcessor(
            size=c.image_size, channels=1 if c.channels == 1 else 3, mean=half, std=half
        )
        return processor.with_labels(labels).resized(c.image_size)

    def facts(self, run: Run[Any]) -> dict[str, Any]:
        return {"labels": run.processor.labels}

    def write(self, run: Run[Any], out: Path) -> None:
        run.processor.with_labels(()).save(out)  # the labels are in config.json


IMAGE = ImageFiles()
