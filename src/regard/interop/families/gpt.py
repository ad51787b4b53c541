"""GPT in transformers' files: as GPT-2, with norms after each sum, none at the end, and other names for the embeddings."""

from __future__ import annotations

from typing import Any

from ...models import GPT as GPTModel
from ..constants import is_causal_mask, is_counting
from ..family import Family, Settings
from ..hf_config import HFConfig
from ..names import Entry, tensor
from .gpt2 import SETTINGS, blocks_table, gpt_config, gpt_settings


class GPTFamily(Family):
    model = "gpt"
    model_types = ("openai-gpt",)
    settings = SETTINGS
    prefix = "transformer"
    tied = (("lm_head.weight", "tokens_embed.weight"),)
    constants = ((r"\.attn\.bias$", is_causal_mask), (r"^position_ids$", is_counting))  # in older files

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        """In this family "gelu", the only activation supported, is the tanh approximation."""
        return gpt_settings(hf)

    def more_config(self, model: GPTModel) -> dict[str, Any]:
        return gpt_config(model) | {"architectures": ["OpenAIGPTLMHeadModel"], "afn": "gelu"}

    def table(self, settings: Settings) -> list[Entry]:
        return [
            tensor("embedding.token.weight", "tokens_embed.weight"),
            tensor("embedding.position.table.weight", "positions_embed.weight"),
            *blocks_table(settings["depth"], "over"),
        ]
