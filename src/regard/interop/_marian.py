"""Marian translators in the files of transformers: the 2017 order of norms, sines before cosines, and a bias on the words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..errors import BadConfig, NotSupported
from ..models import Transformer
from ._encoders import only_softmax
from ._names import Line, activation, both, expect, line, need, ours, their_activation, theirs

TYPES = ("marian",)
NAMES = ("transformer",)
BUFFERS = (
    r"embed_positions\.weight$",
    r"^lm_head\.weight$",
    r"^model\.(encoder|decoder)\.embed_tokens\.weight$",
    r"^model\.shared\.weight$",
)


def config(hf: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    expect(
        hf, scale_embedding=True, normalize_before=False, normalize_embedding=False, add_final_layer_norm=False, tie_word_embeddings=True
    )  # fmt: skip
    for one, other in (("encoder_ffn_dim", "decoder_ffn_dim"), ("encoder_attention_heads", "decoder_attention_heads")):
        if need(hf, one) != need(hf, other):
            raise BadConfig(f"config.json says {one}={hf[one]} and {other}={hf[other]}; encoder and decoder here are alike in this")
    dropout = hf.get("attention_dropout", 0.0)
    return "transformer", {
        "source_vocab": need(hf, "vocab_size"),
        "target_vocab": hf.get("decoder_vocab_size") or hf["vocab_size"],
        "width": need(hf, "d_model"),
        "heads": hf["encoder_attention_heads"],
        "depth": (need(hf, "encoder_layers"), need(hf, "decoder_layers")),
        "hidden": hf["encoder_ffn_dim"],
        "dropout": hf.get("dropout", 0.1),
        "tied": "all" if hf.get("share_encoder_decoder_embeddings", True) else "output",
        "placement": "post",
        "position": "sinusoidal_halves",
        "activation": activation(hf, "activation_function", "gelu"),
        "output_bias": True,
        "attention": (f"softmax(dropout={dropout})" if dropout else "softmax",) * 3,
        "length": need(hf, "max_position_embeddings"),
    }


def weights(hf: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, Tensor]:
    found = ours(hf, _table(settings))
    return found | {"output_bias": found["output_bias"].flatten()}


def exported(model: Transformer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    only_softmax(model)
    c = model.config
    fits = c.placement == "post" and c.position == "sinusoidal_halves" and c.output_bias and c.tied != "none"
    if not fits:
        raise NotSupported(
            f"a transformer with placement={c.placement!r}, position={c.position!r}, output_bias={c.output_bias} and tied={c.tied!r} is no "
            "Marian; that has 'post', 'sinusoidal_halves', true, and 'all' or 'output'"
        )
    described = {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "vocab_size": c.source_vocab,
        "decoder_vocab_size": c.target_vocab,
        "d_model": c.width,
        "encoder_attention_heads": c.heads,
        "decoder_attention_heads": c.heads,
        "encoder_layers": c.depth[0],
        "decoder_layers": c.depth[1],
        "encoder_ffn_dim": c.hidden,
        "decoder_ffn_dim": c.hidden,
        "dropout": c.dropout,
        "attention_dropout": getattr(model.decoder[0].mixer.attention, "dropout", 0.0),  # type: ignore[union-attr]
        "activation_function": their_activation(c.activation),
        "max_position_embeddings": c.length,
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": c.tied == "all",
        "tie_word_embeddings": True,
        "is_encoder_decoder": True,
        "pad_token_id": 0,
        "decoder_start_token_id": 0,
    }
    tensors = theirs(model.state_dict(), _table(vars(c)))
    return described, tensors | {"final_logits_bias": tensors["final_logits_bias"][None]}


def _table(settings: Mapping[str, Any]) -> list[Line]:
    together = settings["tied"] == "all"
    table = [
        line("output_bias", "final_logits_bias"),
        line("embedding.token.weight", f"model.{'shared' if together else 'decoder.embed_tokens'}.weight"),
    ]
    table += [] if together else [line("source_embedding.token.weight", "model.encoder.embed_tokens.weight")]
    for stack, depth in zip(("encoder", "decoder"), settings["depth"], strict=True):
        for i in range(depth):
            here, there = f"{stack}.{i}", f"model.{stack}.layers.{i}"
            table += _looking(f"{here}.mixer", f"{there}.self_attn") + both(f"{here}.around_mixer.over", f"{there}.self_attn_layer_norm")
            if stack == "decoder":
                table += _looking(f"{here}.cross", f"{there}.encoder_attn") + both(
                    f"{here}.around_cross.over", f"{there}.encoder_attn_layer_norm"
                )
            table += both(f"{here}.feedforward.up", f"{there}.fc1") + both(f"{here}.feedforward.down", f"{there}.fc2")
            table += both(f"{here}.around_feedforward.over", f"{there}.final_layer_norm")
    return table


def _looking(here: str, there: str) -> list[Line]:
    return both(f"{here}.qkv", *(f"{there}.{x}_proj" for x in "qkv")) + both(f"{here}.out", f"{there}.out_proj")
