"""GPT-2 in the files of transformers, and what GPT's have in common with them: matrices are stored as (in, out), q, k and v as one."""

from __future__ import annotations

from typing import Any

from ..errors import BadConfig
from ..models import GPT as GPTModel
from ..models import GPT2 as GPT2Model
from ._attention import plain_attention_dropout, softmax_spec
from ._family import Family, SettingKeys, Settings
from ._hf_config import HFConfig
from ._names import Entry, layer, tensor

SETTINGS: SettingKeys = {
    "vocab_size": "vocab_size",
    "context_length": "n_positions",
    "width": "n_embd",
    "heads": "n_head",
    "depth": "n_layer",
    "dropout": ("resid_pdrop", 0.1),
}
FIXED = {"layer_norm_epsilon": 1e-5, "tie_word_embeddings": True}


def gpt_settings(hf: HFConfig) -> dict[str, Any]:
    """What GPT and GPT-2 have in common."""
    hf.require(**FIXED)
    if hf.get("n_inner") not in (None, 4 * hf["n_embd"]):
        raise BadConfig(f"config.json has n_inner={hf['n_inner']!r}; only 4 · n_embd = {4 * hf['n_embd']} is supported")
    return {"attention": (softmax_spec(hf.get("attn_pdrop", 0.1)),)}


def gpt_config(model: GPTModel | GPT2Model) -> dict[str, Any]:
    return {"embd_pdrop": model.config.dropout, "attn_pdrop": plain_attention_dropout(model), **FIXED}


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


def more_settings(hf: HFConfig) -> dict[str, Any]:
    hf.require(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    if hf.activation("activation_function", "gelu_new") != "gelu_tanh":
        raise BadConfig(f"config.json has activation_function={hf['activation_function']!r}; only 'gelu_new' is supported")
    return gpt_settings(hf)


def more_config(model: GPT2Model) -> dict[str, Any]:
    return gpt_config(model) | {"architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new"}


def table(settings: Settings) -> list[Entry]:
    return [
        tensor("embedding.token.weight", "wte.weight"),
        tensor("embedding.position.table.weight", "wpe.weight"),
        *blocks_table(settings["depth"], "before"),
        *layer("norm", "ln_f"),
    ]


GPT2 = Family(
    model="gpt2",
    model_types=("gpt2",),
    settings=SETTINGS,
    more_settings=more_settings,
    more_config=more_config,
    table=table,
    prefix="transformer",
    tied={"lm_head.weight": "wte.weight"},
    ignored=(r"\.attn\.(bias|masked_bias)$",),  # causal masks, in older files
)
