"""Classification of texts and of pairs of texts: one class, several labels, or a value."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..data import Splits
from ..data.examples import Labelled, read_labelled
from ..errors import BadFile
from ..look import Indices, Layers, Maps
from ..models import Classifier, DocumentModel, LanguageModel, Model, TextModel, body_of, device_of
from ..runs import Run
from ..train import to_device
from .classification import ClassificationTask
from .erasure import erasure_text
from .label_encoding import (
    LabelAnswer,
    LabelBatch,
    Target,
    names_of,
)
from .options import ClassesOptions, NoOptions
from .options.classify import ClassifyDeclaration, ClassifyOptions
from .special_tokens import frame
from .task import InputField, Prediction, Start
from .text_processor import TextProcessor, text_maps
from .vocabulary import set_embeddings, tokenizers_from, vector_settings


class Classify(ClassifyDeclaration, ClassificationTask[ClassifyOptions]):
    body_kinds = (LanguageModel, TextModel)
    per_token = False
    read_examples = read_labelled

    @property
    def target(self) -> Target:  # type: ignore[override]
        return "value" if self.options.regression else "labels" if self.options.multi_label else "class"

    def read_options(self) -> dict[str, Any]:
        return {"unlabelled": self.options.multi_label}

    def texts_of(self, example: Labelled) -> Sequence[str]:
        return example.texts

    def labels_of(self, example: Labelled) -> Sequence[str]:
        return names_of(example.label) if self.target == "labels" else ("value",) if self.target == "value" else (example.label,)

    def settings(self, model: str, data: Splits[Any]) -> dict[str, Any]:
        return {**super().settings(model, data), **vector_settings(self.options, model)}

    def make_processor(self, data: Splits[Any], base: TextProcessor | None) -> TextProcessor:
        if base is not None:
            tokenizers_from(self.options, base.tokenizers)
        return super().make_processor(data, base)

    @property
    def ngram_buckets(self) -> int:  # type: ignore[override]
        return self.options.ngram_buckets

    def adapt(self, body: Model, data: Splits[Any] | None = None, start: Start = "loaded") -> Classifier:
        if start == "new":
            set_embeddings(self.options, body, self.processor.tokenizer)
        model = super().adapt(body, data, start)
        if model.ngrams is not None and data is not None and start != "loaded":
            batches = self._batches(model, data.train)
            model.ngrams.fit([(one.ids_BL, one.n_B, one.segment_BL) for one in batches], torch.cat([one.label_T for one in batches]))
        return model

    def calibrate(self, model: Classifier, answers: list[LabelAnswer], examples: Sequence[Labelled]) -> list[LabelAnswer]:
        """Tune the share of the linear classifier."""
        if model.ngrams is None:
            return answers
        rows, place = self.encode(examples, model), device_of(model)
        order = np.concatenate(self.plan(rows, None).groups)  # type: ignore[attr-defined]
        with torch.no_grad():
            batches = [to_device(one, place) for one in self._batches(model, examples)]
            found = torch.cat([model.ngrams(one.ids_BL, one.n_B, one.segment_BL) for one in batches]).cpu()
        linear_EN = torch.empty_like(found)
        linear_EN[order] = found
        both_EN, label_E = (
            torch.from_numpy(np.concatenate([one.logits for one in answers])),
            torch.tensor([int(one.target[0]) for one in answers]),
        )
        model_EN = both_EN - float(model.ngrams.share) * linear_EN
        model.ngrams.tune(model_EN, linear_EN, label_E)
        logits_EN = model_EN + float(model.ngrams.share) * linear_EN
        return [LabelAnswer(logits.numpy()[None], one.target) for logits, one in zip(logits_EN, answers, strict=True)]

    def _batches(self, model: Classifier, examples: Sequence[Labelled]) -> list[LabelBatch]:
        """Batches of an evaluation, in the order of its plan."""
        return [self.batch(item, None) for item in self.plan(self.encode(examples, model), None)]

    def load_processor(self, folder: Path) -> TextProcessor:
        processor: TextProcessor = super().load_processor(folder)
        if self.target == "value" and len(processor.labels) != 1:
            raise BadFile(
                f"{folder}: config.json has regression, which is one number, and labels.json {len(processor.labels)} labels; restore the one "
                "that was changed"
            )
        return processor

    # -- use -----------------------------------------------------------------------------------------------------------

    def parse(self, text: str) -> Labelled:
        """A tab separates the two texts of a pair."""
        return Labelled(tuple(text.split("\t")), "0" if self.target == "value" else self.processor.labels[0])

    def fields(self, model: Model) -> tuple[InputField, ...]:
        counts = getattr(body_of(model), "texts", (1, 2))
        names = ("First text", "Second text") if min(counts) > 1 else ("Text", "Second text")
        return tuple(InputField(name, n < min(counts)) for n, name in enumerate(names[: max(counts)]))

    def input_text(self, example: Labelled) -> str:
        return "\t".join(example.texts)

    def lines(self, example: Labelled, answer: LabelAnswer) -> list[str]:
        labels, logits_N = self.processor.labels, answer.logits[0]
        if self.target == "value":
            return [f"{logits_N[0]:.6g}"]
        return [",".join(labels[n] for n in np.flatnonzero(logits_N > 0)) if self.target == "labels" else labels[int(logits_N.argmax())]]

    def prediction(self, example: Labelled, answer: LabelAnswer, options: ClassesOptions) -> Prediction:
        labels, logits_N = self.processor.labels, torch.from_numpy(answer.logits[0])
        if self.target == "value":
            return Prediction(f"{float(logits_N[0]):.4f}", {"value": float(logits_N[0])})
        p_N = logits_N.softmax(-1) if self.target == "class" else logits_N.sigmoid()
        best = p_N.topk(min(options.nbest, len(labels)) if self.target == "class" or options.nbest > 1 else len(labels))
        found = [{"label": labels[n], "probability": p} for p, n in zip(best.values.tolist(), best.indices.tolist(), strict=True)]
        if self.target == "labels" and options.nbest == 1:
            found = [one for one in found if float(one["probability"]) > 0.5]
            return Prediction(", ".join(f"{one['label']} {one['probability']:.4f}" for one in found), {"labels": found})
        return Prediction("\n".join(f"{one['label']}\t{one['probability']:.4f}" for one in found), {"labels": found})

    def attention_maps(self, run: Run[Classifier], text: str, layers: Layers, heads: Indices, options: NoOptions) -> tuple[str, Maps]:
        """Maps of a text; of a document also what is predicted with and without what has the largest weight."""
        body = run.model.body
        if not isinstance(body, DocumentModel) or self.target != "class":
            return super().attention_maps(run, text, layers, heads, options)
        maps = text_maps(run.model, run.processor, text)
        document = frame(run.processor.tokenizer, [text], body.max_length, body)
        return erasure_text(run.model, run.processor.labels, run.processor.tokenizer, document, maps), maps.choose(layers)
