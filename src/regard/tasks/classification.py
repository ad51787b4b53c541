"""Fine-tuning a language model or an encoder from few labelled examples; `classify` and `label` differ in what an example is.

The learning rate falls from the top layer to the bottom (`train.layerwise`), each of several seeds stops when validation stops improving,
and the best seed is kept: one run on a few hundred examples says little (Dodge et al. 2020, arXiv:2002.06305). Of a large model lower layers
may stay frozen (`--freeze`), or all of it, with adapters (`--lora-rank`). The ablation is the same model without what it has learned (`--from-scratch`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..data import Skipped
from ..data.examples import Examples, Labelled, Tagged, read_labelled, read_tagged
from ..data.lines import Fault
from ..errors import BadConfig, BadFile, NotSupported
from ..layers import add_lora
from ..look import Indices, Layers, Maps
from ..models import Classifier, DocumentModel, LanguageModel, Model, TextEncoder, TextModel, body_of, build, find_model
from ..runs import Run
from ..train import TrainOptions
from ._base import Dataset, Example, NoOptions, Prediction, Report, Task, digest, require_parts
from ._erasure import erasure_text
from ._framing import frame
from ._labelled import (
    OUTSIDE,
    EncodedExamples,
    Target,
    all_logits,
    by_sentence,
    collate,
    confusion_rows,
    counted,
    encode_examples,
    label_logits,
    names_of,
)
from ._options import Files, VectorOptions, show_files
from ._processor import TextProcessor, text_maps
from ._tuning import ClassificationObjective, TuningOptions, freeze_layers, metrics_of, require_lora, with_pooler, with_texts


@dataclass(frozen=True, kw_only=True)
class ClassifyOptions(TuningOptions, VectorOptions):
    """Data, vocabulary and fine-tuning."""

    multi_label: bool = False
    """A text has any number of labels: a list in JSON, else separated by commas or |."""
    regression: bool = False
    """Labels are numbers to predict."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.multi_label and self.regression:
            raise BadConfig("--multi-label and --regression cannot be combined; labels are classes or numbers")


@dataclass(frozen=True, kw_only=True)
class LabelOptions(TuningOptions):
    """Data, vocabulary and fine-tuning."""


@dataclass(frozen=True, kw_only=True)
class ClassesOptions:
    """What to print."""

    nbest: int = 1
    """Labels per text, most likely first, with their probabilities."""


SMALL = 20_000  # examples: below, a model of width 128 and two layers makes four times the steps in the same time, and learns more
TuningT = TypeVar("TuningT", bound=TuningOptions)


class ClassificationTask(Task[TuningT]):
    """Labels of texts or of words, by a classification head over a language model or an encoder."""

    per_token: ClassVar[bool]
    read_examples: ClassVar[Callable[..., Examples[Any]]]
    model_kind = Classifier
    body_kinds: ClassVar[tuple[type[Model], ...]] = (LanguageModel, TextEncoder)  # that have features per token
    length_option = "max_length"
    default_model = "bert"
    target: Target = "class"
    small = False  # little data, as `settle` finds
    texts_per_example = 1
    default_train = TrainOptions(epochs=6, patience=2, lr=5e-4, schedule="linear", warmup_steps=None, average=0, seeds=(0, 1, 2))

    def settle(self, dataset: Dataset[list[Any]]) -> Self:
        decided = type(self)(self.options)
        decided.small = len(dataset.train) < SMALL
        decided.texts_per_example = max((len(self.texts_of(one)) for one in dataset.train), default=1)
        return decided

    @classmethod
    def train_defaults(cls, model: str) -> TrainOptions:
        kind = find_model(model)
        return cls.default_train.replace(**kind.train_defaults) if issubclass(kind, TextModel) else cls.default_train

    def size_settings(self, model: str) -> dict[str, Any]:
        return {"width": 128, "hidden": 512, "depth": 2} if self.small and model == self.default_model else {}

    @abstractmethod
    def texts_of(self, example: Any) -> Sequence[str]:
        """The texts of an example, to train a tokenizer on."""

    @abstractmethod
    def labels_of(self, example: Any) -> Sequence[str]:
        """The labels of an example."""

    # -- training ------------------------------------------------------------------------------------------------------

    def read(self) -> Examples[Any]:
        return type(self).read_examples(one_file(self.options.data), fields=self.options.fields, **self.options.parts())

    def make_processor(self, raw: Examples[Any], base: TextProcessor | None) -> TextProcessor:
        labels = tuple(sorted({label for one in raw.train for label in self.labels_of(one)}))
        if len(labels) < 2 and self.target == "class":
            raise NotSupported(
                f"{show_files(self.options.data)}: all examples have the label {labels[0]!r}; give examples of at least two labels"
            )
        if base is not None:
            return TextProcessor(base.tokenizers, labels)
        return TextProcessor(self.options.tokenizers_of([text for one in raw.train for text in self.texts_of(one)]), labels)

    def encode(self, raw: Examples[Any], processor: TextProcessor, cache: Path) -> Dataset[list[Any]]:
        fingerprint = digest(repr(tuple(one)) for part in (raw.train, raw.valid, raw.test) for one in part)
        o, known = self.options, frozenset(processor.labels)
        train, valid, test = (
            [one for one in part if self._has_known_labels(one, known, where or o.data, raw.skipped)]
            for part, where in ((raw.train, o.data), (raw.valid, o.valid), (raw.test, o.test))
        )
        return Dataset(train, valid, test, fingerprint, str(raw.skipped) if len(raw.skipped) else "")

    def _has_known_labels(self, example: Any, known: frozenset[str], where: Files, skipped: Skipped) -> bool:
        """Whether its labels occur among the training examples; else it is an error or skipped, as other malformed examples are."""
        unknown = next((label for label in self.labels_of(example) if label not in known and self.target != "value"), None)
        if unknown is not None:
            has = ", ".join(map(repr, sorted(known)))[:200]
            what, remedy = "label that does not occur among the training examples", "train on examples of it"
            skipped.take(Fault(show_files(where), what, f"{unknown!r}; they have {has}", remedy))
        return unknown is None

    def adapt(self, body: Model, processor: TextProcessor) -> Classifier:
        """With a pooler, also over an encoder that was trained without: transformers has no classifier of texts without one."""
        body = body_of(body)
        return self._classifier(body if self.per_token else with_texts(with_pooler(body), self.texts_per_example), processor)

    def build(self, model: str, settings: Mapping[str, Any], processor: TextProcessor) -> Classifier:
        return self._classifier(build(model, settings), processor)

    def _classifier(self, body: Model, processor: TextProcessor) -> Classifier:
        return Classifier(body, len(processor.labels), each=self.per_token)

    def freeze(self, model: Model) -> None:
        assert isinstance(model, Classifier)
        if self.options.lora_rank:
            add_lora(model.body, self.options.lora_rank, self.options.lora_targets)
        else:
            freeze_layers(model, self.options.freeze)

    def objective(self, dataset: Dataset[list[Any]], processor: TextProcessor, model: Model, seed: int) -> ClassificationObjective:
        assert isinstance(model, Classifier)
        require_parts(self.options.data, len(dataset.train), len(dataset.valid), "examples")
        require_lora(model, self.options.lora_rank)
        train, valid = (self.tokenize_texts(model, processor, part) for part in (dataset.train, dataset.valid))
        return ClassificationObjective(train, valid, processor.labels, self.options, seed, self.target, self.per_token)

    def tokenize_texts(self, model: Classifier, processor: TextProcessor, examples: Sequence[Any]) -> EncodedExamples:
        """Examples as token ids, in the form that this model reads."""
        if isinstance(model.body, TextModel):
            check_texts(model.body, examples)
        length = min(self.longest(type(model.body)), model.max_length)
        return encode_examples(examples, processor.tokenizer, processor.labels, length, model.body, self.target)

    def longest(self, kind: type[Model]) -> int:
        """Tokens per example: those of --max-length, or what suits this kind of model."""
        return self.options.max_length or (kind.usual_length if issubclass(kind, TextModel) else TextModel.usual_length)

    def model_settings(self, model: str, processor: TextProcessor) -> dict[str, Any]:
        kind = find_model(model)
        found = {**super().model_settings(model, processor), kind.length_setting: self.longest(kind)}
        return {**found, "texts": self.texts_per_example} if "texts" in kind.Config.__dataclass_fields__ else found

    # -- use -----------------------------------------------------------------------------------------------------------

    def evaluate(self, run: Run[Classifier], data: Files | None, options: NoOptions) -> Report:
        labels, examples = run.processor.labels, self.test_data(run, data)
        some = self.tokenize_texts(run.model, run.processor, examples)
        logits_TN, loss = all_logits(run.model, some, self.options.batch_size, self.target)
        metrics = {"loss": loss, **metrics_of(logits_TN, some, labels, self.target, self.per_token)}
        details: dict[str, Any] = {"data": self.test_name(data), "examples": len(examples)}
        note = f"{self.test_name(data)}: {len(examples):,} examples"
        if self.target == "value":
            return Report(metrics=metrics, notes=(note,), details=details, outputs=[f"{value:.6g}" for value in logits_TN[:, 0]])
        columns = ("label", "support", "predicted", "precision", "recall")
        if self.target == "labels":
            predicted_EN, true_EN = logits_TN > 0, some.target_EN
            assert true_EN is not None
            pairs = zip(labels, true_EN.T > 0, predicted_EN.T, strict=True)
            rows = [
                (name, *confusion_rows(counted(true.astype(int), found.astype(int), 2), ("", name))[1][1:]) for name, true, found in pairs
            ]
            outputs = [",".join(labels[n] for n in np.flatnonzero(row)) for row in predicted_EN]
            return Report(metrics=metrics, notes=(note,), columns=columns, rows=rows, details=details, outputs=outputs)
        predicted_T = logits_TN.argmax(1)
        counts = counted(some.labels.values, predicted_T, len(labels))
        return Report(
            metrics=metrics,
            notes=(f"{note}, {len(predicted_T):,} labels" if self.per_token else note,),
            columns=columns,
            rows=confusion_rows(counts, labels),
            details={**details, "labels": list(labels), "confusion": counts.tolist()},
            outputs=self.outputs(examples, predicted_T, some, labels),
        )

    def outputs(self, examples: Sequence[Any], predicted_T: npt.NDArray[Any], some: EncodedExamples, labels: Sequence[str]) -> list[str]:
        """The predicted label of each example."""
        return [labels[n] for n in predicted_T]

    @classmethod
    def fits(cls, kind: type[Model], per_token: bool) -> bool:
        return issubclass(kind, Classifier) and per_token == cls.per_token


class Classify(ClassificationTask[ClassifyOptions]):
    """Train a classifier of texts, or of pairs of texts, from labelled examples.

    As in:  regard train classify --data reviews.tsv --init-from runs/encoder --out runs/reviews
            regard train classify --data nli.jsonl --fields premise hypothesis label --init-from runs/encoder --out runs/nli
            regard train classify --data aclImdb --model han --out runs/imdb
            regard train classify --data sts.csv --fields text1 text2 score --regression --init-from runs/bert --lora-rank 8 --out runs/sts
    """

    name = "classify"
    body_kinds = (LanguageModel, TextModel)
    Options = ClassifyOptions
    PredictOptions = ClassesOptions
    per_token = False
    read_examples = read_labelled

    def texts_of(self, example: Labelled) -> Sequence[str]:
        return example.texts

    def model_settings(self, model: str, processor: TextProcessor) -> dict[str, Any]:
        return {**super().model_settings(model, processor), **self.options.vector_settings(model)}

    def make_processor(self, raw: Examples[Any], base: TextProcessor | None) -> TextProcessor:
        if base is not None:
            self.options.tokenizers_from(base.tokenizers)
        return super().make_processor(raw, base)

    def initialise(self, body: Model, processor: TextProcessor) -> None:
        self.options.set_embeddings(body, processor.tokenizer)

    @property
    def target(self) -> Target:  # type: ignore[override]
        return "value" if self.options.regression else "labels" if self.options.multi_label else "class"

    def load_processor(self, folder: Path) -> TextProcessor:
        processor: TextProcessor = super().load_processor(folder)
        if self.target == "value" and len(processor.labels) != 1:
            raise BadFile(
                f"{folder}: config.json has regression, which is one number, and labels.json {len(processor.labels)} labels; restore the one "
                "that was changed"
            )
        return processor

    def read(self) -> Examples[Any]:
        o = self.options
        return read_labelled(one_file(o.data), fields=o.fields, unlabelled=o.multi_label, **o.parts())

    def labels_of(self, example: Labelled) -> Sequence[str]:
        return names_of(example.label) if self.target == "labels" else ("value",) if self.target == "value" else (example.label,)

    def predict(self, run: Run[Classifier], inputs: Sequence[str], options: ClassesOptions) -> list[Prediction]:
        """A tab separates the two texts of a pair."""
        labels, answers = run.processor.labels, []
        for output in self.outputs_of(run, [tuple(line.split("\t")) for line in inputs]):
            if self.target == "value":
                answers.append(Prediction(f"{float(output):.4f}", {"value": float(output)}))
                continue
            best = output.topk(min(options.nbest, len(labels)) if self.target == "class" or options.nbest > 1 else len(labels))
            found = [{"label": labels[n], "probability": p} for p, n in zip(best.values.tolist(), best.indices.tolist(), strict=True)]
            if self.target == "labels" and options.nbest == 1:
                found = [one for one in found if float(one["probability"]) > 0.5]
                text = ", ".join(f"{one['label']} {one['probability']:.4f}" for one in found)
            else:
                text = "\n".join(f"{one['label']}\t{one['probability']:.4f}" for one in found)
            answers.append(Prediction(text, {"labels": found}))
        return answers

    def probabilities(self, run: Run[Classifier], texts: Sequence[tuple[str, ...]]) -> Tensor:
        """p_EN of every label for each text or pair."""
        return self.outputs_of(run, texts)

    @torch.no_grad()
    def outputs_of(self, run: Run[Classifier], texts: Sequence[tuple[str, ...]]) -> Tensor:
        """Probabilities of labels, or predicted values, of each text or pair."""
        labels, blank = run.processor.labels, "0" if self.target == "value" else run.processor.labels[0]
        some = self.tokenize_texts(run.model, run.processor, [Labelled(tuple(one), blank) for one in texts])
        logits_EN, _ = all_logits(run.model, some, self.options.batch_size, self.target)
        y_EN = torch.from_numpy(logits_EN.reshape(-1, len(labels)))
        return y_EN if self.target == "value" else y_EN.softmax(-1) if self.target == "class" else y_EN.sigmoid()

    def attention_maps(self, run: Run[Classifier], text: str, layers: Layers, heads: Indices, options: NoOptions) -> tuple[str, Maps]:
        """Of a document also what is predicted with and without what has the largest weight."""
        body = run.model.body
        if not isinstance(body, DocumentModel) or self.target != "class":
            return super().attention_maps(run, text, layers, heads, options)
        maps = text_maps(run.model, run.processor, text)
        document = frame(run.processor.tokenizer, [text], body.max_length, body)
        return erasure_text(run.model, run.processor.labels, run.processor.tokenizer, document, maps), maps.choose(layers)

    @classmethod
    def example(cls, folder: Path) -> Example:
        path = folder / "examples.tsv"
        path.write_text("".join(f"item {n} is {'fine' if n % 2 else 'broken'}\t{'good' if n % 2 else 'bad'}\n" for n in range(60)))
        options = ClassifyOptions(data=str(path), tokenizer="word", vocab_size=100, max_length=16, batch_size=8)
        settings = {"width": 16, "heads": 2, "depth": 1, "hidden": 16}
        return Example(options=options, settings=settings, input="item 7 is fine", broken="no label\n")


class Label(ClassificationTask[LabelOptions]):
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
        """Spaces separate the words; a line per word, as CoNLL has them, and a blank line after each sentence."""
        sentences = [line.split() for line in inputs]
        answers = []
        for words, labels in zip(sentences, self.predict_tags(run, sentences), strict=True):
            found = [{"word": word, "label": label, "probability": p} for word, (label, p) in zip(words, labels, strict=True)]
            answers.append(Prediction("".join(f"{one['word']}\t{one['label']}\n" for one in found), {"words": found}))
        return answers

    def outputs(self, examples: Sequence[Tagged], predicted_T: npt.NDArray[Any], some: EncodedExamples, labels: Sequence[str]) -> list[str]:
        """CoNLL lines: word, label, predicted label."""
        true, found = (by_sentence(numbers, some, labels) for numbers in (some.labels.values, predicted_T))
        return [
            line
            for one, tags, guesses in zip(examples, true, found, strict=True)
            for line in (*map("\t".join, zip(one.words, tags, guesses, strict=False)), "")
        ]

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


def check_texts(model: TextModel, examples: Sequence[Any]) -> None:
    """Refuse pairs for a model of single texts, and the other way round."""
    other = next((len(one.texts) for one in examples if isinstance(one, Labelled) and len(one.texts) not in model.texts), None)
    if other is not None:
        reads = " or ".join("one text" if n == 1 else f"{n} texts" for n in model.texts)
        raise NotSupported(f"{model.facts.name} reads {reads} per example, and the data has {other}; choose the columns with --fields")


def one_file(data: Files) -> str:
    """Labelled examples come from one file."""
    if isinstance(data, str) or len(data) == 1:
        return data if isinstance(data, str) else data[0]
    raise NotSupported(f"{show_files(data)}: labelled examples come from one file; name others with --valid and --test")
