"""Classification of texts and of words: fine-tuning a language model or an encoder from few labelled examples.

The learning rate falls from the top layer to the bottom (`train.layerwise`), each of several seeds stops when validation stops improving,
and the best seed is kept: one run on a few hundred examples says little (Dodge et al. 2020, arXiv:2002.06305). Of a large model lower layers
may stay frozen (`--freeze`), or all of it, with adapters (`--lora-rank`). The ablation is the same model without what it has learned (`--from-scratch`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ..data import Skipped, Splits
from ..data.batches import Numbers
from ..data.examples import Labelled
from ..data.lines import Fault
from ..errors import NotSupported
from ..layers import add_lora, merge_lora
from ..metrics.classification import COLUMNS, confusion_matrix, confusion_rows
from ..metrics.spans import has_spans
from ..models import Classifier, LanguageModel, Model, TextEncoder, TextModel, body_of, find_model
from ..train import Loss, Metric, TrainOptions, layerwise
from .dial import Profile, mean_words
from .label_baselines import label_baselines
from .label_encoding import (
    EncodedExamples,
    LabelAnswer,
    LabelBatch,
    Target,
    collate,
    confusion_of,
    encode_examples,
    label_loss,
    label_metrics,
    split_answers,
    summed_loss,
)
from .options import Files, TuningOptions, show_files
from .task import Report, Start
from .text import TokensTask
from .text_processor import TextProcessor
from .tuning import freeze_layers, require_lora, with_pooler, with_texts
from .vocabulary import tokenizers_of

TuningT = TypeVar("TuningT", bound=TuningOptions)


class ClassificationTask(TokensTask[TuningT]):
    """Labels of texts or of words, by a classification head over a language model or an encoder."""

    per_token: ClassVar[bool]
    read_examples: ClassVar[Callable[..., Splits[Any]]]
    target: Target = "class"
    model_kind = Classifier
    body_kinds: ClassVar[tuple[type[Model], ...]] = (LanguageModel, TextEncoder)  # that have features per token
    length_option = "max_length"
    ngram_buckets = 0  # of a linear classifier beside the model
    small = 20_000  # a model of width 128 and two layers makes four times the steps in the same time
    small_sizes = {"bert": {"width": 128, "hidden": 512, "depth": 2}}  # noqa: RUF012

    @property
    def metric(self) -> Metric:  # type: ignore[override]
        by_words = "f1_spans" if has_spans(self.processor.labels) else "f1_tokens"
        usual = by_words if self.per_token else {"class": "accuracy", "labels": "f1_micro", "value": "pearson"}[self.target]
        name = self.options.metric or usual
        return Metric(name, higher=name != "mse")

    @classmethod
    def train_defaults(cls, model: str) -> TrainOptions:
        kind = find_model(model)
        return cls.default_train.replace(**kind.train_defaults) if issubclass(kind, TextModel) else cls.default_train

    @abstractmethod
    def texts_of(self, example: Any) -> Sequence[str]:
        """Texts of an example, to train a tokenizer on."""

    @abstractmethod
    def labels_of(self, example: Any) -> Sequence[str]:
        """Labels of an example."""

    # -- data ----------------------------------------------------------------------------------------------------------

    def read(self) -> Splits[list[Any]]:
        o = self.options
        files = {name: o.one_file(name) for name in ("valid", "test")}
        return type(self).read_examples(o.one_file("data"), fields=o.fields, **o.parts() | files, **self.read_options())

    def profile(self, data: Splits[list[Any]]) -> Profile:
        texts = self._texts(data)
        return {
            "examples": len(data.train),
            "texts": "pair" if texts == 2 else "one",
            "words": texts * mean_words(data.train, self.texts_of),
            "target": self.target,
        }

    def read_options(self) -> dict[str, Any]:
        """Further options of the reader."""
        return {}

    def make_processor(self, data: Splits[list[Any]], base: TextProcessor | None) -> TextProcessor:
        labels = tuple(sorted({label for one in data.train for label in self.labels_of(one)}))
        if len(labels) < 2 and self.target == "class":
            raise NotSupported(
                f"{show_files(self.options.data)}: all examples have the label {labels[0]!r}; give examples of at least two labels"
            )
        if base is not None:
            return TextProcessor(base.tokenizers, labels)
        return TextProcessor(tokenizers_of(self.options, [text for one in data.train for text in self.texts_of(one)]), labels)

    def prepare(self, data: Splits[list[Any]], cache: Path) -> Splits[list[Any]]:
        """Without examples whose labels do not occur in the training part; as other malformed ones they are an error, or skipped."""
        o, known, skipped = self.options, frozenset(self.processor.labels), data.skipped
        assert isinstance(skipped, Skipped)
        train, valid, test = (
            [one for one in part if self._has_known_labels(one, known, where or o.data, skipped)]
            for part, where in zip(data.parts, (o.data, o.valid, o.test), strict=True)
        )
        return replace(data, train=train, valid=valid, test=test)

    def _has_known_labels(self, example: Any, known: frozenset[str], where: Files, skipped: Skipped) -> bool:
        unknown = next((label for label in self.labels_of(example) if label not in known and self.target != "value"), None)
        if unknown is not None:
            has = ", ".join(map(repr, sorted(known)))[:200]
            what = "label that does not occur among the training examples"
            remedy = "train on examples of it; if that is a text, name the columns of text and label, as in --fields 2 1"
            skipped.take(Fault(show_files(where), what, f"{unknown!r}; they have {has}", remedy))
        return unknown is None

    def encode(self, examples: Sequence[Any], model: Classifier) -> EncodedExamples:
        if isinstance(model.body, TextModel):
            check_texts(model.body, examples)
        length = min(self.longest(type(model.body)), model.max_length)
        return encode_examples(examples, self.processor.tokenizer, self.processor.labels, length, model.body, self.target)

    def longest(self, kind: type[Model]) -> int:
        """Tokens per example: those of --max-length, or what suits this kind of model."""
        return self.options.max_length or (kind.usual_length if issubclass(kind, TextModel) else TextModel.usual_length)

    def lengths(self, rows: EncodedExamples) -> Numbers:
        return rows.ids.lengths

    def batch(self, item: tuple[EncodedExamples, Numbers], generator: torch.Generator | None) -> LabelBatch:
        return collate(*item)

    # -- model ---------------------------------------------------------------------------------------------------------

    def settings(self, model: str, data: Splits[list[Any]]) -> dict[str, Any]:
        kind = find_model(model)
        found = {**super().settings(model, data), kind.length_setting: self.longest(kind)}
        return {**found, "texts": self._texts(data)} if "texts" in kind.Config.__dataclass_fields__ else found

    def _texts(self, data: Splits[list[Any]]) -> int:
        """Texts per example."""
        return max((len(self.texts_of(one)) for one in data.train), default=1)

    def adapt(self, body: Model, data: Splits[Any] | None = None, start: Start = "loaded") -> Classifier:
        """Add a classification head; with a pooler, also over an encoder that was trained without: transformers has no classifier of texts
        without one."""
        body = body_of(body)
        if data is not None and not self.per_token:
            body = with_texts(with_pooler(body), self._texts(data))
        model = Classifier(body, len(self.processor.labels), each=self.per_token, ngram_buckets=self.ngram_buckets)
        if start == "pretrained" and self.options.lora_rank:
            add_lora(model.body, self.options.lora_rank, self.options.lora_targets)
        elif start == "pretrained":
            freeze_layers(model, self.options.freeze)
        return model

    def check(self, data: Splits[Any], model: Model) -> None:
        super().check(data, model)
        require_lora(model, self.options.lora_rank)

    def rates(self, model: nn.Module) -> Mapping[str, float]:
        return layerwise(model, self.options.layer_lr_decay)

    def merged(self, model: nn.Module, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return merge_lora(model, parameters)

    def loss(self, model: Classifier, batch: LabelBatch) -> Loss:
        """Cross-entropy at the positions of the labels, in training with what the model adds for each text."""
        logits, penalty_B = model.classify(batch.ids_BL, batch.n_B, batch.segment_BL)
        logits_TN = logits.flatten(0, -2)[batch.at_T]
        total = summed_loss(logits_TN.float(), batch, self.target)
        extra = {"accuracy": (logits_TN.argmax(1) == batch.label_T).sum()} if self.target == "class" else {}
        penalised = total + penalty_B.sum() if model.training and penalty_B is not None else total
        return Loss(penalised, len(batch.at_T), extra, logits_TN.float())

    # -- use -----------------------------------------------------------------------------------------------------------

    def answers(self, outputs: Tensor, batch: LabelBatch) -> list[LabelAnswer]:
        return split_answers(outputs, batch)

    def metrics(self, sums: Mapping[str, float], answers: Sequence[LabelAnswer], examples: Any) -> dict[str, float]:
        found = label_metrics(answers, self.processor.labels, self.target, self.per_token)
        return {"loss": label_loss(answers) if self.target == "class" else sums["loss"] / max(sums["count"], 1), **found}

    def baselines(self, train: Sequence[Any], examples: Sequence[Any]) -> dict[str, dict[str, float]]:
        return {} if self.target != "class" else label_baselines(train, examples, self.processor.labels)

    def report(self, sums: Mapping[str, float], answers: Sequence[LabelAnswer], examples: Sequence[Any], options: Any) -> Report:
        labels, metrics = self.processor.labels, self.metrics(sums, answers, examples)
        outputs = [line for one, found in zip(examples, answers, strict=True) for line in self.lines(one, found)]
        if self.target == "value":
            return Report(metrics=metrics, outputs=outputs)
        if self.target == "labels":
            pairs = [(one.target.astype(int), (one.logits[0] > 0).astype(int)) for one in answers]
            true_EN, found_EN = (np.stack(part) for part in zip(*pairs, strict=True))
            counts = [confusion_matrix(true_E, found_E, 2) for true_E, found_E in zip(true_EN.T, found_EN.T, strict=True)]
            rows = [(name, *confusion_rows(one, ("", name))[1][1:]) for name, one in zip(labels, counts, strict=True)]
            return Report(metrics=metrics, columns=COLUMNS, rows=rows, outputs=outputs)
        counts_NN = confusion_of(answers, labels)
        return Report(
            metrics=metrics,
            notes=(f"{int(counts_NN.sum()):,} labels",) if self.per_token else (),
            columns=COLUMNS,
            rows=confusion_rows(counts_NN, labels),
            details={"labels": list(labels), "confusion": counts_NN.tolist()},
            outputs=outputs,
        )

    @abstractmethod
    def lines(self, example: Any, answer: LabelAnswer) -> list[str]:
        """Lines of `evaluate --out` for an example."""

    @classmethod
    def fits(cls, kind: type[Model], per_token: bool) -> bool:
        return issubclass(kind, Classifier) and per_token == cls.per_token


def check_texts(model: TextModel, examples: Sequence[Any]) -> None:
    """Refuse pairs for a model of single texts, and the other way round."""
    other = next((len(one.texts) for one in examples if isinstance(one, Labelled) and len(one.texts) not in model.texts), None)
    if other is not None:
        reads = " or ".join("one text" if n == 1 else f"{n} texts" for n in model.texts)
        raise NotSupported(f"{model.facts.name} reads {reads} per example, and the data has {other}; choose the columns with --fields")
