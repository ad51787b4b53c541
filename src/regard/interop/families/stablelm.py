"""StableLM in transformers' files: Llama with layer norms and partial rotary embeddings."""

from __future__ import annotations

from typing import Any

from ...errors import BadConfig, NotSupported
from ..attention import plain_attention_dropout
from ..family import DECODER
from ..hf_config import HFConfig
from ..rotary import rotary_config, rotary_settings
from .llama import LlamaFamily


class StableLMFamily(LlamaFamily):
    model_types = ("stablelm",)
    settings = DECODER | {"hidden": "intermediate_size", "eps": "layer_norm_eps", "qkv_bias": "use_qkv_bias", "dropout": "hidden_dropout"}

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        if hf.get("head_dim") is not None:
            raise BadConfig("config.json has head_dim, which a stablelm does not have; its heads share hidden_size")
        found = super().more_settings(hf)
        return {key: value for key, value in found.items() if key not in self.settings} | {"norm": "layer"}

    def rotary(self, hf: HFConfig) -> dict[str, Any]:
        return rotary_settings(hf, part=0.25)

    def more_config(self, model: Any) -> dict[str, Any]:
        c = model.config
        if c.out_bias or c.qk_norm or not all(c.rotated) or c.head_dim * c.heads != c.width:
            raise NotSupported(
                f"a Llama with norm='layer', out_bias={c.out_bias}, qk_norm={c.qk_norm}, rotated={c.rotated}, head_dim={c.head_dim}; transformers has "
                f"StableLM without those two, with rotary embeddings in all layers and head_dim={c.width // c.heads}, its width / heads"
            )
        return {
            "architectures": ["StableLmForCausalLM"],
            "num_key_value_heads": c.kv_heads,
            "hidden_act": "silu",
            "rope_parameters": rotary_config(c.base, c.stretch, c.context_length, partial_rotary_factor=c.part),
            "attention_dropout": plain_attention_dropout(model),
        }

    def fits(self, model: Any) -> bool:
        return model.config.norm == "layer"
