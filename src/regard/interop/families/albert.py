"""ALBERT in transformers' files, which hold each shared layer once."""

from __future__ import annotations

from typing import Any, ClassVar

from ..encoders import MLMHead
from ..family import SPANS, ClassifierHead, Classifiers, Settings
from ..hf_config import HFConfig
from ..names import Entry, layer
from .bert import BertFamily


class AlbertFamily(BertFamily):
    model = "albert"
    model_types = ("albert",)
    architecture = "Albert"
    settings = BertFamily.settings | {"embedding_width": "embedding_size", "groups": "num_hidden_groups"}
    extra_table = tuple(layer("embedding.projection", "encoder.embedding_hidden_mapping_in"))
    heads = ("predictions.", "sop_classifier.")
    pooler = "pooler"
    mlm_head = MLMHead("predictions.dense", "predictions.LayerNorm", "predictions")
    nsp_head = "sop_classifier.classifier"
    classifiers: ClassVar[Classifiers] = {
        "text": ClassifierHead("AlbertForSequenceClassification", pooler="albert.pooler"),
        "token": ClassifierHead("AlbertForTokenClassification"),
        "span": ClassifierHead("AlbertForQuestionAnswering", SPANS),
    }

    def block_table(self, i: int, settings: Settings) -> list[Entry]:
        groups = [int(n / (settings["depth"] / settings["groups"])) for n in range(i + 1)]
        if groups[-1] in groups[:-1]:
            return []  # it is that of an earlier layer
        block, hf = f"blocks.{i}", f"encoder.albert_layer_groups.{groups[-1]}.albert_layers.0"
        return [
            *layer(f"{block}.mixer.qkv", *(f"{hf}.attention.{part}" for part in ("query", "key", "value"))),
            *layer(f"{block}.mixer.out", f"{hf}.attention.dense"),
            *layer(f"{block}.around_mixer.over", f"{hf}.attention.LayerNorm"),
            *layer(f"{block}.feedforward.up", f"{hf}.ffn"),
            *layer(f"{block}.feedforward.down", f"{hf}.ffn_output"),
            *layer(f"{block}.around_feedforward.over", f"{hf}.full_layer_layer_norm"),
        ]

    def more_config(self, model: Any) -> dict[str, Any]:
        c = model.config
        return super().more_config(model) | {"embedding_size": c.embedding_width or c.width}

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        hf.require(inner_group_num=1)
        return super().more_settings(hf)

    def fits(self, model: Any) -> bool:
        return model.config.padding is None and model.config.segments > 0
