"""ELECTRA's encoder and generator in transformers' files: BERT with narrower embeddings. The discriminator's head is not read."""

from __future__ import annotations

from typing import Any, ClassVar

from ...errors import NotSupported
from ...models import Bert
from ..encoders import MLMHead
from ..family import SPANS, ClassifierHead, Classifiers
from ..hf_config import HFConfig
from ..names import layer
from .bert import BertFamily


class ElectraFamily(BertFamily):
    model_types = ("electra",)
    architecture = "Electra"
    pretraining = False
    extra_table = tuple(layer("embedding.projection", "embeddings_project"))
    mlm_head = MLMHead("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head")
    # not ElectraForSequenceClassification: its head has gelu where ours has tanh
    classifiers: ClassVar[Classifiers] = {
        "token": ClassifierHead("ElectraForTokenClassification"),
        "span": ClassifierHead("ElectraForQuestionAnswering", SPANS),
    }

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
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
        return super().more_settings(hf) | {"embedding_width": width}

    def more_config(self, model: Bert) -> dict[str, Any]:
        return super().more_config(model) | {"embedding_size": model.config.embedding_width}

    def fits(self, model: Any) -> bool:
        return model.config.embedding_width is not None and model.config.padding is None and not model.config.pooler
