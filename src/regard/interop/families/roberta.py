"""RoBERTa in transformers' files: BERT with positions that leave out padding, and other names for the MLM head."""

from __future__ import annotations

from typing import Any, ClassVar

from ...models import Bert
from ..encoders import ROBERTA_HEAD, padded_positions, padded_positions_config
from ..family import SPANS, ClassifierHead, Classifiers
from ..hf_config import HFConfig
from .bert import BertFamily


def roberta_heads(stem: str) -> Classifiers:
    """The heads of RoBERTa's classes, whose names begin with `stem`."""
    return {
        "text": ClassifierHead(f"{stem}ForSequenceClassification", "classifier.out_proj", "classifier.dense"),
        "token": ClassifierHead(f"{stem}ForTokenClassification"),
        "span": ClassifierHead(f"{stem}ForQuestionAnswering", SPANS),
    }


class RobertaFamily(BertFamily):
    model_types = ("roberta",)
    architecture = "Roberta"
    pretraining = False
    mlm_head = ROBERTA_HEAD
    classifiers: ClassVar[Classifiers] = roberta_heads("Roberta")

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        hf.require(hidden_act="gelu")  # the MLM head has gelu, whatever the layers have
        return super().more_settings(hf) | padded_positions(hf)

    def more_config(self, model: Bert) -> dict[str, Any]:
        return super().more_config(model) | padded_positions_config(model)

    def fits(self, model: Any) -> bool:
        return model.config.padding is not None and model.config.segments and model.config.activation == "gelu"
