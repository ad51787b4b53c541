"""The video vision transformer in transformers' files, which has joint attention with a class token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...errors import NotSupported
from ...models import ViViT
from ..attention import Softmax, plain_attention_dropout
from ..family import Settings
from ..hf_config import HFConfig, hf_activation
from ..image_files import VIDEO
from ..names import Entry, layer
from .vit import PLAIN, VIT, one_or_two
from .vit import table as of_vit

CLASSIFIER = "VivitForVideoClassification"


def more_settings(hf: HFConfig) -> dict[str, Any]:
    hf.require(pooler_act="tanh")
    if hf["pooler_output_size"] not in (None, hf["hidden_size"]):
        raise NotSupported(
            f"config.json has pooler_output_size={hf['pooler_output_size']}; only {hf['hidden_size']}, the hidden_size, is supported"
        )
    tubelet, *patch = hf["tubelet_size"]
    return {
        "activation": hf.activation("hidden_act"),
        "attention": (str(Softmax(dropout=hf["attention_probs_dropout_prob"])),),
        "classes": hf.rows("classifier.weight"),
        "pooler": hf.rows("pooler.dense.weight", "vivit.pooler.dense.weight") > 0,
        "tubelet": tubelet,
        "patch_size": tuple(patch),
        "pool": "class",
        "factorisation": "joint",
    }


def more_config(model: ViViT) -> dict[str, Any]:
    c = model.config
    wanted = {**PLAIN, "factorisation": "joint"}
    odd = [f"{name}={getattr(c, name)!r}" for name, value in wanted.items() if getattr(c, name) != value]
    if odd or (c.classes and c.pooler):
        raise NotSupported(
            f"this vivit has {' and '.join(odd) or 'a pooler before its head'}; transformers' has joint attention and a class token"
        )
    return {
        "architectures": [CLASSIFIER if c.classes else "VivitModel"],
        "hidden_act": hf_activation(c.activation),
        "attention_probs_dropout_prob": plain_attention_dropout(model),
        "image_size": one_or_two(c.image_size),
        "tubelet_size": [c.tubelet, *c.patch_size],
    }


def table(settings: Settings) -> list[Entry]:
    kernel = (settings["channels"], settings["tubelet"], *settings["patch_size"])
    tubelet = layer("embedding.tubelet.project", "embeddings.patch_embeddings.projection")
    of_tubelets = [replace(tubelet[0], kernel=kernel), tubelet[1]]
    return of_tubelets + [entry for entry in of_vit(settings) if not entry.name.startswith("embedding.patch.")]


VIVIT = replace(
    VIT,
    model="vivit",
    model_types=("vivit",),
    settings={ours: key for ours, key in VIT.settings.items() if ours != "patch_size"} | {"frames": "num_frames"},
    table=table,
    more_settings=more_settings,
    more_config=more_config,
    prefix="vivit",
    base="VivitModel",
    own_heads=(CLASSIFIER,),
    files=VIDEO,
)
