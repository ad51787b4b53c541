"""Options of the task language: what `regard train` and the commands on its runs show, without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...bounds import Bounded, Count, Size
from ...decode.options import GenerationOptions
from ...errors import BadConfig
from ...train.options import TrainOptions
from .shared import Declaration, Targets
from .text import TextOptions


@dataclass(frozen=True, kw_only=True)
class LanguageOptions(TextOptions):
    """Data, vocabulary and windows."""

    context_length: Size = 128
    """Tokens per window."""
    batch_size: Size = 16
    """Windows per batch."""
    documents: Literal["separate", "joined"] = "separate"
    """separate: documents in a window do not attend to each other; joined: they may attend to earlier ones."""
    stride: Size | None = None
    """Tokens between the windows of an evaluation; half of --context-length if not given."""
    valid_tokens: Size = 20_000
    """Validation tokens that are scored at each evaluation."""
    lora_rank: Count = 0
    """With --init-from: train low-rank adapters of this rank and nothing else; 0: no adapters."""
    lora_targets: Targets = "qv"
    """Adapters on the queries and values of attention, or on all linear layers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride is not None and self.stride > self.context_length:
            raise BadConfig(
                f"a stride of {self.stride} would skip tokens between windows of {self.context_length}; use 1 to {self.context_length}"
            )


@dataclass(frozen=True, kw_only=True)
class PerplexityOptions(Bounded):
    """Scoring of a text."""

    stride: Size | None = None
    """Tokens between windows; half of the context length if not given. Smaller is slower and gives a lower loss."""


class LanguageDeclaration(Declaration):
    """Train a causal language model on plain text.

    As in:  regard train language --out runs/python --minutes 5
            regard train language --data input.txt --tokenizer char --context-length 64 --batch-size 12 --set width=128 --out runs/shakespeare
            regard train language --data folder --suffixes .py --model llama --out runs/code
    """

    name = "language"
    Options = LanguageOptions
    EvaluateOptions = PerplexityOptions
    PredictOptions = GenerationOptions
    default_model = "gpt2"
    default_train = TrainOptions(lr=3e-3, evaluate_every=200)
    main_options = ("context_length", "attention")
