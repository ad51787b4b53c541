"""Options of tasks that fine-tune a pretrained model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from ...bounds import Count, Probability, Size
from ...train.options import TrainOptions
from .shared import Files, MetricName, Targets, TokenizerOptions

# several seeds, each until validation stops improving: one run on a few hundred examples says little
FEW_EXAMPLES = TrainOptions(epochs=6, patience=2, lr=5e-4, schedule="linear", warmup_steps=None, average=0)


@dataclass(frozen=True, kw_only=True)
class TuningOptions(TokenizerOptions):
    """Data, vocabulary and fine-tuning."""

    data: Files = "facts:"
    """Labelled examples: .tsv, .csv or .jsonl (also .gz, .xz), .parquet; a folder of .txt files per class; hf:FOLDER; facts:, generated."""
    fields: tuple[str, ...] = ()
    """Names of columns or fields, or numbers of columns from 1: the texts, then the label; common names are recognized."""
    freeze: Probability = 0.0
    """With --init-from: fraction of the layers to freeze, starting from the embeddings."""
    layer_lr_decay: Annotated[float, Meta(gt=0, le=1)] = 0.9
    """Learning rate of a layer as a fraction of that of the layer above."""
    lora_rank: Count = 0
    """With --init-from: train low-rank adapters of this rank and the classification head, and nothing else; 0: no adapters."""
    lora_targets: Targets = "qv"
    """Adapters on the queries and values of attention, or on all linear layers."""
    max_length: Annotated[int, Meta(ge=8)] | None = None
    """Maximum number of tokens per example; longer ones lose their end. If not given, 128, and 2,048 for models of documents."""
    batch_size: Size = 32
    """Examples per batch."""
    metric: MetricName | None = None
    """Metric on validation that decides which parameters and which seed are kept; accuracy, pearson or F1 if not given."""
