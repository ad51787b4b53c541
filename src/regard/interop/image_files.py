"""preprocessor_config.json, and the labels of images, in transformers' files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import Misfit
from ..files import read_json, write_json
from ..models import Model
from ..models.image import PatchEncoder
from ..runs import Run
from ..tasks import ImageProcessor
from ..tasks.image_processor import FILE
from .hf_config import labels_of


class ImageFiles:
    def read(self, folder: Path, described: Mapping[str, Any], model: Model) -> ImageProcessor:
        """Read the preprocessor; without a preprocessor_config.json that of the published models: bilinear, mean and deviation 0.5."""
        assert isinstance(model, PatchEncoder)
        c = model.config
        labels = labels_of(described) if c.classes else ()
        if len(labels) != c.classes:
            raise Misfit(f"{folder} has {len(labels)} labels and scores for {c.classes}")
        half = (0.5,) * c.channels
        processor = ImageProcessor.find(folder) or ImageProcessor(
            size=c.image_size, channels=1 if c.channels == 1 else 3, mean=half, std=half
        )
        return processor.with_labels(labels).resized(c.image_size)

    def facts(self, run: Run[Any]) -> tuple[Sequence[str], Mapping[str, Any]]:
        return run.processor.labels, {}

    def write(self, run: Run[Any], out: Path) -> None:
        run.processor.with_labels(()).save(out)  # the labels are in config.json


class VideoFiles(ImageFiles):
    def write(self, run: Run[Any], out: Path) -> None:
        super().write(run, out)
        plain = {**read_json(out / FILE), "image_processor_type": "VivitImageProcessor", "offset": False}
        write_json(out / FILE, {"do_center_crop": False, **plain}, indent=2)


IMAGE, VIDEO = ImageFiles(), VideoFiles()
