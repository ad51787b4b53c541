"""Longformer in transformers' files."""

from __future__ import annotations

from typing import Any

from ...models import Longformer
from ..encoders import HEADS_AND_DROPOUT, ROBERTA_HEAD, attention_table, encoder_family, padded_positions, padded_positions_config
from ..family import ClassifierHead
from ..hf_config import HFConfig
from ..names import Entry, layer


def more_settings(hf: HFConfig) -> dict[str, Any]:
    """The files do not say which tokens are global (transformers takes a mask per call): here it is the first one, as its classifiers do."""
    hf.require(hidden_act="gelu")  # the MLM head has gelu, whatever the layers have
    window = hf["attention_window"]
    window = [window] if isinstance(window, int) else list(window)
    return {**padded_positions(hf), "window": window}


def more_config(model: Longformer) -> dict[str, Any]:
    c = model.config
    window = list(c.window) if len(c.window) > 1 else c.window[0]
    return {**padded_positions_config(model), "attention_window": window}


def mixer_table(i: int) -> list[Entry]:
    hf = f"encoder.layer.{i}.attention.self"
    return attention_table(i) + layer(f"blocks.{i}.mixer.global_qkv", *(f"{hf}.{part}_global" for part in ("query", "key", "value")))


LONGFORMER = encoder_family(
    "longformer_encoder",  # `longformer` is the mechanism
    "Longformer",
    HEADS_AND_DROPOUT,
    more_settings,
    more_config,
    model_type="longformer",
    pretraining=False,
    mixer_table=mixer_table,
    mlm_head=ROBERTA_HEAD,
    classifiers={
        "text": ClassifierHead("LongformerForSequenceClassification", "classifier.out_proj", "classifier.dense"),
        "token": ClassifierHead("LongformerForTokenClassification"),
    },
)
