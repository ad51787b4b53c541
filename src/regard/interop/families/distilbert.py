"""DistilBERT in transformers' files: BERT without segments and pooler, under other names."""

from __future__ import annotations

from typing import Any, ClassVar

from ...models import Bert
from ..attention import Softmax, plain_attention_dropout
from ..constants import is_counting
from ..encoders import MLMHead, mlm_table
from ..family import SPANS, ClassifierHead, Classifiers, Family, SettingKeys, Settings
from ..hf_config import HFConfig, hf_activation
from ..names import Entry, LayerNames, block_layers, layer, tensor

SETTINGS: SettingKeys = {
    "vocab_size": "vocab_size",
    "max_length": "max_position_embeddings",
    "width": "dim",
    "depth": "n_layers",
    "heads": "n_heads",
    "hidden": "hidden_dim",
    "dropout": "dropout",
}
BLOCK: LayerNames = {
    "mixer.qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    "mixer.out": "attention.out_lin",
    "around_mixer.over": "sa_layer_norm",
    "feedforward.up": "ffn.lin1",
    "feedforward.down": "ffn.lin2",
    "around_feedforward.over": "output_layer_norm",
}
HEAD = MLMHead("vocab_transform", "vocab_layer_norm", "vocab_projector")


class DistilBertFamily(Family):
    model = "bert"
    model_types = ("distilbert",)
    settings = SETTINGS
    prefix = "distilbert"
    heads = ("vocab_",)
    base = "DistilBertModel"
    tied = (("vocab_projector.weight", "embeddings.word_embeddings.weight"),)
    constants = ((r"^embeddings\.position_ids$", is_counting),)
    # not DistilBertForSequenceClassification: its head has relu where ours has tanh
    classifiers: ClassVar[Classifiers] = {
        "token": ClassifierHead("DistilBertForTokenClassification"),
        "span": ClassifierHead("DistilBertForQuestionAnswering", SPANS),
    }

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        hf.get("sinusoidal_pos_embds")  # how positions were initialised; they are in the file
        return {
            "segments": 0,
            "eps": 1e-12,
            "activation": hf.activation("activation"),
            "attention": str(Softmax(dropout=hf["attention_dropout"])),
            "pooler": False,
            "nsp_head": False,
            "mlm_head": "vocab_transform.weight" in hf.tensor_names,
        }

    def more_config(self, model: Bert) -> dict[str, Any]:
        c = model.config
        return {
            "architectures": ["DistilBertForMaskedLM" if c.mlm_head else "DistilBertModel"],
            "activation": hf_activation(c.activation),
            "attention_dropout": plain_attention_dropout(model),
        }

    def table(self, settings: Settings) -> list[Entry]:
        entries = [
            tensor("embedding.token.weight", "embeddings.word_embeddings.weight"),
            tensor("embedding.position.weight", "embeddings.position_embeddings.weight"),
            *layer("embedding.norm", "embeddings.LayerNorm"),
            *block_layers(settings["depth"], "transformer.layer", BLOCK),
        ]
        return entries + (mlm_table(HEAD) if settings["mlm_head"] else [])

    def fits(self, bert: Bert) -> bool:
        c = bert.config
        return not c.segments and c.padding is None and c.embedding_width is None and not c.pooler and c.eps == 1e-12
