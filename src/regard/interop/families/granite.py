"""Granite in transformers' files: Llama with four factors."""

from __future__ import annotations

from typing import Any

from ...errors import BadConfig, NotSupported
from ..attention import layer_attention, same_in_all
from ..hf_config import HFConfig
from .llama import LlamaFamily, attention_bias, decoder_config

FACTORS = {"embedding_scale": "embedding_multiplier", "residual_scale": "residual_multiplier", "logit_divisor": "logits_scaling"}


class GraniteFamily(LlamaFamily):
    model = "granite"
    model_types = ("granite",)
    settings = LlamaFamily.settings | FACTORS
    final_norm = "norm.0"

    def scale(self, hf: HFConfig) -> float | None:
        scale: float = hf["attention_multiplier"]
        if not scale > 0:
            raise BadConfig(f"config.json has attention_multiplier={scale}; expected a number above 0")
        return scale

    def more_config(self, model: Any) -> dict[str, Any]:
        c, attention = model.config, same_in_all(model, layer_attention(model, "scale"))
        if c.qk_norm or c.part != 1 or c.norm != "rms" or not all(c.rotated):
            raise NotSupported(
                f"a Granite with qk_norm={c.qk_norm}, part={c.part}, norm={c.norm!r}, rotated={c.rotated}; transformers' has no norms of q and k, "
                "RMS norms, and rotary embeddings of all features in all layers"
            )
        return {
            **decoder_config(model, "GraniteForCausalLM", attention),
            "attention_bias": attention_bias(model),
            "attention_multiplier": c.head_dim**-0.5 if attention.scale is None else attention.scale,
        }

    def fits(self, model: Any) -> bool:
        return True
