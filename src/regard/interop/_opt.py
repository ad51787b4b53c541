"""OPT in transformers' files."""

from __future__ import annotations

from typing import Any

from ..models import OPT as OPTModel
from ._attention import Softmax, plain_attention_dropout
from ._family import Family, SettingKeys, Settings
from ._hf_config import HFConfig, hf_activation
from ._names import Entry, layer, tensor

SETTINGS: SettingKeys = {
    "vocab_size": "vocab_size",
    "context_length": "max_position_embeddings",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "depth": "num_hidden_layers",
    "hidden": "ffn_dim",
    "tied": "tie_word_embeddings",
    "dropout": "dropout",
}


def more_settings(hf: HFConfig) -> dict[str, Any]:
    if hf["word_embed_proj_dim"] is not None:
        hf.require(word_embed_proj_dim=hf["hidden_size"])
    return {"activation": hf.activation("activation_function"), "attention": (str(Softmax(dropout=hf["attention_dropout"])),)}


def more_config(model: OPTModel) -> dict[str, Any]:
    return {
        "architectures": ["OPTForCausalLM"],
        "word_embed_proj_dim": model.config.width,
        "activation_function": hf_activation(model.config.activation),
        "attention_dropout": plain_attention_dropout(model),
    }


def table(settings: Settings) -> list[Entry]:
    entries = [
        tensor("embedding.token.weight", "decoder.embed_tokens.weight"),
        tensor("embedding.position.table.weight", "decoder.embed_positions.weight"),
        *layer("norm", "decoder.final_layer_norm"),
    ]
    for i in range(settings["depth"]):
        block, hf = f"blocks.{i}", f"decoder.layers.{i}"
        entries += [
            *layer(f"{block}.mixer.qkv", *(f"{hf}.self_attn.{x}_proj" for x in "qkv")),
            *layer(f"{block}.mixer.out", f"{hf}.self_attn.out_proj"),
            *layer(f"{block}.feedforward.up", f"{hf}.fc1"),
            *layer(f"{block}.feedforward.down", f"{hf}.fc2"),
            *layer(f"{block}.around_mixer.before", f"{hf}.self_attn_layer_norm"),
            *layer(f"{block}.around_feedforward.before", f"{hf}.final_layer_norm"),
        ]
    return entries if settings["tied"] else [*entries, tensor("output.weight", "lm_head.weight")]


OPT = Family(
    model="opt",
    model_types=("opt",),
    settings=SETTINGS,
    more_settings=more_settings,
    more_config=more_config,
    table=table,
    prefix="model",
    tied=(("lm_head.weight", "decoder.embed_tokens.weight"),),
)
