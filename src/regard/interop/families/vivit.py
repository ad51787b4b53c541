"""The video vision transformer in transformers' files, which has joint attention with a class token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..family import Settings
from ..hf_config import HFConfig
from ..image_files import VIDEO
from ..names import Entry, layer
from .vit import ViTFamily


class ViViTFamily(ViTFamily):
    model = "vivit"
    model_types = ("vivit",)
    settings = {ours: key for ours, key in ViTFamily.settings.items() if ours != "patch_size"} | {"frames": "num_frames"}
    prefix = "vivit"
    base = "VivitModel"
    own_heads = ("VivitForVideoClassification",)
    files = VIDEO
    plain = ViTFamily.plain | {"factorisation": "joint"}

    def table(self, settings: Settings) -> list[Entry]:
        kernel = (settings["channels"], settings["tubelet"], *settings["patch_size"])
        tubelet = layer("embedding.tubelet.project", "embeddings.patch_embeddings.projection")
        of_tubelets = [replace(tubelet[0], kernel=kernel), tubelet[1]]
        return of_tubelets + [entry for entry in super().table(settings) if not entry.name.startswith("embedding.patch.")]

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        tubelet, *patch = hf["tubelet_size"]
        own = {"tubelet": tubelet, "patch_size": tuple(patch), "pool": "class", "factorisation": "joint"}
        return super().more_settings(hf) | own

    def patches(self, c: Any) -> dict[str, Any]:
        return {"tubelet_size": [c.tubelet, *c.patch_size]}
