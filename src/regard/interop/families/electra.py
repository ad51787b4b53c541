"""ELECTRA's encoder and generator in transformers' files: BERT with narrower embeddings. The discriminator's head is not read."""

from __future__ import annotations

from typing import Any

from ...errors import NotSupported
from ...models import Bert
from ..encoders import HEADS, MLMHead, encoder_family
from ..family import SPANS, ClassifierHead
from ..hf_config import HFConfig
from ..names import layer
from .bert import more_config as bert_config
from .bert import more_settings as bert_settings

PROJECTION = tuple(layer("embedding.projection", "embeddings_project"))


def more_settings(hf: HFConfig) -> dict[str, Any]:
    width, wide = hf["embedding_size"], hf["hidden_size"]
    if width == wide:
        raise NotSupported(
            f"config.json has embedding_size={width}, that of hidden_size; only an ELECTRA whose embeddings are projected is supported"
        )
    if any(name.startswith("discriminator_predictions.") for name in hf.tensor_names):
        raise NotSupported(
            "this ELECTRA is a discriminator, whose head is not supported; ElectraModel.from_pretrained(…).save_pretrained(…) leaves it out"
        )
    if "generator_predictions.dense.weight" in hf.tensor_names:
        hf.require(hidden_act="gelu")  # the MLM head has gelu, whatever the layers have
    return bert_settings(hf) | {"embedding_width": width}


def more_config(model: Bert) -> dict[str, Any]:
    return bert_config(model) | {"embedding_size": model.config.embedding_width}


ELECTRA = encoder_family(
    "bert",
    "Electra",
    HEADS,
    more_settings,
    more_config,
    model_type="electra",
    pretraining=False,
    extra_table=PROJECTION,
    mlm_head=MLMHead("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head"),
    fits=lambda bert: bert.config.embedding_width is not None and bert.config.padding is None and not bert.config.pooler,
    # not ElectraForSequenceClassification: its head has gelu where ours has tanh
    classifiers={
        "token": ClassifierHead("ElectraForTokenClassification"),
        "span": ClassifierHead("ElectraForQuestionAnswering", SPANS),
    },
)
