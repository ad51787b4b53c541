"""Llama and its kin in the files of transformers: Mistral, which may look through a window, and Qwen 2, whose q, k, v have a bias."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..attention import LocalAttention
from ..errors import BadConfig
from ..models import Llama
from ._encoders import Plain, only_softmax, tied
from ._names import Line, expect, line, need, ours, theirs

TYPES = ("llama", "mistral", "qwen2")
NAMES = ("llama",)
BUFFERS = (r"rotary_emb\.inv_freq$", r"^lm_head\.weight$")  # angles; the table once more, where it is tied


def config(hf: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    expect(hf, hidden_act="silu", attention_bias=False, mlp_bias=False, use_sliding_window=False)
    width, heads = need(hf, "hidden_size"), need(hf, "num_attention_heads")
    base, stretch = _rotary(hf)
    return "llama", {
        "vocab": need(hf, "vocab_size"),
        "length": need(hf, "max_position_embeddings"),
        "width": width,
        "heads": heads,
        "depth": need(hf, "num_hidden_layers"),
        "kv_heads": hf.get("num_key_value_heads") or heads,
        "head_width": hf.get("head_dim") or width // heads,
        "hidden": need(hf, "intermediate_size"),
        "base": base,
        "stretch": stretch,
        "eps": hf.get("rms_norm_eps", 1e-6),
        "qkv_bias": hf["model_type"] == "qwen2",
        "tied": hf.get("tie_word_embeddings", False),
        "attention": (_attention(hf),),
    }


def weights(hf: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, Tensor]:
    hf = Plain(hf, "model")
    if settings["tied"]:
        tied(hf, "lm_head.weight", "embed_tokens.weight")
    return ours(hf, _table(settings))


def exported(model: Llama) -> tuple[dict[str, Any], dict[str, Tensor]]:
    c, windows = model.config, {_window(block.mixer.attention) for block in model._blocks()}
    if windows == {None} or len(windows) > 1:
        only_softmax(model)
    kind = "qwen2" if c.qkv_bias else "llama" if windows == {None} else "mistral"
    described = {
        "model_type": kind,
        "architectures": [{"qwen2": "Qwen2ForCausalLM", "mistral": "MistralForCausalLM"}.get(kind, "LlamaForCausalLM")],
        "vocab_size": c.vocab,
        "max_position_embeddings": c.length,
        "hidden_size": c.width,
        "num_attention_heads": c.heads,
        "num_hidden_layers": c.depth,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_width,
        "intermediate_size": c.hidden,
        "rope_theta": float(c.base),
        **_scaling(c.stretch),
        "rms_norm_eps": c.eps,
        "tie_word_embeddings": c.tied,
        "hidden_act": "silu",
    }
    if kind == "mistral":
        described["sliding_window"] = windows.pop()
    settings, own = vars(c), model.state_dict()
    table = _table(settings)
    cut = {each.ours: _cut(own[each.ours], each, settings) for each in table if ".qkv." in each.ours}
    tensors = {name: part for each in table if each.ours in cut for name, part in zip(each.theirs, cut[each.ours], strict=True)}
    tensors |= theirs(own, [each for each in table if each.ours not in cut])
    return described, {name if name == "lm_head.weight" else f"model.{name}": x for name, x in tensors.items()}


def _table(settings: Mapping[str, Any]) -> list[Line]:
    table = [line("embedding.token.weight", "embed_tokens.weight"), line("norm.weight", "norm.weight")]
    for i in range(settings["depth"]):
        here, there = f"blocks.{i}", f"layers.{i}"
        for part in ("weight", "bias") if settings["qkv_bias"] else ("weight",):
            table.append(line(f"{here}.mixer.qkv.{part}", *(f"{there}.self_attn.{x}_proj.{part}" for x in "qkv")))
        table += [
            line(f"{here}.mixer.out.weight", f"{there}.self_attn.o_proj.weight"),
            line(f"{here}.feedforward.up.weight", f"{there}.mlp.gate_proj.weight", f"{there}.mlp.up_proj.weight"),
            line(f"{here}.feedforward.down.weight", f"{there}.mlp.down_proj.weight"),
            line(f"{here}.around_mixer.before.weight", f"{there}.input_layernorm.weight"),
            line(f"{here}.around_feedforward.before.weight", f"{there}.post_attention_layernorm.weight"),
        ]
    return table if settings["tied"] else [*table, line("output.weight", "lm_head.weight")]


def _cut(qkv: Tensor, each: Line, settings: Mapping[str, Any]) -> list[Tensor]:
    """q, k and v, of which q may have more heads."""
    rows = [settings[heads] * settings["head_width"] for heads in ("heads", "kv_heads", "kv_heads")]
    return [part.contiguous() for part in torch.split(qkv, rows)]


STRETCHES: dict[str, tuple[str, ...]] = {  # kinds of rotary places → what config.json says of them, in the order of `Rotary(stretch=…)`
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def _rotary(hf: Mapping[str, Any]) -> tuple[int, tuple[float, ...]]:
    """Base and stretch of the angles. Older files say them beside the rest, newer ones with all there is to say of places."""
    said = {**(hf.get("rope_scaling") or {}), **(hf.get("rope_parameters") or {})}
    kind = said.get("rope_type", said.get("type", "default"))
    base = float(said.get("rope_theta", hf.get("rope_theta", 10_000.0)))
    if kind not in STRETCHES or said.get("partial_rotary_factor", 1) != 1 or not base.is_integer():
        raise BadConfig(
            f"config.json asks for rotary places of the kind {kind!r}, {said}; here are {', '.join(STRETCHES)}, over all features of a head"
        )
    missing = [name for name in STRETCHES[kind] if name not in said]
    if missing:
        raise BadConfig(f"config.json asks for rotary places of the kind {kind!r} and does not say {', '.join(missing)}: {said}")
    return int(base), tuple(said[name] for name in STRETCHES[kind])


def _scaling(stretch: tuple[float, ...]) -> dict[str, Any]:
    kind = next(kind for kind, names in STRETCHES.items() if len(names) == len(stretch))
    return {"rope_scaling": {"rope_type": kind, **dict(zip(STRETCHES[kind], stretch, strict=True))}} if stretch else {}


def _attention(hf: Mapping[str, Any]) -> str:
    window, dropout = hf.get("sliding_window"), hf.get("attention_dropout") or 0
    far = hf["model_type"] != "mistral" or window is None or window >= need(hf, "max_position_embeddings")
    options = {} if far or window is None else {"radius": window - 1}
    options |= {"dropout": dropout} if dropout else {}
    said = f"({', '.join(f'{name}={value}' for name, value in options.items())})" if options else ""
    return ("softmax" if far else "local") + said


def _window(attention: Any) -> int | None:
    """How many tokens it sees, itself included, if that is all it does differently."""
    plain = type(attention) is LocalAttention and (attention.scale, attention.softcap, attention.sink_H) == (None,) * 3
    return attention.settings.get("radius", 128) + 1 if plain else None
