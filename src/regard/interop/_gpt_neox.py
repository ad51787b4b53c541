"""GPT-NeoX and Pythia in transformers' files: q, k and v of each head are stored together."""

from __future__ import annotations

from typing import Any

from ..errors import BadConfig
from ..models import GPTNeoX
from ._attention import Softmax, plain_attention_dropout
from ._constants import is_causal_mask, is_mask_value, is_rotary_frequency
from ._family import Family, SettingKeys, Settings
from ._hf_config import HFConfig, hf_activation
from ._names import Entry, layer, tensor
from ._rotary import rotary_config, rotary_settings

SETTINGS: SettingKeys = {
    "vocab_size": "vocab_size",
    "context_length": "max_position_embeddings",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "depth": "num_hidden_layers",
    "hidden": "intermediate_size",
    "parallel": "use_parallel_residual",
    "eps": "layer_norm_eps",
    "qkv_bias": "attention_bias",
    "tied": "tie_word_embeddings",
    "dropout": "hidden_dropout",
}


def more_settings(hf: HFConfig) -> dict[str, Any]:
    hf.get("is_decoder")  # transformers' computes the same with and without
    if hf.get("head_dim") is not None:
        raise BadConfig("config.json has head_dim, which a gpt_neox does not have; its heads share hidden_size")
    rotary = rotary_settings(hf, base_key="rotary_emb_base", part_key="rotary_pct", part=0.25)
    return {"activation": hf.activation("hidden_act"), "attention": (str(Softmax(dropout=hf["attention_dropout"])),), **rotary}


def more_config(model: GPTNeoX) -> dict[str, Any]:
    c = model.config
    return {
        "architectures": ["GPTNeoXForCausalLM"],
        "hidden_act": hf_activation(c.activation),
        "attention_dropout": plain_attention_dropout(model),
        "rope_parameters": rotary_config(c.base, c.stretch, partial_rotary_factor=c.part),
    }


def table(settings: Settings) -> list[Entry]:
    entries = [tensor("embedding.token.weight", "embed_in.weight"), *layer("norm", "final_layer_norm")]
    for i in range(settings["depth"]):
        block, hf = f"blocks.{i}", f"layers.{i}"
        for part in ("weight", "bias") if settings["qkv_bias"] else ("weight",):
            entries += [
                Entry(f"{block}.mixer.qkv.{part}", (f"{hf}.attention.query_key_value.{part}",), heads=settings["heads"]),
                tensor(f"{block}.mixer.out.{part}", f"{hf}.attention.dense.{part}"),
            ]
        entries += [
            *layer(f"{block}.feedforward.up", f"{hf}.mlp.dense_h_to_4h"),
            *layer(f"{block}.feedforward.down", f"{hf}.mlp.dense_4h_to_h"),
            *layer(f"{block}.around_mixer.before", f"{hf}.input_layernorm"),
            *layer(f"{block}.around_feedforward.before", f"{hf}.post_attention_layernorm"),
        ]
    return entries if settings["tied"] else [*entries, tensor("output.weight", "embed_out.weight")]


GPT_NEOX = Family(
    model="gpt_neox",
    model_types=("gpt_neox",),
    settings=SETTINGS,
    more_settings=more_settings,
    more_config=more_config,
    table=table,
    prefix="gpt_neox",
    heads=("embed_out.",),
    tied=(("embed_out.weight", "embed_in.weight"),),
    constants=(  # in older files
        (r"\.attention\.bias$", is_causal_mask),
        (r"\.attention\.masked_bias$", is_mask_value),
        (r"rotary_emb\.inv_freq$", is_rotary_frequency),
    ),
)
