"""Options of the task masked: what `regard train` and the commands on its runs show, without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from ...bounds import Bounded, Size
from ...train.options import TrainOptions
from .shared import Declaration
from .text import TextOptions


@dataclass(frozen=True, kw_only=True)
class MaskedOptions(TextOptions):
    """Data, vocabulary, rows and masking."""

    max_length: Annotated[int, Meta(ge=8)] = 128
    """Tokens per row, special tokens included."""
    batch_size: Size = 32
    """Rows per batch."""
    mask_rate: Annotated[float, Meta(gt=0, lt=1)] = 0.15
    """Fraction of the tokens that are chosen for prediction."""
    next_sentence: Literal["auto", "yes", "no"] = "auto"
    """Also predict whether the second half of a row follows the first; auto: if there are several documents."""
    valid_rows: Size = 200
    """Validation rows that are scored at each evaluation."""


@dataclass(frozen=True, kw_only=True)
class FillOptions(Bounded):
    """Answers for masked tokens."""

    nbest: Size = 5
    """Tokens per [MASK], most likely first, with their probabilities."""


class MaskedDeclaration(Declaration):
    """Train a text encoder by masked language modelling.

    As in:  regard train masked --out runs/encoder --minutes 5
            regard train masked --data pages.jsonl.gz --field body --next-sentence no --set width=128 --out runs/encoder
    """

    name = "masked"
    Options = MaskedOptions
    PredictOptions = FillOptions
    default_model = "bert"
    default_train = TrainOptions(lr=1e-3, evaluate_every=500)
    main_options = ("max_length",)
