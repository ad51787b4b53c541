"""Fine-tuning a language model or an encoder from few labelled examples; `classify` and `label` differ in what an example is.

The lower half of the layers stays frozen, the learning rate falls from the top layer to the bottom (`train.layerwise`), each of several
seeds stops when validation stops improving, and the best seed is kept: one run on a few hundred examples says little (Dodge et al. 2020,
arXiv:2002.06305). The ablation is the same model without what it has learned (`--from-scratch`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data import Tokenizer, Tokenizers
from ..data.corpus import Numbers
from ..data.examples import Examples
from ..errors import NotSupported
from ..look import Indices, Layers, Maps
from ..models import Classifier, LanguageModel, Model, find_model
from ..runs import Run
from ..train import Loss, Metric, TrainOptions, depths, layerwise
from ._base import DataOptions, Dataset, NoOptions, Report, Task, TokenizerKind, check_range, digest, require_parts
from ._classification_metrics import METRICS, classification_metrics, confusion_rows
from ._labelled import EncodedExamples, LabelBatch, collate, encode_examples
from ._maps import text_maps
from ._processor import TextProcessor


@dataclass(frozen=True, kw_only=True)
class ClassificationOptions(DataOptions):
    """Which examples, and how much of a pretrained model may change."""

    data: str = ""
    """Labelled examples: .tsv or .jsonl (also .gz, .xz)."""
    fields: tuple[str, ...] = ()
    """Names of columns or fields, or numbers of columns from 1: the texts, then the label; usual names are found without."""
    freeze: float = 0.5
    """With --init-from: share of the layers, from below, that stays frozen, with the embeddings."""
    layer_lr_decay: float = 0.9
    """Factor of the learning rate from one layer to the one below it."""
    tokenizer: TokenizerKind = "bpe"
    """Kind of tokens; with --init-from those of that run."""
    vocab_size: int = 4000
    """Largest vocabulary size; with --init-from that of that run."""
    max_length: int = 128
    """Tokens per example at most; longer ones are truncated."""
    batch_size: int = 32
    """Examples per batch."""
    metric: Literal["accuracy", "f1", "matthews", "f1_tokens"] = "accuracy"
    """Metric on validation that decides which parameters and which seed are kept."""

    def __post_init__(self) -> None:
        check_range(
            self,
            freeze=(0 <= self.freeze < 1, "0 or more, below 1"),
            layer_lr_decay=(0 < self.layer_lr_decay <= 1, "above 0, at most 1"),
            batch_size=(self.batch_size >= 1, "1 or more"),
            max_length=(self.max_length >= 8, "8 or more"),
            metric=(self.metric in METRICS, f"one of {', '.join(METRICS)}"),
        )


ClassificationOptionsT = TypeVar("ClassificationOptionsT", bound=ClassificationOptions)


class ClassificationTask(Task[ClassificationOptionsT]):
    """Labels of texts or of words, by a classification head over a language model or an encoder."""

    per_token: ClassVar[bool]
    model_kind = Classifier
    default_model = "bert"
    default_train = TrainOptions(epochs=6, patience=2, lr=5e-4, schedule="linear", warmup_steps=None, average=0, seeds=(0, 1, 2))

    @abstractmethod
    def texts_of(self, example: Any) -> Sequence[str]:
        """The texts of an example, to train a tokenizer on."""

    @abstractmethod
    def labels_of(self, example: Any) -> Sequence[str]:
        """The labels of an example."""

    @abstractmethod
    def read(self) -> Examples[Any]: ...

    # -- training ------------------------------------------------------------------------------------------------------

    def make_processor(self, raw: Examples[Any], base: TextProcessor | None) -> TextProcessor:
        labels = tuple(sorted({label for one in raw.train for label in self.labels_of(one)}))
        if len(labels) < 2:
            raise NotSupported(f"{self.options.data}: all examples have the label {labels[0]!r}; give examples of at least two labels")
        if base is not None:
            return TextProcessor(base.tokenizers, labels)
        texts = (text for one in raw.train for text in self.texts_of(one))
        return TextProcessor(Tokenizers(Tokenizer.train(texts, self.options.tokenizer, self.options.vocab_size)), labels)

    def load_processor(self, folder: Path) -> TextProcessor:
        return TextProcessor.load(folder)

    def encode(self, raw: Examples[Any], processor: TextProcessor, cache: Path) -> Dataset[list[Any]]:
        fingerprint = digest(repr(tuple(one)) for part in (raw.train, raw.valid, raw.test) for one in part)
        return Dataset(raw.train, raw.valid, raw.test, fingerprint, str(raw.skipped) if len(raw.skipped) else "")

    def model_settings(self, model: str, processor: TextProcessor) -> dict[str, Any]:
        return {"vocab_size": len(processor.tokenizer), find_model(model).length_setting: self.options.max_length}

    def adapt(self, body: Model, processor: TextProcessor) -> Classifier:
        body = body.body if isinstance(body, Classifier) else body
        return Classifier(body, len(processor.labels), each=self.per_token)

    def freeze(self, model: Model) -> None:
        freeze_layers(model, self.options.freeze)

    def objective(self, dataset: Dataset[list[Any]], processor: TextProcessor, model: Model, seed: int) -> ClassificationObjective:
        assert isinstance(model, Classifier)
        require_parts(self.options.data, len(dataset.train), len(dataset.valid), "examples")
        train, valid = (self.tokenize_texts(model, processor, part) for part in (dataset.train, dataset.valid))
        return ClassificationObjective(train, valid, processor.labels, self.options, seed)

    def tokenize_texts(self, model: Classifier, processor: TextProcessor, examples: Sequence[Any]) -> EncodedExamples:
        """Examples as token ids, in the form that this model reads."""
        length, last = min(self.options.max_length, model.max_length), isinstance(model.body, LanguageModel)
        return encode_examples(examples, processor.tokenizer, processor.labels, length, last)

    # -- use -----------------------------------------------------------------------------------------------------------

    def evaluate(self, run: Run[Classifier], data: str | None, options: NoOptions) -> Report:
        labels = run.processor.labels
        some = self.tokenize_texts(run.model, run.processor, self.test_data(run, data))
        counts, loss = confusion(run.model, some, len(labels), self.options.batch_size)
        return Report(
            metrics={"loss": loss, **classification_metrics(counts, labels)},
            notes=(f"{int(counts.sum()):,} labels",),
            columns=("label", "examples", "predicted", "precision", "recall"),
            rows=confusion_rows(counts, labels),
            details={"labels": list(labels), "confusion": counts.tolist()},
        )

    def attention_maps(self, run: Run[Any], text: str, layers: Layers, heads: Indices, options: NoOptions) -> tuple[str, Maps]:
        return "", text_maps(run.model, run.processor, text, layers, heads)

    @classmethod
    def fits(cls, kind: type[Model], per_token: bool) -> bool:
        return issubclass(kind, Classifier) and per_token == cls.per_token

    @classmethod
    def imported_options(cls, model: Model) -> Any:
        return cls.Options(data="", max_length=model.max_length)


class ClassificationObjective:
    """What the training loop asks."""

    def __init__(
        self, train: EncodedExamples, valid: EncodedExamples, labels: Sequence[str], options: ClassificationOptions, seed: int = 0
    ):
        self.train, self.valid, self.labels, self.options, self.seed = train, valid, labels, options, seed
        self.metric = Metric(options.metric, higher=True)

    def batches(self, epoch: int) -> Sequence[Any]:
        """Examples of similar length together: pools of a random order are sorted, and their batches shuffled."""
        generator, size = np.random.default_rng([self.seed, epoch]), self.options.batch_size
        order = generator.permutation(len(self.train))
        pools = [order[at : at + 32 * size] for at in range(0, len(order), 32 * size)]
        by_length = np.concatenate([pool[np.argsort(self.train.ids.lengths[pool], kind="stable")] for pool in pools])
        batches = [by_length[at : at + size] for at in range(0, len(by_length), size)]
        return [batches[n] for n in generator.permutation(len(batches))]

    def batch(self, item: Any) -> LabelBatch:
        return collate(self.train, item)

    def loss(self, model: nn.Module, batch: LabelBatch) -> Loss:
        assert isinstance(model, Classifier)
        logits_TN = label_logits(model, batch)
        right = float((logits_TN.argmax(1) == batch.label_T).sum())
        return Loss(F.cross_entropy(logits_TN, batch.label_T, reduction="sum"), len(batch.label_T), {"accuracy": right})

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        assert isinstance(model, Classifier)
        counts, loss = confusion(model, self.valid, len(self.labels), self.options.batch_size)
        return {"loss": loss, **classification_metrics(counts, self.labels)}

    def rates(self, model: nn.Module) -> Mapping[str, float]:
        return layerwise(model, self.options.layer_lr_decay)


@torch.no_grad()
def confusion(model: Classifier, some: EncodedExamples, count: int, batch_size: int = 32) -> tuple[Numbers, float]:
    """Counts (true label, predicted label), and the loss in nats per label."""
    counts, total = np.zeros((count, count), dtype=np.int64), 0.0
    order = np.argsort(-some.ids.lengths, kind="stable")
    for at in range(0, len(order), batch_size):
        one = collate(some, order[at : at + batch_size])
        logits_TN = label_logits(model, one)
        total += float(F.cross_entropy(logits_TN, one.label_T, reduction="sum"))
        np.add.at(counts, (one.label_T.numpy(), logits_TN.argmax(1).numpy()), 1)
    return counts, total / max(int(counts.sum()), 1)


def label_logits(model: Classifier, batch: LabelBatch) -> Tensor:
    """logits_TN at the positions of the labels."""
    return model(batch.ids_BL, batch.n_B, batch.segment_BL).flatten(0, -2)[batch.at_T]


def freeze_layers(model: nn.Module, share: float) -> int:
    """Freeze the embeddings and the lower `share` of the layers; returns the number of frozen parameters."""
    depth = depths(model)
    layers = max(depth.values()) - 1  # the classification head is above them
    frozen = 0
    for name, parameter in model.named_parameters():
        if share > 0 and depth[name] <= share * layers:
            parameter.requires_grad_(False)
            frozen += parameter.numel()
    return frozen
