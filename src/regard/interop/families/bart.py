"""BART in transformers' files."""

from __future__ import annotations

from typing import Any

from ...models import Bart
from ..attention import Softmax, plain_attention_dropout
from ..family import Family, Settings
from ..hf_config import HFConfig, hf_activation
from ..names import Entry, layer, tensor
from .marian import SETTINGS, check_equal_stacks, stacks_config, stacks_table


class BartFamily(Family):
    model = "bart"
    model_types = ("bart",)
    architecture = "Bart"
    placement = "post"
    settings = SETTINGS
    prefix = "model"
    heads = ("final_logits_bias", "lm_head.")
    tied = tuple((copy, "shared.weight") for copy in ("lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"))

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        check_equal_stacks(hf)
        return {
            "target_vocab_size": hf["vocab_size"],
            "depth": (hf["encoder_layers"], hf["decoder_layers"]),
            "placement": self.placement,
            "activation": hf.activation("activation_function"),
            "scaled": hf["scale_embedding"],
            "output_bias": "final_logits_bias" in hf.tensor_names,
            "attention": (str(Softmax(dropout=hf["attention_dropout"])),) * 3,
        }

    def more_config(self, model: Bart) -> dict[str, Any]:
        return {
            "architectures": [f"{self.architecture}ForConditionalGeneration"],
            **stacks_config(model),
            "attention_dropout": plain_attention_dropout(model),
            "activation_function": hf_activation(model.config.activation),
            "scale_embedding": model.config.scaled,
        }

    def fits(self, model: Bart) -> bool:
        return model.config.placement == self.placement

    def table(self, settings: Settings) -> list[Entry]:
        entries = [tensor("embedding.token.weight", "shared.weight")]
        entries += [tensor("output_bias", "final_logits_bias", singletons=(0,))] if settings["output_bias"] else []
        for ours, stack in (("source_embedding", "encoder"), ("embedding", "decoder")):
            entries += [
                tensor(f"{ours}.position.table.weight", f"{stack}.embed_positions.weight"),
                *layer(f"{ours}.norm", f"{stack}.layernorm_embedding"),
            ]
        return entries + stacks_table(settings, "")
