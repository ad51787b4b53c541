"""The vision transformer in transformers' files."""

from __future__ import annotations

from typing import Any, ClassVar

from ...errors import NotSupported
from ..attention import Softmax, plain_attention_dropout
from ..family import Family, SettingKeys, Settings
from ..hf_config import HFConfig, hf_activation
from ..image_files import IMAGE
from ..names import Entry, layer, tensor


def one_or_two(size: tuple[int, int]) -> int | list[int]:
    """A size as transformers writes it: one number for a square."""
    return size[0] if size[0] == size[1] else list(size)


class ViTFamily(Family):
    model = "vit"
    model_types = ("vit",)
    settings: ClassVar[SettingKeys] = {
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
    }
    prefix = "vit"
    heads = ("classifier.",)
    base = "ViTModel"
    own_heads = ("ViTForImageClassification",)
    files = IMAGE
    # settings that transformers' model has, where ours has a choice
    plain: ClassVar[dict[str, Any]] = {"pool": "class", "stem": (), "positions": True, "patch_bias": True, "embedding_norm": False}

    def table(self, settings: Settings) -> list[Entry]:
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

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        hf.require(pooler_act="tanh")
        if hf["pooler_output_size"] not in (None, hf["hidden_size"]):
            raise NotSupported(
                f"config.json has pooler_output_size={hf['pooler_output_size']}; only {hf['hidden_size']}, the hidden_size, is supported"
            )
        return {
            "activation": hf.activation("hidden_act"),
            "attention": (str(Softmax(dropout=hf["attention_probs_dropout_prob"])),),
            "classes": hf.rows("classifier.weight"),
            "pooler": hf.rows("pooler.dense.weight", f"{self.prefix}.pooler.dense.weight") > 0,
        }

    def more_config(self, model: Any) -> dict[str, Any]:
        c = model.config
        odd = {name: f"{name}={getattr(c, name)!r}" for name, value in self.plain.items() if getattr(c, name) != value}
        if odd or (c.classes and c.pooler):
            raise NotSupported(
                f"this {self.model} has {' and '.join(odd.values()) or 'a pooler before its head'}; transformers' has "
                f"{' and '.join(f'{name}={self.plain[name]!r}' for name in odd) or 'none'}"
            )
        return {
            "architectures": [self.own_heads[0] if c.classes else self.base],
            "hidden_act": hf_activation(c.activation),
            "attention_probs_dropout_prob": plain_attention_dropout(model),
            "image_size": one_or_two(c.image_size),
            **self.patches(c),
        }

    def patches(self, c: Any) -> dict[str, Any]:
        """Keys of config.json on the size of patches."""
        return {"patch_size": one_or_two(c.patch_size), "encoder_stride": c.patch_size[0]}
