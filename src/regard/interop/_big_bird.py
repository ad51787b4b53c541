"""BigBird in the files of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..errors import NotSupported
from ..models import BigBird
from ._encoders import (
    PLACES,
    Plain,
    embedding_table,
    encoder_config,
    encoder_settings,
    heads_table,
    looking_table,
    prefixed,
    thinking_table,
    tied,
    unswapped,
)
from ._names import Line, expect, ours, theirs

TYPES = ("big_bird",)
NAMES = ("big_bird",)
BUFFERS = (PLACES, r"^cls\.predictions\.decoder\.(weight|bias)$")


def config(hf: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    expect(hf, use_bias=True, rescale_embeddings=False)
    settings = encoder_settings(hf, activation="gelu_new")
    sparse = hf.get("attention_type", "block_sparse") == "block_sparse"
    block = hf.get("block_size", 64)
    del settings["attention"]
    return "big_bird", settings | {
        "block": block if sparse else settings["length"],  # one block that long is full attention
        "random": hf.get("num_random_blocks", 3),
        "drawn": False,
        "attention_dropout": hf.get("attention_probs_dropout_prob", 0.1),
    }


def weights(hf: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, Tensor]:
    hf = Plain(hf, "bert")
    tied(hf, "cls.predictions.decoder.weight", "embeddings.word_embeddings.weight")
    tied(hf, "cls.predictions.decoder.bias", "cls.predictions.bias")
    return ours(hf, _table(settings))


def exported(model: BigBird) -> tuple[dict[str, Any], dict[str, Tensor]]:
    unswapped(model)
    c = model.config
    if c.drawn and c.random and c.length > c.short:
        raise NotSupported(
            "this BigBird looks at random blocks; transformers leaves them out when it evaluates, so texts of more than "
            f"{c.short} tokens would differ; train it with drawn=False"
        )
    kind = "BigBirdForPreTraining" if c.words and c.sentences else "BigBirdForMaskedLM" if c.words else "BigBirdModel"
    more = {
        "attention_type": "block_sparse" if c.length > c.short else "original_full",
        "block_size": c.block,
        "num_random_blocks": c.random,
        "attention_probs_dropout_prob": c.attention_dropout,
    }
    tensors = theirs(model.state_dict(), _table(vars(c)))
    return encoder_config(model, "big_bird", kind) | more, prefixed(tensors, "" if kind == "BigBirdModel" else "bert")


def _table(settings: Mapping[str, Any]) -> list[Line]:
    depth = settings["depth"]
    return [*embedding_table(), *looking_table(depth), *thinking_table(depth), *heads_table(settings, "pooler")]
