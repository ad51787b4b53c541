"""Longformer in transformers' files."""

from __future__ import annotations

from typing import Any, ClassVar

from ...models import Longformer
from ..encoders import HEADS_AND_DROPOUT, ROBERTA_HEAD, EncoderFamily, padded_positions, padded_positions_config
from ..family import ClassifierHead, Classifiers, Settings
from ..hf_config import HFConfig
from ..names import Entry, layer


class LongformerFamily(EncoderFamily):
    model = "longformer_encoder"  # `longformer` is the mechanism
    model_types = ("longformer",)
    architecture = "Longformer"
    settings = HEADS_AND_DROPOUT
    mlm_head = ROBERTA_HEAD
    classifiers: ClassVar[Classifiers] = {
        "text": ClassifierHead("LongformerForSequenceClassification", "classifier.out_proj", "classifier.dense"),
        "token": ClassifierHead("LongformerForTokenClassification"),
    }

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        """The files do not say which tokens are global (transformers takes a mask per call): here it is the first one, as its classifiers do."""
        hf.require(hidden_act="gelu")  # the MLM head has gelu, whatever the layers have
        window = hf["attention_window"]
        window = [window] if isinstance(window, int) else list(window)
        return super().more_settings(hf) | padded_positions(hf) | {"window": window}

    def more_config(self, model: Longformer) -> dict[str, Any]:
        c = model.config
        window = list(c.window) if len(c.window) > 1 else c.window[0]
        return super().more_config(model) | padded_positions_config(model) | {"attention_window": window}

    def difference(self, settings: Settings) -> str:
        return "in transformers the caller chooses which tokens have global attention; here the first one has it"

    def mixer_table(self, i: int) -> list[Entry]:
        hf = f"encoder.layer.{i}.attention.self"
        return super().mixer_table(i) + layer(
            f"blocks.{i}.mixer.global_qkv", *(f"{hf}.{part}_global" for part in ("query", "key", "value"))
        )
