"""Options of the task classify: what `regard train` and the commands on its runs show, without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

from ...bounds import Count
from ...errors import BadConfig
from .shared import ClassesOptions, Declaration, VectorOptions
from .tuning import FEW_EXAMPLES, TuningOptions


@dataclass(frozen=True, kw_only=True)
class ClassifyOptions(TuningOptions, VectorOptions):
    """Data, vocabulary and fine-tuning."""

    multi_label: bool = False
    """A text has any number of labels: a list in JSON, else separated by commas or |."""
    regression: bool = False
    """Labels are numbers to predict."""

    ngram_buckets: Count = 0
    """Hash buckets of a linear classifier over tokens and pairs of tokens that helps the model, for little data; 0: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ngram_buckets and (self.multi_label or self.regression):
            raise BadConfig(f"ngram_buckets={self.ngram_buckets} with --multi-label or --regression; expected 0, it predicts one label")
        if self.multi_label and self.regression:
            raise BadConfig("--multi-label and --regression cannot be combined; labels are classes or numbers")


class ClassifyDeclaration(Declaration):
    """Train a text classifier, of texts or of pairs of texts.

    As in:  regard train classify --data reviews.tsv --init-from runs/encoder --out runs/reviews
            regard train classify --data nli.jsonl --fields premise hypothesis label --init-from runs/encoder --out runs/nli
            regard train classify --data aclImdb --model han --out runs/imdb
            regard train classify --data sts.csv --fields text1 text2 score --regression --init-from runs/bert --lora-rank 8 --out runs/sts
    """

    name = "classify"
    Options = ClassifyOptions
    PredictOptions = ClassesOptions
    default_model = "bert"
    default_train = FEW_EXAMPLES
    main_options = ("fields", "max_length")
