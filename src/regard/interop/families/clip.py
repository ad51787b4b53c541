"""CLIP in transformers' files, whose config.json holds one config per tower."""

from __future__ import annotations

from typing import Any, ClassVar

from ...errors import BadConfig, NotSupported
from ...models import CLIP as Model
from ..attention import plain_attention_dropout
from ..family import Family, SettingKeys, Settings
from ..hf_config import HFConfig, hf_activation
from ..image_text_files import IMAGE_TEXT
from ..names import Entry, layer, tensor

OLD_END = 2  # eos_token_id of the first files; transformers then reads a text at its largest id
TOWER = {"width": "hidden_size", "heads": "num_attention_heads", "depth": "num_hidden_layers", "hidden": "intermediate_size"}
TEXT = {**TOWER, "vocab_size": "vocab_size", "max_length": "max_position_embeddings"}
IMAGE = {f"image_{ours}": key for ours, key in TOWER.items()} | {
    "image_size": "image_size",
    "patch_size": "patch_size",
    "channels": "num_channels",
}


def tower(hf: HFConfig, name: str) -> HFConfig:
    """The config of one tower; what older files say again under `…_config_dict` replaces all of it, defaults included."""
    given, again = hf[f"{name}_config"], hf.get(f"{name}_config_dict")
    if not isinstance(given, dict | None) or not isinstance(again, dict | None):
        raise BadConfig(f"config.json has {name}_config={str(given)[:60]}; expected an object")
    part = HFConfig({**(given or {}), "model_type": f"clip_{name}_model"})
    if again is not None:
        part = HFConfig({**(given or {}), **part.defaults, **again, "model_type": f"clip_{name}_model"})
    part.require(layer_norm_eps=1e-5)
    part.get("projection_dim")  # that of the whole counts
    return part


def tower_table(ours: str, hf: str, depth: int) -> list[Entry]:
    """The layers of one tower; both have the same names."""
    table: list[Entry] = []
    for i in range(depth):
        block, other = f"{ours}.blocks.{i}", f"{hf}.encoder.layers.{i}"
        table += layer(f"{block}.mixer.qkv", *(f"{other}.self_attn.{name}_proj" for name in "qkv"))
        table += layer(f"{block}.mixer.out", f"{other}.self_attn.out_proj")
        table += layer(f"{block}.feedforward.up", f"{other}.mlp.fc1")
        table += layer(f"{block}.feedforward.down", f"{other}.mlp.fc2")
        table += layer(f"{block}.around_mixer.before", f"{other}.layer_norm1")
        table += layer(f"{block}.around_feedforward.before", f"{other}.layer_norm2")
    return table


class CLIPFamily(Family):
    model = "clip"
    model_types = ("clip",)
    settings: ClassVar[SettingKeys] = {"embedding": "projection_dim"}
    constants = (
        (
            r"embeddings\.position_ids$",
            lambda values, settings: values.flatten().tolist() == list(range(values.numel())),
        ),
    )
    files = IMAGE_TEXT

    def table(self, settings: Settings) -> list[Entry]:
        """Ours beside CLIPModel's."""
        vision, text = "vision_model", "text_model"
        kernel = settings["channels"], settings["patch_size"], settings["patch_size"]
        return [
            Entry("image.embedding.patch.project.weight", (f"{vision}.embeddings.patch_embedding.weight",), kernel=kernel),
            tensor("image.embedding.class_token_D", f"{vision}.embeddings.class_embedding"),
            tensor("image.embedding.position.weight", f"{vision}.embeddings.position_embedding.weight"),
            *layer("image.embedding.norm", f"{vision}.pre_layrnorm"),  # as it is spelt in the files
            *tower_table("image", vision, settings["image_depth"]),
            *layer("image.norm", f"{vision}.post_layernorm"),
            tensor("text.embedding.token.weight", f"{text}.embeddings.token_embedding.weight"),
            tensor("text.embedding.position.table.weight", f"{text}.embeddings.position_embedding.weight"),
            *tower_table("text", text, settings["depth"]),
            *layer("text.norm", f"{text}.final_layer_norm"),
            tensor("image_projection.weight", "visual_projection.weight"),
            tensor("text_projection.weight", "text_projection.weight"),
            tensor("log_scale", "logit_scale"),
        ]

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        text, image = tower(hf, "text"), tower(hf, "vision")
        found = {ours: text[key] for ours, key in TEXT.items()} | {ours: image[key] for ours, key in IMAGE.items()}
        end, activations = text["eos_token_id"], (text.activation("hidden_act"), image.activation("hidden_act"))
        if len(set(activations)) > 1:
            raise NotSupported(f"config.json has activations {' and '.join(activations)} in its towers; only equal ones are supported")
        if not isinstance(end, int) or isinstance(end, bool):
            raise NotSupported(f"config.json has eos_token_id={end!r} in text_config; expected one id, that of the end token")
        for part in (text, image):
            part.refuse_unread()
        return {**found, "activation": activations[0], "end": None if end == OLD_END else end}

    def more_config(self, model: Model) -> dict[str, Any]:
        c = model.config
        if c.end == OLD_END:
            raise NotSupported(
                f"this clip ends its texts with the token {OLD_END}, for which transformers reads them elsewhere, as in the first checkpoints; "
                "train it with a tokenizer whose end token has another id: one that `regard train clip` makes, or --tokenizer-file"
            )
        both = {
            "hidden_act": hf_activation(c.activation),
            "layer_norm_eps": 1e-5,
            "projection_dim": c.embedding,
            "attention_dropout": plain_attention_dropout(model),
        }
        text = {key: getattr(c, ours) for ours, key in TEXT.items()} | {"eos_token_id": OLD_END if c.end is None else c.end}
        image = {key: getattr(c, ours) for ours, key in IMAGE.items()}
        return {
            "architectures": ["CLIPModel"],
            "text_config": {"model_type": "clip_text_model", **both, **text},
            "vision_config": {"model_type": "clip_vision_model", **both, **image},
        }
