"""Options of tasks on pairs of texts."""

from __future__ import annotations

from dataclasses import dataclass

from ...bounds import Size
from .shared import TokenizerOptions


@dataclass(frozen=True, kw_only=True)
class Seq2SeqOptions(TokenizerOptions):
    """Data, vocabulary and batches."""

    fields: tuple[str, ...] = ()
    """Names of the columns or fields of source and target, or numbers of columns from 1; if not given, usual names are tried."""
    batch_tokens: Size = 2048
    """Tokens per batch, of the longer side."""
