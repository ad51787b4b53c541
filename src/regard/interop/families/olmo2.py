"""OLMo 2 in transformers' files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...errors import NotSupported
from ..attention import layer_attention, same_in_all
from ..hf_config import HFConfig
from .llama import LlamaFamily, attention_bias, decoder_config


class Olmo2Family(LlamaFamily):
    model = "olmo2"
    model_types = ("olmo2",)
    norms: ClassVar[Mapping[str, str]] = {
        "around_mixer.after": "post_attention_layernorm",
        "around_feedforward.after": "post_feedforward_layernorm",
    }

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        return super().more_settings(hf) | {"qk_norm": True}

    def more_config(self, model: Any) -> dict[str, Any]:
        c = model.config
        if not c.qk_norm or c.part != 1 or c.norm != "rms" or not all(c.rotated):
            raise NotSupported(
                f"an OLMo 2 with qk_norm={c.qk_norm}, part={c.part}, norm={c.norm!r}, rotated={c.rotated}; transformers' has norms of q and k, RMS "
                "norms, and rotary embeddings of all features in all layers"
            )
        attention = same_in_all(model, layer_attention(model))
        return {**decoder_config(model, "Olmo2ForCausalLM", attention), "attention_bias": attention_bias(model)}

    def fits(self, model: Any) -> bool:
        return True
