"""MPNet in transformers' files."""

from __future__ import annotations

from typing import Any, ClassVar

from ...errors import NotSupported
from ..encoders import ROBERTA_HEAD
from ..family import SettingKeys
from ..hf_config import HFConfig
from ..names import Entry, layer, tensor
from .roberta import RobertaFamily, roberta_heads

PADDING = 1  # whatever pad_token_id says
BUCKETS = 32


class MPNetFamily(RobertaFamily):
    model = "mpnet"
    model_types = ("mpnet",)
    architecture = "MPNet"
    settings: ClassVar[SettingKeys] = {ours: key for ours, key in RobertaFamily.settings.items() if ours != "segments"}
    mlm_head = ROBERTA_HEAD
    extra_table = (tensor("blocks.0.mixer.position.table.weight", "encoder.relative_attention_bias.weight"),)  # of all layers
    classifiers = roberta_heads("MPNet")

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        hf.require(relative_attention_num_buckets=BUCKETS)
        padding = {"padding": PADDING, "max_length": hf["max_position_embeddings"] - PADDING - 1}
        return super().more_settings(hf) | padding | {"segments": 0, "buckets": BUCKETS}

    def more_config(self, model: Any) -> dict[str, Any]:
        c = model.config
        if c.padding != PADDING or c.buckets != BUCKETS:
            raise NotSupported(
                f"this mpnet has padding={c.padding} and buckets={c.buckets}; transformers' has padding={PADDING} and buckets={BUCKETS}"
            )
        return super().more_config(model) | {"relative_attention_num_buckets": BUCKETS}

    def mixer_table(self, i: int) -> list[Entry]:
        hf = f"encoder.layer.{i}.attention"
        return [
            *layer(f"blocks.{i}.mixer.qkv", *(f"{hf}.attn.{part}" for part in "qkv")),
            *layer(f"blocks.{i}.mixer.out", f"{hf}.attn.o"),
            *layer(f"blocks.{i}.around_mixer.over", f"{hf}.LayerNorm"),
        ]

    def fits(self, model: Any) -> bool:
        return not model.config.segments and model.config.activation == "gelu" and model.config.embedding_width is None
