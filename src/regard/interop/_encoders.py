"""What the files of BERT and its kin have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from ..attention import SoftmaxAttention
from ..errors import BadConfig, NotSupported
from ..layers import MultiHead
from ..models import Model
from ..models._encoder import Encoder, HeadsConfig
from ..patterns import Full
from ._names import Line, both, expect, line, need, their_activation
from ._names import activation as our_activation

PLACES = r"(^|\.)embeddings\.(position_ids|token_type_ids)$"  # 0, 1, 2 … and zeros, which older files hold


class Plain(Mapping[str, Tensor]):
    """The same tensors without the prefix of the model, and with the names norms have today."""

    def __init__(self, hf: Mapping[str, Tensor], prefix: str):
        self.hf = hf
        self.names = {_today(name.removeprefix(f"{prefix}.")): name for name in hf}

    def __getitem__(self, name: str) -> Tensor:
        return self.hf[self.names[name]]

    def __contains__(self, name: object) -> bool:
        return name in self.names and self.names[str(name)] in self.hf

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def _today(name: str) -> str:
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        if name.endswith(f"LayerNorm{old}"):
            return name.removesuffix(old) + new
    return name


def tied(hf: Mapping[str, Tensor], copy: str, original: str) -> None:
    """Some files hold the table of words twice; a second one that differs is a model of another kind."""
    if copy in hf and original in hf and not hf[copy].equal(hf[original]):
        raise BadConfig(f"{copy} is not {original}: words go in by one table and come out by another, and models here have one for both")


def prefixed(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Names as a model with heads has them: those of the encoder under its prefix."""
    return {name if name.startswith(("cls.", "lm_head.")) or not prefix else f"{prefix}.{name}": x for name, x in tensors.items()}


def encoder_settings(hf: Mapping[str, Any], activation: str = "gelu", eps: float = 1e-12) -> dict[str, Any]:
    """Sizes and the like; `activation` (over there) and `eps` where config.json leaves them out."""
    expect(hf, position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
    names = {_today(name) for name in hf["tensors"]}
    dropout = hf.get("attention_probs_dropout_prob", 0.1)
    return {
        "vocab": need(hf, "vocab_size"),
        "length": need(hf, "max_position_embeddings"),
        "width": need(hf, "hidden_size"),
        "heads": hf.get("num_attention_heads", 12),
        "depth": need(hf, "num_hidden_layers"),
        "hidden": need(hf, "intermediate_size"),
        "kinds": hf.get("type_vocab_size", 2),
        "dropout": hf.get("hidden_dropout_prob", 0.1),
        "attention": f"softmax(dropout={dropout})" if dropout else "softmax",
        "activation": our_activation(hf, default=activation),
        "eps": hf.get("layer_norm_eps", eps),
        "pooler": any(name.endswith(("pooler.dense.weight", "pooler.weight")) for name in names),
        "words": any(name.startswith(("cls.predictions.", "lm_head.")) for name in names),
        "sentences": "cls.seq_relationship.weight" in names,
    }


def encoder_config(model: Encoder, model_type: str, architecture: str) -> dict[str, Any]:
    """The other way round."""
    c = model.config
    said = {
        "model_type": model_type,
        "architectures": [architecture],
        "vocab_size": c.vocab,
        "max_position_embeddings": c.length,
        "hidden_size": c.width,
        "num_hidden_layers": c.depth,
        "intermediate_size": c.hidden,
        "type_vocab_size": c.kinds,
        "hidden_dropout_prob": c.dropout,
        "hidden_act": their_activation(c.activation),
        "layer_norm_eps": c.eps,
    }
    return said | ({"num_attention_heads": c.heads} if isinstance(c, HeadsConfig) else {})


def embedding_table() -> list[Line]:
    return [
        line("embedding.token.weight", "embeddings.word_embeddings.weight"),
        line("embedding.place.weight", "embeddings.position_embeddings.weight"),
        line("embedding.kind.weight", "embeddings.token_type_embeddings.weight"),
        *both("embedding.norm", "embeddings.LayerNorm"),
    ]


def looking_table(depth: int) -> list[Line]:
    """Attention, with its projections."""
    table = []
    for i in range(depth):
        there = f"encoder.layer.{i}.attention"
        table += both(f"blocks.{i}.mixer.qkv", *(f"{there}.self.{part}" for part in ("query", "key", "value")))
        table += both(f"blocks.{i}.mixer.out", f"{there}.output.dense")
        table += both(f"blocks.{i}.around_mixer.over", f"{there}.output.LayerNorm")
    return table


def thinking_table(depth: int) -> list[Line]:
    """Feed-forward parts."""
    table = []
    for i in range(depth):
        table += both(f"blocks.{i}.feedforward.up", f"encoder.layer.{i}.intermediate.dense")
        table += both(f"blocks.{i}.feedforward.down", f"encoder.layer.{i}.output.dense")
        table += both(f"blocks.{i}.around_feedforward.over", f"encoder.layer.{i}.output.LayerNorm")
    return table


def heads_table(settings: Mapping[str, Any], pooler: str = "pooler.dense") -> list[Line]:
    """Pooler, words, sentences: those there are."""
    table = both("pooler", pooler) if settings["pooler"] else []
    if settings["words"]:
        table += both("speaker.0", "cls.predictions.transform.dense") + both("speaker.1", "cls.predictions.transform.LayerNorm")
        table += [line("word_bias", "cls.predictions.bias")]
    return table + (both("follower", "cls.seq_relationship") if settings["sentences"] else [])


def unswapped(model: Model) -> None:
    """Over there these models look in one way only."""
    if model.config.swapped:
        what = "; ".join(f"{path} looks by {spec}" for path, spec in model.config.swapped)
        raise NotSupported(
            f"transformers' {model.facts.name} has its own attention everywhere, and here {what}; export the model as it was before"
        )


def only_softmax(model: Model) -> float:
    """Over there these layers look by plain softmax; whatever else ours do would be lost. The dropout of its weights, which is the same in all."""
    dropout = 0.0
    for name, part in model.named_modules():
        if not isinstance(part, MultiHead):
            continue
        a, always = part.attention, isinstance(part.own, Full)
        if type(a) is not SoftmaxAttention or (a.scale, a.softcap, a.sink_H) != (None, None, None) or not always:
            raise NotSupported(
                f"{name} looks by {a.facts.name}{'' if always else f' under {part.own}'}; transformers' {model.facts.name} has plain softmax there. "
                'Export what it can hold: model.with_attention("softmax"), perhaps fine-tuned'
            )
        dropout = a.dropout
    return dropout
