"""Longformer in the files of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..models import Longformer
from ._encoders import PLACES, Plain, embedding_table, encoder_config, encoder_settings, looking_table, prefixed, thinking_table, tied
from ._names import Line, both, expect, line, ours, theirs

TYPES = ("longformer",)
NAMES = ("longformer_encoder",)  # `longformer` is the mechanism
BUFFERS = (PLACES, r"^lm_head\.decoder\.(weight|bias)$")


def config(hf: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Which tokens look globally is not in the files: a caller says so over there. Here it is the first one, as classifiers have it."""
    expect(hf, pad_token_id=1, hidden_act="gelu")  # places begin behind padding's; the head for words has gelu, whatever the rest has
    settings = encoder_settings(hf)
    window = hf.get("attention_window", 512)
    del settings["attention"]
    return "longformer_encoder", settings | {
        "length": settings["length"] - Longformer.offset,
        "window": [window] if isinstance(window, int) else list(window),
        "attention_dropout": hf.get("attention_probs_dropout_prob", 0.1),
    }


def weights(hf: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, Tensor]:
    hf = Plain(hf, "longformer")
    tied(hf, "lm_head.decoder.weight", "embeddings.word_embeddings.weight")
    tied(hf, "lm_head.decoder.bias", "lm_head.bias")
    return ours(hf, _table(settings))


def exported(model: Longformer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    c = model.config
    kind = "LongformerForMaskedLM" if c.words else "LongformerModel"
    window = list(c.window) if len(c.window) > 1 else c.window[0]
    more = {
        "max_position_embeddings": c.length + model.offset,
        "pad_token_id": 1,
        "attention_window": window,
        "attention_probs_dropout_prob": c.attention_dropout,
    }
    tensors = theirs(model.state_dict(), _table(vars(c)))
    return encoder_config(model, "longformer", kind) | more, prefixed(tensors, "longformer" if c.words else "")


def _table(settings: Mapping[str, Any]) -> list[Line]:
    depth = settings["depth"]
    table = [*embedding_table(), *looking_table(depth), *thinking_table(depth)]
    for i in range(depth):
        there = f"encoder.layer.{i}.attention.self"
        table += both(f"blocks.{i}.mixer.global_qkv", *(f"{there}.{part}_global" for part in ("query", "key", "value")))
    table += both("pooler", "pooler.dense") if settings["pooler"] else []
    if settings["words"]:
        table += [*both("speaker.0", "lm_head.dense"), *both("speaker.1", "lm_head.layer_norm"), line("word_bias", "lm_head.bias")]
    return table
