"""BERT in transformers' files."""

from __future__ import annotations

from typing import Any

from ...models import Bert
from ..attention import Softmax, plain_attention_dropout
from ..encoders import HEADS, encoder_family
from ..family import SPANS, ClassifierHead
from ..hf_config import HFConfig


def more_settings(hf: HFConfig) -> dict[str, Any]:
    return {"attention": str(Softmax(dropout=hf["attention_probs_dropout_prob"]))}


def more_config(model: Bert) -> dict[str, Any]:
    return {"attention_probs_dropout_prob": plain_attention_dropout(model)}


CLASSIFIERS = {
    "text": ClassifierHead("BertForSequenceClassification", pooler="bert.pooler.dense"),
    "token": ClassifierHead("BertForTokenClassification"),
    "span": ClassifierHead("BertForQuestionAnswering", SPANS),
}
BERT = encoder_family(
    "bert",
    "Bert",
    HEADS,
    more_settings,
    more_config,
    classifiers=CLASSIFIERS,
    fits=lambda bert: bert.config.padding is None and bert.config.segments and bert.config.embedding_width is None,
)
