"""Options of the task label: what `regard train` and the commands on its runs show, without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

from .shared import Declaration
from .tuning import FEW_EXAMPLES, TuningOptions


@dataclass(frozen=True, kw_only=True)
class LabelOptions(TuningOptions):
    """Data, vocabulary and fine-tuning."""


class LabelDeclaration(Declaration):
    """Train a token classifier: a label for each word of a sentence.

    As in:  regard train label --data names.tsv --init-from runs/encoder --out runs/names
            regard train label --data names.jsonl --fields tokens tags --init-from runs/encoder --out runs/names
    """

    name = "label"
    Options = LabelOptions
    default_model = "bert"
    default_train = FEW_EXAMPLES
    main_options = ("fields", "max_length")
