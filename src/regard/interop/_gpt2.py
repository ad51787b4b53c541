"""GPT-2 and GPT in the files of transformers: matrices are stored as (in, out) there, and q, k, v in one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..errors import BadConfig
from ..models import GPT, GPT2
from ._encoders import Plain, only_softmax, tied
from ._names import Line, activation, both, expect, line, need, ours, theirs

TYPES = ("gpt2",)
NAMES = ("gpt2",)
BUFFERS = (r"\.attn\.(bias|masked_bias)$", r"^lm_head\.weight$")  # masks, and the table once more


def config(hf: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    expect(
        hf, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False, tie_word_embeddings=True
    )  # fmt: skip
    if activation(hf, "activation_function", "gelu_new") != "gelu_tanh":
        raise BadConfig(f"config.json says activation_function={hf['activation_function']!r}; GPT-2 here thinks by gelu_new only")
    return "gpt2", gpt_settings(hf)


def weights(hf: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, Tensor]:
    hf = Plain(hf, "transformer")
    tied(hf, "lm_head.weight", "wte.weight")
    return ours(hf, _table(settings["depth"]))


def exported(model: GPT2) -> tuple[dict[str, Any], dict[str, Tensor]]:
    tensors = theirs(model.state_dict(), _table(model.config.depth))
    described = gpt_config(model, "gpt2", "GPT2LMHeadModel") | {"activation_function": "gelu_new"}
    return described, {f"transformer.{name}": x for name, x in tensors.items()}


def gpt_settings(hf: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes, as both families call them."""
    width = need(hf, "n_embd")
    expect(hf, layer_norm_epsilon=1e-5)
    if hf.get("n_inner") not in (None, 4 * width):
        raise BadConfig(
            f"config.json says n_inner={hf['n_inner']!r}; feed-forward parts of a GPT here are 4 times as wide as the rest, {4 * width}"
        )
    dropout = hf.get("attn_pdrop", 0.1)
    return {
        "vocab": need(hf, "vocab_size"),
        "length": need(hf, "n_positions"),
        "width": width,
        "heads": need(hf, "n_head"),
        "depth": need(hf, "n_layer"),
        "dropout": hf.get("resid_pdrop", 0.1),
        "attention": (f"softmax(dropout={dropout})" if dropout else "softmax",),
    }


def gpt_config(model: GPT | GPT2, model_type: str, architecture: str) -> dict[str, Any]:
    """The other way round."""
    only_softmax(model)
    c = model.config
    return {
        "model_type": model_type,
        "architectures": [architecture],
        "vocab_size": c.vocab,
        "n_positions": c.length,
        "n_embd": c.width,
        "n_head": c.heads,
        "n_layer": c.depth,
        "resid_pdrop": c.dropout,
        "embd_pdrop": c.dropout,
        "attn_pdrop": getattr(model.blocks[0].mixer.attention, "dropout", 0.0),  # type: ignore[union-attr]
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
    }


def blocks_table(depth: int, norm: str) -> list[Line]:
    """Attention, feed-forward parts and norms, which are called alike in both."""
    table = []
    for i in range(depth):
        here, there = f"blocks.{i}", f"h.{i}"
        table += both(f"{here}.mixer.qkv", f"{there}.attn.c_attn", turned=True)
        table += both(f"{here}.mixer.out", f"{there}.attn.c_proj", turned=True)
        table += both(f"{here}.feedforward.up", f"{there}.mlp.c_fc", turned=True)
        table += both(f"{here}.feedforward.down", f"{there}.mlp.c_proj", turned=True)
        table += both(f"{here}.around_mixer.{norm}", f"{there}.ln_1") + both(f"{here}.around_feedforward.{norm}", f"{there}.ln_2")
    return table


def _table(depth: int) -> list[Line]:
    words = [line("embedding.token.weight", "wte.weight"), line("embedding.position.table.weight", "wpe.weight")]
    return [*words, *blocks_table(depth, "before"), *both("norm", "ln_f")]
