"""BERT in transformers' files."""

from __future__ import annotations

from typing import Any, ClassVar

from ...models import Bert
from ..attention import Softmax, plain_attention_dropout
from ..encoders import HEADS, EncoderFamily
from ..family import SPANS, ClassifierHead, Classifiers
from ..hf_config import HFConfig


class BertFamily(EncoderFamily):
    model = "bert"
    model_types = ("bert",)
    architecture = "Bert"
    pretraining = True
    settings = HEADS
    classifiers: ClassVar[Classifiers] = {
        "text": ClassifierHead("BertForSequenceClassification", pooler="bert.pooler.dense"),
        "token": ClassifierHead("BertForTokenClassification"),
        "span": ClassifierHead("BertForQuestionAnswering", SPANS),
    }

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        return super().more_settings(hf) | {"attention": str(Softmax(dropout=hf["attention_probs_dropout_prob"]))}

    def more_config(self, model: Bert) -> dict[str, Any]:
        return super().more_config(model) | {"attention_probs_dropout_prob": plain_attention_dropout(model)}

    def fits(self, model: Any) -> bool:
        return model.config.padding is None and model.config.segments and model.config.embedding_width is None
