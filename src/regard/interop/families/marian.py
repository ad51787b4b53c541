"""Marian translators in transformers' files: post-norm, sinusoids with sines before cosines, and a bias on the logits."""

from __future__ import annotations

from typing import Any

from ...errors import BadConfig, NotSupported
from ...models import Transformer
from ..attention import Softmax, plain_attention_dropout
from ..constants import is_sinusoids
from ..family import Family, SettingKeys, Settings
from ..hf_config import HFConfig, hf_activation
from ..names import Entry, layer, tensor

SETTINGS: SettingKeys = {
    "source_vocab_size": "vocab_size",
    "width": "d_model",
    "heads": "encoder_attention_heads",
    "hidden": "encoder_ffn_dim",
    "dropout": "dropout",
    "max_length": "max_position_embeddings",
}


def check_equal_stacks(hf: HFConfig) -> None:
    """Encoder and decoder have layers of one kind."""
    for encoder, decoder in (("encoder_ffn_dim", "decoder_ffn_dim"), ("encoder_attention_heads", "decoder_attention_heads")):
        if hf[encoder] != hf[decoder]:
            raise BadConfig(f"config.json has {encoder}={hf[encoder]} and {decoder}={hf[decoder]}; only equal values are supported")


def stacks_config(model: Transformer) -> dict[str, Any]:
    c = model.config
    layers = {"encoder_layers": c.depth[0], "decoder_layers": c.depth[1]}
    return {**layers, "decoder_attention_heads": c.heads, "decoder_ffn_dim": c.hidden, "is_encoder_decoder": True}


def stacks_table(settings: Settings, prefix: str) -> list[Entry]:
    """The layers of encoder and decoder, and the norms after them if theirs are before each part."""
    norm, entries = "over" if settings["placement"] == "post" else "before", []
    for stack, depth in zip(("encoder", "decoder"), settings["depth"], strict=True):
        for i in range(depth):
            block, hf = f"{stack}.{i}", f"{prefix}{stack}.layers.{i}"
            entries += _attention(block, "mixer", f"{hf}.self_attn", norm)
            entries += _attention(block, "cross", f"{hf}.encoder_attn", norm) if stack == "decoder" else []
            entries += layer(f"{block}.feedforward.up", f"{hf}.fc1") + layer(f"{block}.feedforward.down", f"{hf}.fc2")
            entries += layer(f"{block}.around_feedforward.{norm}", f"{hf}.final_layer_norm")
        entries += layer(f"{stack}_norm", f"{prefix}{stack}.layer_norm") if norm == "before" else []
    return entries


def _attention(block: str, part: str, hf: str, norm: str) -> list[Entry]:
    return [
        *layer(f"{block}.{part}.qkv", *(f"{hf}.{x}_proj" for x in "qkv")),
        *layer(f"{block}.{part}.out", f"{hf}.out_proj"),
        *layer(f"{block}.around_{part}.{norm}", f"{hf}_layer_norm"),
    ]


class MarianFamily(Family):
    model = "transformer"
    model_types = ("marian",)
    settings = SETTINGS
    tied = (
        ("lm_head.weight", "model.shared.weight"),
        ("lm_head.weight", "model.decoder.embed_tokens.weight"),
        ("model.encoder.embed_tokens.weight", "model.shared.weight"),
        ("model.decoder.embed_tokens.weight", "model.shared.weight"),
    )
    constants = ((r"^model\.(encoder|decoder)\.embed_positions\.weight$", is_sinusoids),)

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        check_equal_stacks(hf)
        return {
            "target_vocab_size": hf["decoder_vocab_size"] or hf["vocab_size"],
            "depth": (hf["encoder_layers"], hf["decoder_layers"]),
            "tied": "all" if hf["share_encoder_decoder_embeddings"] else "output",
            "scaled": hf["scale_embedding"],
            "placement": "post",
            "position": "sinusoidal_halves",
            "activation": hf.activation("activation_function"),
            "output_bias": True,
            "attention": (str(Softmax(dropout=hf["attention_dropout"])),) * 3,
        }

    def more_config(self, model: Transformer) -> dict[str, Any]:
        c, dropout = model.config, plain_attention_dropout(model)
        if not (c.placement == "post" and c.position == "sinusoidal_halves" and c.output_bias and c.tied != "none"):
            raise NotSupported(
                f"a Transformer with placement={c.placement!r}, position={c.position!r}, output_bias={c.output_bias}, tied={c.tied!r} cannot be "
                "exported as Marian, which has placement='post', position='sinusoidal_halves', output_bias=True, tied='all' or 'output'"
            )
        return {
            "architectures": ["MarianMTModel"],
            "decoder_vocab_size": c.target_vocab_size,
            **stacks_config(model),
            "attention_dropout": dropout,
            "activation_function": hf_activation(c.activation),
            "scale_embedding": c.scaled,
            "share_encoder_decoder_embeddings": c.tied == "all",
            "tie_word_embeddings": True,
        }

    def table(self, settings: Settings) -> list[Entry]:
        shared = settings["tied"] == "all"
        entries = [
            tensor("output_bias", "final_logits_bias", singletons=(0,)),
            tensor("embedding.token.weight", f"model.{'shared' if shared else 'decoder.embed_tokens'}.weight"),
        ]
        entries += [] if shared else [tensor("source_embedding.token.weight", "model.encoder.embed_tokens.weight")]
        return entries + stacks_table(settings, "model.")
