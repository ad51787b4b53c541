"""Nyströmformer in transformers' files."""

from __future__ import annotations

from typing import Any, ClassVar

from ...errors import BadConfig
from ...models import Nystromformer
from ..attention import refuse_overrides
from ..encoders import HEADS, EncoderFamily
from ..family import SPANS, ClassifierHead, Classifiers, Settings
from ..hf_config import HFConfig
from ..names import Entry, tensor


class NystromformerFamily(EncoderFamily):
    model = "nystromformer"
    model_types = ("nystromformer",)
    architecture = "Nystromformer"
    settings = HEADS | {"segmented": "segment_means_seq_len", "kernel": "conv_kernel_size"}
    first_position = 2
    # not NystromformerForSequenceClassification: its head reads the first token through gelu, ours through tanh
    classifiers: ClassVar[Classifiers] = {
        "token": ClassifierHead("NystromformerForTokenClassification"),
        "span": ClassifierHead("NystromformerForQuestionAnswering", SPANS),
    }

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        """With num_landmarks = segment_means_seq_len transformers computes exact attention at any length; here one landmark per position does."""
        if hf["conv_kernel_size"] is None:
            raise BadConfig("config.json has conv_kernel_size=null; only a Nystromformer with the convolution is supported")
        landmarks, segments = hf["num_landmarks"], hf["segment_means_seq_len"]
        return super().more_settings(hf) | {"landmarks": hf["max_position_embeddings"] if landmarks == segments else landmarks}

    def more_config(self, model: Nystromformer) -> dict[str, Any]:
        """In transformers landmarks are the means of equal segments of texts of one length."""
        refuse_overrides(model)
        c = model.config
        landmarks = c.segmented if c.landmarks >= c.max_length else c.landmarks
        if c.segmented % landmarks:
            raise BadConfig(f"segmented={c.segmented} and landmarks={landmarks}; transformers needs equal segments: choose a multiple")
        return super().more_config(model) | {"num_landmarks": landmarks, "pad_token_id": 1}

    def difference(self, settings: Settings) -> str:
        if settings["landmarks"] >= settings["max_length"]:
            return ""  # exact attention
        return f"transformers accepts texts of exactly {settings['segmented']} tokens and no padding; texts of other lengths have no counterpart there"

    def mixer_table(self, i: int) -> list[Entry]:
        convolution = tensor(f"blocks.{i}.mixer.attention.c_HT", f"encoder.layer.{i}.attention.self.conv.weight", singletons=(1, 3))
        return [*super().mixer_table(i), convolution]
