"""GPT-NeoX and Pythia in transformers' files: q, k and v of each head are stored together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...errors import BadConfig
from ...models import GPTNeoX
from ..attention import Softmax, plain_attention_dropout
from ..constants import is_causal_mask, is_mask_value, is_rotary_frequency
from ..family import DECODER, Constants, Family, SettingKeys, Settings
from ..hf_config import HFConfig, hf_activation
from ..names import Entry, LayerNames, block_layers, layer, tensor
from ..rotary import rotary_config, rotary_settings

SETTINGS: SettingKeys = DECODER | {
    "hidden": "intermediate_size",
    "parallel": "use_parallel_residual",
    "eps": "layer_norm_eps",
    "qkv_bias": "attention_bias",
    "dropout": "hidden_dropout",
}
BLOCK: LayerNames = {
    "feedforward.up": "mlp.dense_h_to_4h",
    "feedforward.down": "mlp.dense_4h_to_h",
    "around_mixer.before": "input_layernorm",
    "around_feedforward.before": "post_attention_layernorm",
}


class GPTNeoXFamily(Family):
    model = "gpt_neox"
    model_types: tuple[str, ...] = ("gpt_neox",)
    settings = SETTINGS
    prefix = "gpt_neox"
    heads = ("embed_out.",)
    tied = (("embed_out.weight", "embed_in.weight"),)
    constants: Constants = (  # in older files
        (r"\.attention\.bias$", is_causal_mask),
        (r"\.attention\.masked_bias$", is_mask_value),
        (r"rotary_emb\.inv_freq$", is_rotary_frequency),
    )

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        hf.get("is_decoder")  # transformers' computes the same with and without
        if hf.get("head_dim") is not None:
            raise BadConfig("config.json has head_dim, which a gpt_neox does not have; its heads share hidden_size")
        rotary = rotary_settings(hf, base_key="rotary_emb_base", part_key="rotary_pct", part=0.25)
        return {"activation": hf.activation("hidden_act"), "attention": (str(Softmax(dropout=hf["attention_dropout"])),), **rotary}

    def more_config(self, model: GPTNeoX) -> dict[str, Any]:
        c = model.config
        return {
            "architectures": ["GPTNeoXForCausalLM"],
            "hidden_act": hf_activation(c.activation),
            "attention_dropout": plain_attention_dropout(model),
            "rope_parameters": rotary_config(c.base, c.stretch, c.context_length, partial_rotary_factor=c.part),
        }

    def fits(self, model: Any) -> bool:
        return model.config.kv_heads is None

    def table(self, settings: Settings) -> list[Entry]:
        depth, bias = settings["depth"], settings["qkv_bias"]
        qkv = block_layers(depth, "layers", {"mixer.qkv": "attention.query_key_value"}, bias=bias)
        entries = [
            tensor("embedding.token.weight", "embed_in.weight"),
            *layer("norm", "final_layer_norm"),
            *(replace(entry, heads=settings["heads"]) for entry in qkv),
            *block_layers(depth, "layers", {"mixer.out": "attention.dense"}, bias=bias),
            *block_layers(depth, "layers", BLOCK),
        ]
        return entries if settings["tied"] else [*entries, tensor("output.weight", "embed_out.weight")]
