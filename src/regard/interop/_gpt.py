"""GPT in the files of transformers: as GPT-2, with norms after each sum, none at the end, and other names for the tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..models import GPT
from ._encoders import Plain, tied
from ._gpt2 import blocks_table, gpt_config, gpt_settings
from ._names import Line, expect, line, ours, theirs

TYPES = ("openai-gpt",)
NAMES = ("gpt",)
BUFFERS = (r"\.attn\.bias$", r"(^|\.)position_ids$", r"^lm_head\.weight$")


def config(hf: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    expect(hf, afn="gelu", tie_word_embeddings=True)  # by "gelu" this family means the form with tanh
    return "gpt", gpt_settings(hf)


def weights(hf: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, Tensor]:
    hf = Plain(hf, "transformer")
    tied(hf, "lm_head.weight", "tokens_embed.weight")
    return ours(hf, _table(settings["depth"]))


def exported(model: GPT) -> tuple[dict[str, Any], dict[str, Tensor]]:
    tensors = theirs(model.state_dict(), _table(model.config.depth))
    return gpt_config(model, "openai-gpt", "OpenAIGPTLMHeadModel") | {"afn": "gelu"}, {
        f"transformer.{name}": x for name, x in tensors.items()
    }


def _table(depth: int) -> list[Line]:
    words = [line("embedding.token.weight", "tokens_embed.weight"), line("embedding.position.table.weight", "positions_embed.weight")]
    return [*words, *blocks_table(depth, "over")]
