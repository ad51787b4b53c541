"""Nyströmformer in transformers' files."""

from __future__ import annotations

from typing import Any

from ...errors import BadConfig
from ...models import Nystromformer
from ..attention import refuse_overrides
from ..encoders import HEADS, attention_table, encoder_family
from ..family import SPANS, ClassifierHead
from ..hf_config import HFConfig
from ..names import Entry, tensor


def more_settings(hf: HFConfig) -> dict[str, Any]:
    """With num_landmarks = segment_means_seq_len transformers computes exact attention at any length; here one landmark per position does."""
    if hf["conv_kernel_size"] is None:
        raise BadConfig("config.json has conv_kernel_size=null; only a Nystromformer with the convolution is supported")
    landmarks, segments = hf["num_landmarks"], hf["segment_means_seq_len"]
    return {"landmarks": hf["max_position_embeddings"] if landmarks == segments else landmarks}


def more_config(model: Nystromformer) -> dict[str, Any]:
    """In transformers landmarks are the means of equal segments of texts of one length."""
    refuse_overrides(model)
    c = model.config
    landmarks = c.segmented if c.landmarks >= c.max_length else c.landmarks
    if c.segmented % landmarks:
        raise BadConfig(f"segmented={c.segmented} and landmarks={landmarks}; transformers needs equal segments: choose a multiple")
    return {"num_landmarks": landmarks, "pad_token_id": 1}


def mixer_table(i: int) -> list[Entry]:
    convolution = tensor(f"blocks.{i}.mixer.attention.c_HT", f"encoder.layer.{i}.attention.self.conv.weight", singletons=(1, 3))
    return [*attention_table(i), convolution]


NYSTROMFORMER = encoder_family(
    "nystromformer",
    "Nystromformer",
    HEADS | {"segmented": "segment_means_seq_len", "kernel": "conv_kernel_size"},
    more_settings,
    more_config,
    first_position=2,
    pretraining=False,
    mixer_table=mixer_table,
    # not NystromformerForSequenceClassification: its head reads the first token through gelu, ours through tanh
    classifiers={
        "token": ClassifierHead("NystromformerForTokenClassification"),
        "span": ClassifierHead("NystromformerForQuestionAnswering", SPANS),
    },
)
