"""The vision transformer in transformers' files."""

from __future__ import annotations

from typing import Any

from ...errors import NotSupported
from ...models import ViT
from ..attention import Softmax, plain_attention_dropout
from ..family import Family, Settings
from ..hf_config import HFConfig, hf_activation
from ..image_files import IMAGE
from ..names import Entry, layer, tensor

CLASSIFIER = "ViTForImageClassification"


def more_settings(hf: HFConfig) -> dict[str, Any]:
    hf.require(pooler_act="tanh")
    if hf["pooler_output_size"] not in (None, hf["hidden_size"]):
        raise NotSupported(
            f"config.json has pooler_output_size={hf['pooler_output_size']}; only {hf['hidden_size']}, the hidden_size, is supported"
        )
    return {
        "activation": hf.activation("hidden_act"),
        "attention": (str(Softmax(dropout=hf["attention_probs_dropout_prob"])),),
        "classes": hf.rows("classifier.weight"),
        "pooler": hf.rows("pooler.dense.weight", "vit.pooler.dense.weight") > 0,
    }


def more_config(model: ViT) -> dict[str, Any]:
    c = model.config
    odd = [f"{name}={getattr(c, name)}" for name, wanted in PLAIN.items() if getattr(c, name) != wanted]
    if odd or (c.classes and c.pooler):
        raise NotSupported(f"this vit has {' and '.join(odd) or 'a pooler before its head'}; transformers' has none of that")
    return {
        "architectures": [CLASSIFIER if c.classes else "ViTModel"],
        "hidden_act": hf_activation(c.activation),
        "attention_probs_dropout_prob": plain_attention_dropout(model),
        "image_size": one_or_two(c.image_size),
        "patch_size": one_or_two(c.patch_size),
        "encoder_stride": c.patch_size[0],
    }


PLAIN = {"pool": "class", "stem": (), "positions": True, "patch_bias": True, "embedding_norm": False}


def one_or_two(size: tuple[int, int]) -> int | list[int]:
    """A size as transformers writes it: one number for a square."""
    return size[0] if size[0] == size[1] else list(size)


def table(settings: Settings) -> list[Entry]:
    p, q = settings["patch_size"]
    patch = "embeddings.patch_embeddings.projection"
    entries = [
        Entry("embedding.patch.project.weight", (f"{patch}.weight",), kernel=(settings["channels"], p, q)),
        tensor("embedding.patch.project.bias", f"{patch}.bias"),
        tensor("embedding.class_token_D", "embeddings.cls_token", singletons=(0, 1)),
        tensor("embedding.position.weight", "embeddings.position_embeddings", singletons=(0,)),
        *layer("norm", "layernorm"),
        *(layer("pooler", "pooler.dense") if settings["pooler"] else ()),
        *(layer("output", "classifier") if settings["classes"] else ()),
    ]
    for i in range(settings["depth"]):
        block, hf = f"blocks.{i}", f"encoder.layer.{i}"
        qkv = layer(f"{block}.mixer.qkv", *(f"{hf}.attention.attention.{part}" for part in ("query", "key", "value")))
        entries += [
            *(qkv if settings["qkv_bias"] else qkv[:1]),
            *layer(f"{block}.mixer.out", f"{hf}.attention.output.dense"),
            *layer(f"{block}.feedforward.up", f"{hf}.intermediate.dense"),
            *layer(f"{block}.feedforward.down", f"{hf}.output.dense"),
            *layer(f"{block}.around_mixer.before", f"{hf}.layernorm_before"),
            *layer(f"{block}.around_feedforward.before", f"{hf}.layernorm_after"),
        ]
    return entries


VIT = Family(
    model="vit",
    model_types=("vit",),
    settings={
        "image_size": "image_size",
        "patch_size": "patch_size",
        "channels": "num_channels",
        "width": "hidden_size",
        "depth": "num_hidden_layers",
        "heads": "num_attention_heads",
        "hidden": "intermediate_size",
        "dropout": "hidden_dropout_prob",
        "eps": "layer_norm_eps",
        "qkv_bias": "qkv_bias",
    },
    table=table,
    more_settings=more_settings,
    more_config=more_config,
    prefix="vit",
    heads=("classifier.",),
    base="ViTModel",
    own_heads=(CLASSIFIER,),
    files=IMAGE,
)
