"""BERT in the files of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..models import Bert
from ._encoders import (
    PLACES,
    Plain,
    embedding_table,
    encoder_config,
    encoder_settings,
    heads_table,
    looking_table,
    only_softmax,
    prefixed,
    thinking_table,
    tied,
)
from ._names import Line, ours, theirs

TYPES = ("bert",)
NAMES = ("bert",)
BUFFERS = (PLACES, r"^cls\.predictions\.decoder\.(weight|bias)$")  # table and bias once more


def config(hf: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    return "bert", encoder_settings(hf)


def weights(hf: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, Tensor]:
    hf = Plain(hf, "bert")
    tied(hf, "cls.predictions.decoder.weight", "embeddings.word_embeddings.weight")
    tied(hf, "cls.predictions.decoder.bias", "cls.predictions.bias")
    return ours(hf, _table(settings))


def exported(model: Bert) -> tuple[dict[str, Any], dict[str, Tensor]]:
    more = {"attention_probs_dropout_prob": only_softmax(model)}
    c = model.config
    kind = "BertForPreTraining" if c.words and c.sentences else "BertForMaskedLM" if c.words else "BertModel"
    tensors = theirs(model.state_dict(), _table(vars(c)))
    return encoder_config(model, "bert", kind) | more, prefixed(tensors, "" if kind == "BertModel" else "bert")


def _table(settings: Mapping[str, Any]) -> list[Line]:
    depth = settings["depth"]
    return [*embedding_table(), *looking_table(depth), *thinking_table(depth), *heads_table(settings)]
