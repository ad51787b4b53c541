"""Fine-tuning a language model or an encoder from few labelled examples; `classify` and `label` differ in what an example is.

The lower half of the layers stays frozen, the learning rate falls from the top layer to the bottom (`train.layerwise`), each of several
seeds stops when validation stops improving, and the best seed is kept: one run on a few hundred examples says little (Dodge et al. 2020,
arXiv:2002.06305). The ablation is the same model without what it has learned (`--from-scratch`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data import Tokenizer, Tokenizers
from ..data.examples import Examples, Labelled, Tagged, read_labelled, read_tagged
from ..errors import NotSupported
from ..models import Classifier, LanguageModel, Model
from ..runs import Run
from ..train import Loss, Metric, TrainOptions, depths, layerwise
from ._base import DataOptions, Dataset, Example, NoOptions, Prediction, Report, Task, TokenizerKind, check_range, digest, require_parts
from ._labelled import (
    METRICS,
    OUTSIDE,
    EncodedExamples,
    LabelBatch,
    MetricName,
    classification_metrics,
    collate,
    confusion,
    confusion_rows,
    encode_examples,
    label_logits,
)
from ._processor import TextProcessor


@dataclass(frozen=True, kw_only=True)
class ClassifyOptions(DataOptions):
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
    metric: MetricName = "accuracy"
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


@dataclass(frozen=True, kw_only=True)
class LabelOptions(ClassifyOptions):
    """Which examples, and how much of a pretrained model may change."""

    metric: MetricName = "f1_tokens"
    """Metric on validation that decides which parameters and which seed are kept; f1_tokens: micro F1 of all labels but O."""


@dataclass(frozen=True, kw_only=True)
class ClassesOptions:
    """What to print."""

    nbest: int = 1
    """Labels per text, most likely first, with their probabilities."""


class ClassificationTask(Task[ClassifyOptions]):
    """Labels of texts or of words, by a classification head over a language model or an encoder."""

    per_token: ClassVar[bool]
    read_examples: ClassVar[Callable[..., Examples[Any]]]
    model_kind = Classifier
    length_option = "max_length"
    default_model = "bert"
    default_train = TrainOptions(epochs=6, patience=2, lr=5e-4, schedule="linear", warmup_steps=None, average=0, seeds=(0, 1, 2))

    @abstractmethod
    def texts_of(self, example: Any) -> Sequence[str]:
        """The texts of an example, to train a tokenizer on."""

    @abstractmethod
    def labels_of(self, example: Any) -> Sequence[str]:
        """The labels of an example."""

    # -- training ------------------------------------------------------------------------------------------------------

    def read(self) -> Examples[Any]:
        return type(self).read_examples(self.options.data, fields=self.options.fields, **self.options.parts())

    def make_processor(self, raw: Examples[Any], base: TextProcessor | None) -> TextProcessor:
        labels = tuple(sorted({label for one in raw.train for label in self.labels_of(one)}))
        if len(labels) < 2:
            raise NotSupported(f"{self.options.data}: all examples have the label {labels[0]!r}; give examples of at least two labels")
        if base is not None:
            return TextProcessor(base.tokenizers, labels)
        texts = (text for one in raw.train for text in self.texts_of(one))
        return TextProcessor(Tokenizers(Tokenizer.train(texts, self.options.tokenizer, self.options.vocab_size)), labels)

    def encode(self, raw: Examples[Any], processor: TextProcessor, cache: Path) -> Dataset[list[Any]]:
        fingerprint = digest(repr(tuple(one)) for part in (raw.train, raw.valid, raw.test) for one in part)
        return Dataset(raw.train, raw.valid, raw.test, fingerprint, str(raw.skipped) if len(raw.skipped) else "")

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

    @classmethod
    def fits(cls, kind: type[Model], per_token: bool) -> bool:
        return issubclass(kind, Classifier) and per_token == cls.per_token


class Classify(ClassificationTask):
    """Train a classifier of texts, or of pairs of texts, from labelled examples.

    As in:  regard train classify --data reviews.tsv --init-from runs/encoder --out runs/reviews
            regard train classify --data nli.jsonl --fields premise hypothesis label --init-from runs/encoder --out runs/nli
    """

    name = "classify"
    Options = ClassifyOptions
    PredictOptions = ClassesOptions
    per_token = False
    read_examples = read_labelled

    def texts_of(self, example: Labelled) -> Sequence[str]:
        return example.texts

    def labels_of(self, example: Labelled) -> Sequence[str]:
        return (example.label,)

    def predict(self, run: Run[Classifier], inputs: Sequence[str], options: ClassesOptions) -> list[Prediction]:
        """A tab separates the two texts of a pair."""
        labels = run.processor.labels
        best = self.probabilities(run, [tuple(line.split("\t")) for line in inputs]).topk(min(options.nbest, len(labels)))
        answers = []
        for ps, numbers in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            found = [{"label": labels[n], "probability": p} for p, n in zip(ps, numbers, strict=True)]
            answers.append(Prediction("\n".join(f"{one['label']}\t{one['probability']:.4f}" for one in found), {"labels": found}))
        return answers

    @torch.no_grad()
    def probabilities(self, run: Run[Classifier], texts: Sequence[tuple[str, ...]]) -> Tensor:
        """p_EN of every label for each text or pair."""
        labels, size = run.processor.labels, self.options.batch_size
        some = self.tokenize_texts(run.model, run.processor, [Labelled(tuple(one), labels[0]) for one in texts])
        batches = [np.arange(at, min(at + size, len(some))) for at in range(0, len(some), size)]
        parts = [label_logits(run.model, collate(some, batch)).softmax(-1) for batch in batches]
        return torch.cat([torch.zeros(0, len(labels)), *parts])

    @classmethod
    def example(cls, folder: Path) -> Example:
        path = folder / "examples.tsv"
        path.write_text("".join(f"item {n} is {'fine' if n % 2 else 'broken'}\t{'good' if n % 2 else 'bad'}\n" for n in range(60)))
        options = ClassifyOptions(data=str(path), tokenizer="word", vocab_size=100, max_length=16, batch_size=8)
        settings = {"width": 16, "heads": 2, "depth": 1, "hidden": 16}
        return Example(options=options, settings=settings, input="item 7 is fine", broken="no label\n")


class Label(ClassificationTask):
    """Train a model that labels each word of a sentence, from labelled examples.

    As in:  regard train label --data names.tsv --init-from runs/encoder --out runs/names
            regard train label --data names.jsonl --fields tokens tags --init-from runs/encoder --out runs/names
    """

    name = "label"
    Options = LabelOptions
    per_token = True
    read_examples = read_tagged

    def texts_of(self, example: Tagged) -> Sequence[str]:
        return (" ".join(example.words),)

    def labels_of(self, example: Tagged) -> Sequence[str]:
        return example.labels

    def predict(self, run: Run[Classifier], inputs: Sequence[str], options: NoOptions) -> list[Prediction]:
        """Spaces separate the words."""
        sentences = [line.split() for line in inputs]
        answers = []
        for words, labels in zip(sentences, self.predict_tags(run, sentences), strict=True):
            found = [{"word": word, "label": label, "probability": p} for word, (label, p) in zip(words, labels, strict=True)]
            line = " ".join(f"{one['word']}/{one['label']}({one['probability']:.2f})" for one in found)
            answers.append(Prediction(line, {"words": found}))
        return answers

    @torch.no_grad()
    def predict_tags(self, run: Run[Classifier], sentences: Sequence[Sequence[str]]) -> list[list[tuple[str, float]]]:
        """The label of each word and its probability. Words without tokens get label O, probability 0."""
        labels, tokenizer = run.processor.labels, run.processor.tokenizer
        nothing = (OUTSIDE if OUTSIDE in labels else labels[0], 0.0)
        answers = []
        for words in sentences:
            some = self.tokenize_texts(run.model, run.processor, [Tagged(tuple(words), (labels[0],) * len(words))])
            parts = [label_logits(run.model, collate(some, np.array([n]))).softmax(-1) for n in range(len(some))]
            best, number = torch.cat([torch.zeros(0, len(labels)), *parts]).max(-1)
            with_tokens = sorted({n for n in tokenizer.encode_words(words)[1] if n >= 0})
            predicted = [(labels[n], p) for n, p in zip(number.tolist(), best.tolist(), strict=True)]
            found = dict(zip(with_tokens, predicted, strict=True))
            answers.append([found.get(n, nothing) for n in range(len(words))])
        return answers

    @classmethod
    def example(cls, folder: Path) -> Example:
        path = folder / "words.tsv"
        path.write_text("".join(f"item\tO\n{n}\tN\nis\tO\n{'fine' if n % 2 else 'broken'}\tJ\n\n" for n in range(60)))
        options = LabelOptions(data=str(path), tokenizer="word", vocab_size=100, max_length=16, batch_size=8)
        settings = {"width": 16, "heads": 2, "depth": 1, "hidden": 16}
        return Example(options=options, settings=settings, input="item 7 is fine", broken="alone\n")


class ClassificationObjective:
    """What the training loop asks."""

    def __init__(self, train: EncodedExamples, valid: EncodedExamples, labels: Sequence[str], options: ClassifyOptions, seed: int = 0):
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
