"""Llama and its relatives in the files of transformers: Mistral, with a sliding window; Qwen 2, whose q, k, v have a bias."""

from __future__ import annotations

from typing import Any

from ..errors import BadConfig
from ..models import Llama
from ._attention import Softmax, layer_attention, same_in_all, specs, window_config
from ._constants import is_rotary_frequency
from ._family import Family, SettingKeys, Settings
from ._hf_config import HFConfig
from ._names import Entry, tensor
from ._rotary import rotary_config, rotary_settings

ARCHITECTURES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM"}
PER_LAYER = ("qwen2",)  # those whose layers may differ in their window

SETTINGS: SettingKeys = {
    "vocab_size": "vocab_size",
    "context_length": "max_position_embeddings",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "depth": "num_hidden_layers",
    "hidden": "intermediate_size",
    "eps": "rms_norm_eps",
    "tied": "tie_word_embeddings",
}


def more_settings(hf: HFConfig) -> dict[str, Any]:
    hf.require(hidden_act="silu")
    heads, kv_heads, head_dim = hf["num_attention_heads"], hf["num_key_value_heads"], hf.get("head_dim")
    rotary = rotary_settings(hf)
    if rotary.pop("part") != 1:
        raise BadConfig("config.json has a partial_rotary_factor; only 1, all features of a head, is supported")
    return {
        "kv_heads": heads if kv_heads is None else kv_heads,
        "head_dim": hf["hidden_size"] // heads if head_dim is None else head_dim,
        **rotary,
        "qkv_bias": hf.model_type == "qwen2",
        "attention": specs([Softmax(window, hf["attention_dropout"] or 0.0) for window in _windows(hf)]),
    }


def _windows(hf: HFConfig) -> list[int | None]:
    """The window of each layer; None for full attention."""
    depth, window = hf["num_hidden_layers"], hf.get("sliding_window") if hf.model_type in ("mistral", *PER_LAYER) else None
    if hf.model_type not in PER_LAYER:
        return [window]
    window, first, types = window if hf["use_sliding_window"] else None, hf["max_window_layers"], hf["layer_types"]
    if types is None:
        return [window if window is not None and i >= first else None for i in range(min(depth, 10_000))]
    return layer_windows(types, depth, window)


def layer_windows(types: Any, depth: int, window: int | None) -> list[int | None]:
    """The window of each layer, from `layer_types` and `sliding_window`."""
    if not isinstance(types, list) or len(types) != depth or not {"full_attention", "sliding_attention"} >= set(types):
        raise BadConfig(
            f"config.json has layer_types={str(types)[:60]}; expected full_attention or sliding_attention for each of {depth} layers"
        )
    if window is None and "sliding_attention" in types:
        raise BadConfig("config.json has layers of sliding_attention, and no sliding_window")
    return [window if kind == "sliding_attention" else None for kind in types]


def more_config(model: Llama) -> dict[str, Any]:
    c = model.config
    layers = layer_attention(model, "window")
    model_type = "qwen2" if c.qkv_bias else "llama" if {layer.window for layer in layers} <= {None} else "mistral"
    if model_type in PER_LAYER:
        windows = window_config(model, layers)
        windows["use_sliding_window"] = windows["sliding_window"] is not None
        layers = [layer._replace(window=None) for layer in layers]
    else:
        windows = {} if model_type == "llama" else {"sliding_window": same_in_all(model, layers).window}
    return {
        "model_type": model_type,
        "architectures": [ARCHITECTURES[model_type]],
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "rope_parameters": rotary_config(c.base, c.stretch),
        "hidden_act": "silu",
        "attention_dropout": same_in_all(model, layers).dropout,
        **windows,
    }


def table(settings: Settings) -> list[Entry]:
    entries = [tensor("embedding.token.weight", "embed_tokens.weight"), tensor("norm.weight", "norm.weight")]
    kv_size = settings["kv_heads"] * settings["head_dim"]
    sizes = (settings["heads"] * settings["head_dim"], kv_size, kv_size)
    for i in range(settings["depth"]):
        block, hf = f"blocks.{i}", f"layers.{i}"
        for part in ("weight", "bias") if settings["qkv_bias"] else ("weight",):
            projections = tuple(f"{hf}.self_attn.{x}_proj.{part}" for x in "qkv")
            entries.append(Entry(f"{block}.mixer.qkv.{part}", projections, sizes=sizes))
        entries += [
            tensor(f"{block}.mixer.out.weight", f"{hf}.self_attn.o_proj.weight"),
            tensor(f"{block}.feedforward.up.weight", f"{hf}.mlp.gate_proj.weight", f"{hf}.mlp.up_proj.weight"),
            tensor(f"{block}.feedforward.down.weight", f"{hf}.mlp.down_proj.weight"),
            tensor(f"{block}.around_mixer.before.weight", f"{hf}.input_layernorm.weight"),
            tensor(f"{block}.around_feedforward.before.weight", f"{hf}.post_attention_layernorm.weight"),
        ]
    return entries if settings["tied"] else [*entries, tensor("output.weight", "lm_head.weight")]


LLAMA = Family(
    model="llama",
    model_types=tuple(ARCHITECTURES),
    settings=SETTINGS,
    more_settings=more_settings,
    more_config=more_config,
    table=table,
    prefix="model",
    tied=(("lm_head.weight", "embed_tokens.weight"),),
    constants=((r"rotary_emb\.inv_freq$", is_rotary_frequency),),
)
