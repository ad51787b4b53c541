"""mT5 in transformers' files: T5 1.1 for many languages, without a factor before the output. It is written as a T5."""

from __future__ import annotations

from ..hf_config import HFConfig
from .t5 import T5Family


class MT5Family(T5Family):
    model_types = ("mt5",)

    def scaled(self, hf: HFConfig) -> bool:
        hf.get("tie_word_embeddings")  # transformers ties the embeddings unless the file has both, whatever it says here
        return False
