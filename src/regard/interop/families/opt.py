"""OPT in transformers' files."""

from __future__ import annotations

from typing import Any

from ...models import OPT as OPTModel
from ..attention import Softmax, plain_attention_dropout
from ..family import DECODER, Family, SettingKeys, Settings
from ..hf_config import HFConfig, hf_activation
from ..names import Entry, LayerNames, block_layers, layer, tensor

SETTINGS: SettingKeys = DECODER | {"hidden": "ffn_dim", "dropout": "dropout"}
BLOCK: LayerNames = {
    "mixer.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mixer.out": "self_attn.out_proj",
    "feedforward.up": "fc1",
    "feedforward.down": "fc2",
    "around_mixer.before": "self_attn_layer_norm",
    "around_feedforward.before": "final_layer_norm",
}


class OPTFamily(Family):
    model = "opt"
    model_types = ("opt",)
    settings = SETTINGS
    prefix = "model"
    tied = (("lm_head.weight", "decoder.embed_tokens.weight"),)

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        if hf["word_embed_proj_dim"] is not None:
            hf.require(word_embed_proj_dim=hf["hidden_size"])
        return {"activation": hf.activation("activation_function"), "attention": (str(Softmax(dropout=hf["attention_dropout"])),)}

    def more_config(self, model: OPTModel) -> dict[str, Any]:
        return {
            "architectures": ["OPTForCausalLM"],
            "word_embed_proj_dim": model.config.width,
            "activation_function": hf_activation(model.config.activation),
            "attention_dropout": plain_attention_dropout(model),
        }

    def table(self, settings: Settings) -> list[Entry]:
        entries = [
            tensor("embedding.token.weight", "decoder.embed_tokens.weight"),
            tensor("embedding.position.table.weight", "decoder.embed_positions.weight"),
            *layer("norm", "decoder.final_layer_norm"),
            *block_layers(settings["depth"], "decoder.layers", BLOCK),
        ]
        return entries if settings["tied"] else [*entries, tensor("output.weight", "lm_head.weight")]
