"""RoBERTa in transformers' files: BERT with positions that leave out padding, and other names for the MLM head."""

from __future__ import annotations

from typing import Any

from ...models import Bert
from ..encoders import HEADS, ROBERTA_HEAD, encoder_family, padded_positions, padded_positions_config
from ..family import SPANS, ClassifierHead
from ..hf_config import HFConfig
from .bert import more_config as bert_config
from .bert import more_settings as bert_settings


def more_settings(hf: HFConfig) -> dict[str, Any]:
    hf.require(hidden_act="gelu")  # the MLM head has gelu, whatever the layers have
    return bert_settings(hf) | padded_positions(hf)


def more_config(model: Bert) -> dict[str, Any]:
    return bert_config(model) | padded_positions_config(model)


ROBERTA = encoder_family(
    "bert",
    "Roberta",
    HEADS,
    more_settings,
    more_config,
    model_type="roberta",
    pretraining=False,
    mlm_head=ROBERTA_HEAD,
    fits=lambda bert: bert.config.padding is not None and bert.config.segments and bert.config.activation == "gelu",
    classifiers={
        "text": ClassifierHead("RobertaForSequenceClassification", "classifier.out_proj", "classifier.dense"),
        "token": ClassifierHead("RobertaForTokenClassification"),
        "span": ClassifierHead("RobertaForQuestionAnswering", SPANS),
    },
)
