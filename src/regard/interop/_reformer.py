"""Reformer in the files of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..models import Reformer
from ._encoders import Plain, prefixed, unswapped
from ._names import Line, activation, both, expect, line, need, ours, their_activation, theirs

TYPES = ("reformer",)
NAMES = ("reformer",)
BUFFERS = (r"^lm_head\.bias$", r"\.(self_)?mask_value_float(16|32)$")  # there is a bias in the files that transformers never adds


def config(hf: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    expect(hf, lsh_attention_probs_dropout_prob=0.0, tie_word_embeddings=False)
    buckets, seed = hf.get("num_buckets"), hf.get("hash_seed")
    return "reformer", {
        "vocab": need(hf, "vocab_size"),
        "length": need(hf, "max_position_embeddings"),
        "width": need(hf, "hidden_size"),
        "heads": need(hf, "num_attention_heads"),
        "head_width": need(hf, "attention_head_size"),
        "hidden": need(hf, "feed_forward_size"),
        "layers": list(need(hf, "attn_layers")),
        "axial": [*need(hf, "axial_pos_shape"), *need(hf, "axial_pos_embds_dim")] if hf.get("axial_pos_embds", True) else [],
        "chunk": [hf.get("local_attn_chunk_length", 64), hf.get("lsh_attn_chunk_length", 64)],
        "before": [hf.get("local_num_chunks_before", 1), hf.get("lsh_num_chunks_before", 1)],
        "after": [hf.get("local_num_chunks_after", 0), hf.get("lsh_num_chunks_after", 0)],
        "rounds": hf.get("num_hashes", 1),
        "buckets": [] if buckets is None else [buckets] if isinstance(buckets, int) else list(buckets),
        "seed": [] if seed is None else [seed],
        "dropout": hf.get("hidden_dropout_prob", 0.05),
        "attention_dropout": hf.get("local_attention_probs_dropout_prob", 0.05),
        "activation": activation(hf, default="relu"),
        "eps": hf.get("layer_norm_eps", 1e-12),
        "causal": hf.get("is_decoder", False),
        "words": "lm_head.decoder.weight" in hf["tensors"],
    }


def weights(hf: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, Tensor]:
    found = ours(Plain(hf, "reformer"), _table(settings))
    return {name: x.flatten(0, -2) if name.startswith("places.") else x for name, x in found.items()}


def exported(model: Reformer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    unswapped(model)
    c = model.config
    kind = ("ReformerModelWithLMHead" if c.causal else "ReformerForMaskedLM") if c.words else "ReformerModel"
    said = {
        "model_type": "reformer",
        "architectures": [kind],
        "vocab_size": c.vocab,
        "max_position_embeddings": c.length,
        "hidden_size": c.width,
        "num_attention_heads": c.heads,
        "attention_head_size": c.head_width,
        "feed_forward_size": c.hidden,
        "attn_layers": list(c.layers),
        "axial_pos_embds": bool(c.axial),
        "local_attn_chunk_length": c.chunk[0],
        "lsh_attn_chunk_length": c.chunk[1],
        "local_num_chunks_before": c.before[0],
        "lsh_num_chunks_before": c.before[1],
        "local_num_chunks_after": c.after[0],
        "lsh_num_chunks_after": c.after[1],
        "num_hashes": c.rounds,
        "num_buckets": None if not c.buckets else c.buckets[0] if len(c.buckets) == 1 else list(c.buckets),
        "hash_seed": c.seed[0] if c.seed else None,
        "hidden_dropout_prob": c.dropout,
        "local_attention_probs_dropout_prob": c.attention_dropout,
        "lsh_attention_probs_dropout_prob": 0.0,
        "hidden_act": their_activation(c.activation),
        "layer_norm_eps": c.eps,
        "is_decoder": c.causal,
        "tie_word_embeddings": False,
    }
    if c.axial:
        said |= {"axial_pos_shape": list(c.axial[:2]), "axial_pos_embds_dim": list(c.axial[2:])}
    state = model.state_dict()
    if c.axial:
        state |= {"places.0.weight": state["places.0.weight"][:, None], "places.1.weight": state["places.1.weight"][None]}
    tensors = prefixed(theirs(state, _table(vars(c))), "reformer" if c.words else "")
    return said, tensors | ({"lm_head.bias": torch.zeros(c.vocab)} if c.words else {})


def _table(settings: Mapping[str, Any]) -> list[Line]:
    table = [line("token.weight", "embeddings.word_embeddings.weight"), *both("norm", "encoder.layer_norm")]
    where = "embeddings.position_embeddings"
    if settings["axial"]:
        table += [line(f"places.{axis}.weight", f"{where}.weights.{axis}") for axis in range(2)]
    else:
        table += [line("places.0.weight", f"{where}.embedding.weight")]
    for i, kind in enumerate(settings["layers"]):
        here, there = f"stack.blocks.{i}", f"encoder.layers.{i}"
        parts = ("query", "key", "value") if kind == "local" else ("query_key", "value")
        table += [
            line(f"{here}.mixer.qkv.weight", *(f"{there}.attention.self_attention.{part}.weight" for part in parts)),
            line(f"{here}.mixer.out.weight", f"{there}.attention.output.dense.weight"),
            *both(f"{here}.before_mixer", f"{there}.attention.layer_norm"),
            *both(f"{here}.before_feedforward", f"{there}.feed_forward.layer_norm"),
            *both(f"{here}.feedforward.up", f"{there}.feed_forward.dense.dense"),
            *both(f"{here}.feedforward.down", f"{there}.feed_forward.output.dense"),
        ]
    return table + ([line("output.weight", "lm_head.decoder.weight")] if settings["words"] else [])
