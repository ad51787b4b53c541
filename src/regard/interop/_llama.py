"""Llama and its relatives in the files of transformers: Mistral, which may have a sliding window, and Qwen 2, whose q, k, v have a bias."""

from __future__ import annotations

from typing import Any

from ..errors import BadConfig
from ..models import Llama
from ._attention import window_and_dropout
from ._family import Family, SettingKeys, Settings
from ._hf_config import HFConfig
from ._names import Entry, tensor

ARCHITECTURES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM"}


SETTINGS: SettingKeys = {
    "vocab_size": "vocab_size",
    "context_length": "max_position_embeddings",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "depth": "num_hidden_layers",
    "hidden": "intermediate_size",
    "eps": ("rms_norm_eps", 1e-6),
    "tied": ("tie_word_embeddings", False),
}


def more_settings(hf: HFConfig) -> dict[str, Any]:
    hf.require(hidden_act="silu", attention_bias=False, mlp_bias=False, use_sliding_window=False)
    return {
        "kv_heads": hf.get("num_key_value_heads") or hf["num_attention_heads"],
        "head_dim": hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"],
        **rotary_settings(hf),
        "qkv_bias": hf["model_type"] == "qwen2",
        "attention": (_attention_spec(hf),),
    }


def more_config(model: Llama) -> dict[str, Any]:
    c = model.config
    window, dropout = window_and_dropout(model, windows=not c.qkv_bias)  # Qwen 2 has no window
    model_type = "qwen2" if c.qkv_bias else "llama" if window is None else "mistral"
    return {
        "model_type": model_type,
        "architectures": [ARCHITECTURES[model_type]],
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        **rotary_config(model),
        "hidden_act": "silu",
        "attention_dropout": dropout,
        **({} if window is None else {"sliding_window": window}),
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


ROPE_TYPES: dict[str, tuple[str, ...]] = {  # rope_type → its parameters in config.json, in the order of `Rotary(stretch=…)`
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def rotary_settings(hf: HFConfig) -> dict[str, Any]:
    """Base and stretch of the rotary embedding, from rope_theta and rope_scaling (older files) or rope_parameters (newer ones)."""
    rope = {**(hf.get("rope_scaling") or {}), **(hf.get("rope_parameters") or {})}
    kind = rope.get("rope_type", rope.get("type", "default"))
    base = float(rope.get("rope_theta", hf.get("rope_theta", 10_000.0)))
    if kind not in ROPE_TYPES or rope.get("partial_rotary_factor", 1) != 1:
        raise BadConfig(f"config.json has rope_type={kind!r}, {rope}; supported are {', '.join(ROPE_TYPES)} over all features of a head")
    missing = [name for name in ROPE_TYPES[kind] if name not in rope]
    if missing:
        raise BadConfig(f"config.json has rope_type={kind!r} and lacks {', '.join(missing)}: {rope}")
    return {"base": base, "stretch": tuple(rope[name] for name in ROPE_TYPES[kind])}


def rotary_config(model: Llama) -> dict[str, Any]:
    base, stretch = model.config.base, model.config.stretch
    kind = next(kind for kind, names in ROPE_TYPES.items() if len(names) == len(stretch))
    scaling = {"rope_type": kind, **dict(zip(ROPE_TYPES[kind], stretch, strict=True))}
    return {"rope_theta": base, "rope_scaling": scaling} if stretch else {"rope_theta": base}


def _attention_spec(hf: HFConfig) -> str:
    window, dropout = hf.get("sliding_window"), hf.get("attention_dropout")
    local = hf["model_type"] == "mistral" and window is not None and window < hf["max_position_embeddings"]
    options = ([f"radius={window - 1}"] if local else []) + ([f"dropout={dropout}"] if dropout else [])
    return ("local" if local else "softmax") + (f"({', '.join(options)})" if options else "")


LLAMA = Family(
    model="llama",
    model_types=tuple(ARCHITECTURES),
    settings=SETTINGS,
    more_settings=more_settings,
    more_config=more_config,
    table=table,
    prefix="model",
    tied={"lm_head.weight": "embed_tokens.weight"},
    ignored=(r"rotary_emb\.inv_freq$",),
)
