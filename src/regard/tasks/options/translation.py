"""Options of the task translation: what `regard train` and the commands on its runs show, without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...bounds import Probability, Size
from ...errors import BadConfig
from ...train.options import TrainOptions
from .seq2seq import Seq2SeqOptions
from .shared import BeamOptions, Declaration, Files, GreedyOptions


@dataclass(frozen=True, kw_only=True)
class TranslationOptions(Seq2SeqOptions):
    """Data, vocabulary and batches."""

    data: Files = "numbers:en-de"
    """Two files; a .tsv, .csv, .jsonl (also .gz, .xz) or .parquet; hf:FOLDER, a dataset; or numbers:en-de, dates:en-fr, gettext:fr."""
    joint: bool = True
    """False: a vocabulary each for source and target; by default they share one."""
    bpe_dropout: Probability = 0.0
    """Probability of skipping each BPE merge, drawn again every epoch; 0.1 helps with little data."""
    label_smoothing: Probability = 0.1
    """Label smoothing."""
    valid_sentences: Size = 200
    """Validation sentences that are translated at each evaluation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bpe_dropout and self.tokenizer != "bpe":
            raise BadConfig(f"bpe_dropout={self.bpe_dropout} with {self.tokenizer} tokens; expected 0, or --tokenizer bpe")


@dataclass(frozen=True, kw_only=True)
class TranslateOptions(BeamOptions):
    """Search and output."""

    nbest: Size = 1
    """Translations per sentence, best first, with their scores."""
    alignments: Literal["none", "pharaoh"] = "none"
    """pharaoh: append word alignments as `i-j` pairs (Pharaoh format)."""


class TranslationDeclaration(Declaration):
    """Train a translator on pairs of sentences.

    As in:  regard train translation --data numbers:en-de --out runs/numbers --minutes 2
            regard train translation --data train.en train.de --valid val.en val.de --out runs/mine --minutes 10
            regard train translation --data pairs.csv --fields en de --out runs/mine --minutes 10
    """

    name = "translation"
    Options = TranslationOptions
    PredictOptions = TranslateOptions
    LookOptions = GreedyOptions
    default_model = "transformer"
    default_train = TrainOptions(lr=4e-3, evaluate_every=150)
    main_options = ("valid",)
