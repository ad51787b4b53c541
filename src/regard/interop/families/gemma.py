"""Gemma, Gemma 2 and the text part of Gemma 3 in transformers' files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...errors import BadConfig, NotSupported
from ..attention import Softmax, layer_attention, plain_attention_dropout, specs, window_config
from ..hf_config import HFConfig
from ..rotary import rotary_config, rotary_settings, stretch_settings
from .llama import LlamaLayers, layer_windows

ARCHITECTURES = {"gemma2": "Gemma2ForCausalLM", "gemma3_text": "Gemma3ForCausalLM"}
NORMS = {
    "around_mixer.before": "input_layernorm",
    "around_mixer.after": "post_attention_layernorm",
    "around_feedforward.before": "pre_feedforward_layernorm",
    "around_feedforward.after": "post_feedforward_layernorm",
}


def _one_rotary(hf: HFConfig) -> dict[str, Any]:
    found = rotary_settings(hf)
    if found.pop("part") != 1 or found["stretch"]:
        raise BadConfig("config.json has scaled or partial rotary embeddings, which are not supported for a gemma2")
    return found | {"local_base": found["base"]}


def _two_rotaries(hf: HFConfig) -> dict[str, Any]:
    """Layers with a window have their own base. `rope_scaling` of older files is that of the other layers."""
    rope = hf["rope_parameters"] or {"full_attention": {"rope_type": "default"}}
    full = {**(rope.get("full_attention") or {}), **(hf.get("rope_scaling") or {}), "truncate": True}  # which is not read per kind of layer
    local = rope.get("sliding_attention") or {}
    if stretch_settings(local, 1)["stretch"] or any(each.get("partial_rotary_factor", 1) != 1 for each in (full, local)):
        raise BadConfig("config.json has rotary embeddings that are partial, or scaled in layers with a window; neither is supported")
    return {
        **stretch_settings(full, hf["max_position_embeddings"]),
        "base": full.get("rope_theta", hf.get("rope_theta", 1_000_000.0)),
        "local_base": local.get("rope_theta", hf.get("rope_local_base_freq", 10_000.0)),
    }


class GemmaFamily(LlamaLayers):
    model = "gemma"
    model_types: tuple[str, ...] = ("gemma2", "gemma3_text")
    norms: ClassVar[Mapping[str, str]] = NORMS

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        if hf.activation("hidden_activation") != "gelu_tanh":
            raise BadConfig(f"config.json has hidden_activation={hf['hidden_activation']!r}; only 'gelu_pytorch_tanh' is supported")
        softcaps = ("final_logit_softcapping",) if hf.model_type == "gemma3_text" else ("attn_logit_softcapping", "final_logit_softcapping")
        for key in ("query_pre_attn_scalar", *softcaps):
            if hf[key] is not None and not hf[key] > 0:
                raise BadConfig(f"config.json has {key}={hf[key]!r}; expected a number above 0{', or null' * (key in softcaps)}")
        depth, types, third = hf["num_hidden_layers"], hf["layer_types"], hf.model_type == "gemma3_text"
        if types is None:
            every = hf.get("sliding_window_pattern", 6) if third else 2  # every sixth, or every second, has full attention
            types = ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(min(depth, 10_000))]
        scale, softcap = hf["query_pre_attn_scalar"] ** -0.5, None if third else hf["attn_logit_softcapping"]
        layers = [
            Softmax(window, hf["attention_dropout"] or 0.0, scale, softcap) for window in layer_windows(types, depth, hf["sliding_window"])
        ]
        return {
            "kv_heads": hf["num_key_value_heads"],
            "head_dim": hf["head_dim"],
            "attention": specs(layers),
            "qk_norm": third,
            "logit_softcap": hf["final_logit_softcapping"],
            **(_two_rotaries(hf) if third else _one_rotary(hf)),
        }

    def more_config(self, model: Any) -> dict[str, Any]:
        c = model.config
        layers = layer_attention(model, "window", "scale", "softcap")
        shared = {layer._replace(window=None) for layer in layers}
        if len(shared) > 1:
            raise NotSupported("attention differs between layers by more than a window; transformers' gemma has one kind for all")
        (common,) = shared
        scale = c.head_dim**-0.5 if common.scale is None else common.scale
        scalar = round(scale**-2)
        if scalar**-0.5 != scale or (c.qk_norm and common.softcap) or (not c.qk_norm and (c.base != c.local_base or c.stretch)):
            raise NotSupported(
                f"a Gemma with scale={scale}, qk_norm={c.qk_norm}, softcap={common.softcap}, base={c.base}, local_base={c.local_base}, "
                f"stretch={c.stretch}; transformers has scales 1/√n, Gemma 3 (qk_norm) without softcap, Gemma 2 with one rotary embedding"
            )
        windows = window_config(model, layers)
        model_type = "gemma3_text" if c.qk_norm else "gemma2"
        rope = rotary_config(c.base, c.stretch, c.context_length)
        return {
            "model_type": model_type,
            "architectures": [ARCHITECTURES[model_type]],
            "num_key_value_heads": c.kv_heads,
            "head_dim": c.head_dim,
            "hidden_activation": "gelu_pytorch_tanh",
            "rope_parameters": {"full_attention": rope, "sliding_attention": rotary_config(c.local_base, (), c.context_length)}
            if c.qk_norm
            else rope,
            "attention_dropout": common.dropout,
            "query_pre_attn_scalar": scalar,
            "attn_logit_softcapping": common.softcap,
            "final_logit_softcapping": c.logit_softcap,
            **windows,
        }

    def fits(self, model: Any) -> bool:
        return model.config.placement == "sandwich"


class Gemma1Family(GemmaFamily):
    """The first Gemma: norms before each part only, full attention, one rotary embedding."""

    model_types = ("gemma",)
    norms = LlamaLayers.norms

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        if hf["hidden_act"] != "gelu" and hf.activation("hidden_act") != "gelu_tanh":  # "gelu" stands for the other in its first files
            raise BadConfig(f"config.json has hidden_act={hf['hidden_act']!r}; only 'gelu_pytorch_tanh' is supported")
        rotary = rotary_settings(hf)
        if rotary.pop("part") != 1:
            raise BadConfig("config.json has partial rotary embeddings, which are not supported for a gemma")
        return {
            "kv_heads": hf["num_key_value_heads"],
            "head_dim": hf["head_dim"],
            "placement": "pre",
            "attention": specs([Softmax(None, hf["attention_dropout"] or 0.0)]),
            **rotary,
        }

    def more_config(self, model: Any) -> dict[str, Any]:
        c = model.config
        if c.qk_norm or c.logit_softcap:
            raise NotSupported(
                f"a Gemma with placement='pre', qk_norm={c.qk_norm}, logit_softcap={c.logit_softcap}; transformers' has neither"
            )
        return {
            "architectures": ["GemmaForCausalLM"],
            "num_key_value_heads": c.kv_heads,
            "head_dim": c.head_dim,
            "hidden_act": "gelu_pytorch_tanh",
            "rope_parameters": rotary_config(c.base, c.stretch, c.context_length),
            "attention_dropout": plain_attention_dropout(model),
        }

    def fits(self, model: Any) -> bool:
        return model.config.placement == "pre"
