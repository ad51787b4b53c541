"""GPT-2 in transformers' files, and what GPT's have in common with them: matrices are stored as (in, out), q, k and v as one."""

from __future__ import annotations

from typing import Any

from ...models import GPT as GPTModel
from ...models import GPT2 as GPT2Model
from ..attention import Softmax, plain_attention_dropout
from ..constants import is_causal_mask, is_mask_value
from ..family import Family, SettingKeys, Settings
from ..hf_config import HFConfig, hf_activation
from ..names import Entry, layer, tensor

SETTINGS: SettingKeys = {
    "vocab_size": "vocab_size",
    "context_length": "n_positions",
    "width": "n_embd",
    "heads": "n_head",
    "depth": "n_layer",
    "dropout": "resid_pdrop",
}


def gpt_settings(hf: HFConfig) -> dict[str, Any]:
    """Read the settings that GPT and GPT-2 have in common."""
    return {"attention": (str(Softmax(dropout=hf["attn_pdrop"])),)}


def gpt_config(model: GPTModel | GPT2Model) -> dict[str, Any]:
    return {"embd_pdrop": model.config.dropout, "attn_pdrop": plain_attention_dropout(model), "layer_norm_epsilon": 1e-5}


def blocks_table(depth: int, norm: str) -> list[Entry]:
    """Attention, feed-forward layers and norms, whose names GPT and GPT-2 share."""
    table = []
    for i in range(depth):
        block, hf = f"blocks.{i}", f"h.{i}"
        table += layer(f"{block}.mixer.qkv", f"{hf}.attn.c_attn", transposed=True)
        table += layer(f"{block}.mixer.out", f"{hf}.attn.c_proj", transposed=True)
        table += layer(f"{block}.feedforward.up", f"{hf}.mlp.c_fc", transposed=True)
        table += layer(f"{block}.feedforward.down", f"{hf}.mlp.c_proj", transposed=True)
        table += layer(f"{block}.around_mixer.{norm}", f"{hf}.ln_1")
        table += layer(f"{block}.around_feedforward.{norm}", f"{hf}.ln_2")
    return table


class GPT2Family(Family):
    model = "gpt2"
    model_types = ("gpt2",)
    settings = SETTINGS | {"hidden": "n_inner", "tied": "tie_word_embeddings"}
    prefix = "transformer"
    tied = (("lm_head.weight", "wte.weight"),)
    constants = ((r"\.attn\.bias$", is_causal_mask), (r"\.attn\.masked_bias$", is_mask_value))  # in older files

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        return {"activation": hf.activation("activation_function"), **gpt_settings(hf)}

    def more_config(self, model: GPT2Model) -> dict[str, Any]:
        return gpt_config(model) | {"architectures": ["GPT2LMHeadModel"], "activation_function": hf_activation(model.config.activation)}

    def table(self, settings: Settings) -> list[Entry]:
        output = [] if settings["tied"] else [tensor("output.weight", "lm_head.weight")]
        return [
            tensor("embedding.token.weight", "wte.weight"),
            tensor("embedding.position.table.weight", "wpe.weight"),
            *blocks_table(settings["depth"], "before"),
            *layer("norm", "ln_f"),
            *output,
        ]
