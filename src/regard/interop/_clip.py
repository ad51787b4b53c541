"""The tensor names of CLIP, ours beside those of transformers."""

from __future__ import annotations

from ._family import Settings
from ._names import Entry, layer, tensor


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


def clip_table(settings: Settings) -> list[Entry]:
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
