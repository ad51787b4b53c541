"""BERT and the encoders that share its files: the same settings, embeddings, feed-forward layers and heads around another mixer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import NotSupported
from ..models.encoder import Encoder
from .constants import is_counting, is_zeros
from .family import Family, SettingKeys, Settings
from .hf_config import HFConfig, hf_activation
from .names import Entry, layer, tensor


@dataclass(frozen=True)
class MLMHead:
    """Names of the masked-language-modelling head: its dense layer, its norm, and the prefix of its bias and its decoder."""

    dense: str
    norm: str
    output: str


BERT_HEAD = MLMHead("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions")
ROBERTA_HEAD = MLMHead("lm_head.dense", "lm_head.layer_norm", "lm_head")
SETTINGS: SettingKeys = {
    "vocab_size": "vocab_size",
    "max_length": "max_position_embeddings",
    "width": "hidden_size",
    "depth": "num_hidden_layers",
    "hidden": "intermediate_size",
    "segments": "type_vocab_size",
    "dropout": "hidden_dropout_prob",
    "eps": "layer_norm_eps",
}
HEADS: SettingKeys = SETTINGS | {"heads": "num_attention_heads"}
HEADS_AND_DROPOUT: SettingKeys = HEADS | {"attention_dropout": "attention_probs_dropout_prob"}


def padded_positions(hf: HFConfig) -> dict[str, Any]:
    """RoBERTa's positions, which start after the row of padding; a family has them as settings, and `padded_positions_config` back."""
    padding = hf["pad_token_id"]
    return {"padding": padding, "max_length": hf["max_position_embeddings"] - padding - 1}


def padded_positions_config(encoder: Encoder) -> dict[str, Any]:
    c = encoder.config
    if c.padding is None:
        raise NotSupported(f"this {encoder.facts.name} has padding=None; transformers' counts positions from a padding token on")
    return {"pad_token_id": c.padding, "max_position_embeddings": c.max_length + c.padding + 1}


def attention_table(i: int) -> list[Entry]:
    hf = f"encoder.layer.{i}.attention"
    return [
        *layer(f"blocks.{i}.mixer.qkv", *(f"{hf}.self.{part}" for part in ("query", "key", "value"))),
        *layer(f"blocks.{i}.mixer.out", f"{hf}.output.dense"),
        *layer(f"blocks.{i}.around_mixer.over", f"{hf}.output.LayerNorm"),
    ]


def feed_forward_table(i: int) -> list[Entry]:
    return [
        *layer(f"blocks.{i}.feedforward.up", f"encoder.layer.{i}.intermediate.dense"),
        *layer(f"blocks.{i}.feedforward.down", f"encoder.layer.{i}.output.dense"),
        *layer(f"blocks.{i}.around_feedforward.over", f"encoder.layer.{i}.output.LayerNorm"),
    ]


def mlm_table(head: MLMHead) -> list[Entry]:
    return [*layer("mlm_head.0", head.dense), *layer("mlm_head.1", head.norm), tensor("mlm_bias", f"{head.output}.bias")]


class EncoderFamily(Family):
    """A family with BERT's files around another mixer."""

    architecture: str  # stem of its class names: "Bert" of BertModel and BertForMaskedLM
    pretraining: bool = False  # there is a class with a next-sentence head, too
    mlm_head: MLMHead = BERT_HEAD
    nsp_head: str = "cls.seq_relationship"
    first_position: int = 0  # in the list of positions that older files hold
    extra_table: tuple[Entry, ...] = ()  # further tensors
    heads: tuple[str, ...] = ("cls.", "lm_head.", "generator_")

    def __init_subclass__(cls) -> None:
        output, first = cls.mlm_head.output, cls.first_position
        cls.prefix = vars(cls).get("prefix", cls.model_types[0])
        cls.base = f"{cls.architecture}Model"
        cls.tied = ((f"{output}.decoder.weight", "embeddings.word_embeddings.weight"), (f"{output}.decoder.bias", f"{output}.bias"))
        cls.constants = (  # in older files
            (r"^embeddings\.position_ids$", lambda x, settings: is_counting(x - first, settings)),
            (r"^embeddings\.token_type_ids$", is_zeros),
        )

    def mixer_table(self, i: int) -> list[Entry]:
        """Names of layer i's mixer, attention by default, and of the norm after it."""
        return attention_table(i)

    def block_table(self, i: int, settings: Settings) -> list[Entry]:
        """Names of layer i."""
        return self.mixer_table(i) + feed_forward_table(i)

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        head = self.mlm_head
        return {
            "activation": hf.activation("hidden_act"),
            "pooler": any(name.endswith(("pooler.dense.weight", "pooler.weight")) for name in hf.tensor_names),
            "mlm_head": any(name.startswith((f"{head.output}.", head.dense)) for name in hf.tensor_names),
            "nsp_head": f"{self.nsp_head}.weight" in hf.tensor_names,
        }

    def more_config(self, model: Any) -> dict[str, Any]:
        c = model.config
        head = "Model" if not c.mlm_head else "ForPreTraining" if c.nsp_head and self.pretraining else "ForMaskedLM"
        return {"architectures": [self.architecture + head], "hidden_act": hf_activation(c.activation)}

    def table(self, settings: Settings) -> list[Entry]:
        return [
            tensor("embedding.token.weight", "embeddings.word_embeddings.weight"),
            tensor("embedding.position.weight", "embeddings.position_embeddings.weight"),
            *([tensor("embedding.segment.weight", "embeddings.token_type_embeddings.weight")] if settings["segments"] else []),
            *layer("embedding.norm", "embeddings.LayerNorm"),
            *self.extra_table,
            *(entry for i in range(settings["depth"]) for entry in self.block_table(i, settings)),
            *(layer("pooler", self.pooler) if settings["pooler"] else ()),
            *(mlm_table(self.mlm_head) if settings["mlm_head"] else ()),
            *(layer("nsp_head", self.nsp_head) if settings["nsp_head"] else ()),
        ]
