"""Options of the task summarization: what `regard train` and the commands on its runs show, without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

from ...bounds import Fraction, NonNegative, Size
from ...train.options import TrainOptions
from .seq2seq import Seq2SeqOptions
from .shared import BeamOptions, Declaration, Files, TokenizerKind


@dataclass(frozen=True, kw_only=True)
class SummarizationOptions(Seq2SeqOptions):
    """Data, vocabulary, batches, and the coverage loss."""

    data: Files = "matches:count=5000"
    """A .jsonl, .tsv, .csv (also .gz, .xz) or .parquet; two files; hf:FOLDER, a dataset; docstrings:installed; matches:count=5000, generated."""
    tokenizer: TokenizerKind = "word"
    """Kind of tokenizer; words outside its vocabulary are copied whole; --init-from brings its own."""
    max_source_length: Size = 400
    """Tokens of an article that are read; the rest is cut off."""
    max_target_length: Size = 100
    """Maximum tokens of a summary, in training and when one is generated."""
    batch_tokens: Size = 4096
    """Tokens per batch, of the longer side."""
    coverage: NonNegative = 1.0
    """Weight λ of the coverage loss; 0: none."""
    coverage_start: Fraction = 0.9
    """Share of the training after which the coverage loss is added; 0: from the start."""
    valid_summaries: Size = 50
    """Validation articles that are summarised at each evaluation."""


@dataclass(frozen=True, kw_only=True)
class SummaryOptions(BeamOptions):
    """Search."""

    max_tokens: Size | None = None
    """Maximum tokens of a summary; that of training if not given."""


@dataclass(frozen=True, kw_only=True)
class SummarizeOptions(SummaryOptions):
    """Search and output."""

    nbest: Size = 1
    """Summaries per article, best first, with their scores."""


@dataclass(frozen=True, kw_only=True)
class GreedySummaryOptions(SummaryOptions):
    beam: Size = 1


class SummarizationDeclaration(Declaration):
    """Train a summarizer; it copies words that it has never seen.

    As in:  regard train summarization --out runs/matches --minutes 3
            regard train summarization --data news.jsonl --fields article highlights --out runs/news --minutes 60
            regard train summarization --data pairs.tsv --model pointer_transformer --out runs/mine --minutes 10
    """

    name = "summarization"
    Options = SummarizationOptions
    EvaluateOptions = SummaryOptions
    PredictOptions = SummarizeOptions
    LookOptions = GreedySummaryOptions
    default_model = "pointer_generator"
    default_train = TrainOptions(lr=2e-3, evaluate_every=150)
    main_options = ("max_source_length",)
