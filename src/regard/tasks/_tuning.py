"""How a pretrained model is fine-tuned: what may change, the loss and the metrics of labels, adapters and frozen layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from ..data.batches import similar_lengths
from ..errors import BadConfig
from ..layers import LoRALinear, merge_lora
from ..layers.lora import Targets
from ..models import Classifier, Model, build, config_of
from ..train import Loss, Metric, depths, layerwise
from ..train.parameters import load_parameters, parameters_of
from ._base import check_range
from ._labelled import (
    METRICS,
    EncodedExamples,
    LabelBatch,
    MetricName,
    Target,
    all_logits,
    by_sentence,
    classification_metrics,
    collate,
    counted,
    labels_and_penalty,
    multi_label_metrics,
    summed_loss,
    value_metrics,
)
from ._options import Files, TokenizerOptions
from ._spans import has_spans, span_metrics


@dataclass(frozen=True, kw_only=True)
class TuningOptions(TokenizerOptions):
    """Data, vocabulary and fine-tuning."""

    data: Files = ""
    """Labelled examples: .tsv, .csv or .jsonl (also .gz, .xz), .parquet; a folder of .txt files per class; hf:FOLDER, a dataset."""
    fields: tuple[str, ...] = ()
    """Names of columns or fields, or numbers of columns from 1: the texts, then the label; common names are recognized."""
    freeze: float = 0.0
    """With --init-from: fraction of the layers to freeze, starting from the embeddings."""
    layer_lr_decay: float = 0.9
    """Learning rate of a layer as a fraction of that of the layer above."""
    lora_rank: int = 0
    """With --init-from: train low-rank adapters of this rank and the classification head, and nothing else; 0: no adapters."""
    lora_targets: Targets = "qv"
    """Adapters on the queries and values of attention, or on all linear layers."""
    max_length: int | None = None
    """Maximum number of tokens per example; longer ones lose their end. If not given, 128, and 2,048 for models of documents."""
    batch_size: int = 32
    """Examples per batch."""
    metric: MetricName | None = None
    """Metric on validation that decides which parameters and which seed are kept; accuracy, pearson or F1 if not given."""

    def __post_init__(self) -> None:
        check_range(
            self,
            freeze=(0 <= self.freeze < 1, "0 or more, below 1"),
            layer_lr_decay=(0 < self.layer_lr_decay <= 1, "above 0, at most 1"),
            batch_size=(self.batch_size >= 1, "1 or more"),
            max_length=(self.max_length is None or self.max_length >= 8, "8 or more"),
            metric=(self.metric in (None, *METRICS), f"one of {', '.join(METRICS)}"),
            lora_rank=(self.lora_rank >= 0, "0 or more"),
        )


class ClassificationObjective:
    """What the training loop asks."""

    def __init__(
        self,
        train: EncodedExamples,
        valid: EncodedExamples,
        labels: Sequence[str],
        options: TuningOptions,
        seed: int = 0,
        target: Target = "class",
        per_token: bool = False,
    ):
        self.train, self.valid, self.labels, self.options, self.seed = train, valid, labels, options, seed
        self.target, self.per_token, self.unit = target, per_token, "words" if per_token else "examples"
        by_words = "f1_spans" if has_spans(labels) else "f1_tokens"
        name = options.metric or (by_words if per_token else {"class": "accuracy", "labels": "f1_micro", "value": "pearson"}[target])
        self.metric = Metric(name, higher=name != "mse")

    def batches(self, epoch: int) -> Sequence[Any]:
        """Examples of similar length together, the batches shuffled."""
        generator = np.random.default_rng([self.seed, epoch])
        batches = similar_lengths(self.train.ids.lengths, self.options.batch_size, generator)
        return [batches[n] for n in generator.permutation(len(batches))]

    def batch(self, item: Any) -> LabelBatch:
        return collate(self.train, item)

    def loss(self, model: nn.Module, batch: LabelBatch) -> Loss:
        assert isinstance(model, Classifier)
        logits_TN, penalty_B = labels_and_penalty(model, batch)
        extra = {"accuracy": float((logits_TN.argmax(1) == batch.label_T).sum())} if self.target == "class" else {}
        total = summed_loss(logits_TN, batch, self.target)
        return Loss(total if penalty_B is None else total + penalty_B.sum(), len(batch.at_T), extra)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        assert isinstance(model, Classifier)
        logits_TN, loss = all_logits(model, self.valid, self.options.batch_size, self.target)
        return {"loss": loss, **metrics_of(logits_TN, self.valid, self.labels, self.target, self.per_token)}

    def rates(self, model: nn.Module) -> Mapping[str, float]:
        return layerwise(model, self.options.layer_lr_decay)

    def merged(self, model: nn.Module, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return merge_lora(model, parameters)


def metrics_of(
    logits_TN: npt.NDArray[np.float32], some: EncodedExamples, labels: Sequence[str], target: Target, per_token: bool
) -> dict[str, float]:
    """The metrics that fit what is predicted."""
    if target != "class":
        assert some.target_EN is not None
        if target == "value":
            return value_metrics(some.target_EN[:, 0], logits_TN[:, 0])
        return multi_label_metrics(some.target_EN, (logits_TN > 0).astype(np.float32))
    predicted_T, true_T = logits_TN.argmax(1), some.labels.values
    found = classification_metrics(counted(true_T, predicted_T, len(labels)), labels)
    if not per_token:
        return {name: value for name, value in found.items() if name != "f1_tokens"}
    spans = span_metrics(by_sentence(true_T, some, labels), by_sentence(predicted_T, some, labels)) if has_spans(labels) else {}
    return {**found, **spans}


def with_pooler(body: Model) -> Model:
    """The same encoder with a new pooler, if its kind may have one and it has none."""
    name, settings = config_of(body)
    if settings.get("pooler", True):
        return body
    richer = build(name, {**settings, "pooler": True})
    own = parameters_of(richer)
    load_parameters(richer, {**own, **parameters_of(body)})
    return richer


def with_texts(body: Model, texts: int) -> Model:
    """The same encoder for as many texts per example as the data has; layers over the features of a pair are new then."""
    name, settings = config_of(body)
    if settings.get("texts", texts) == texts:
        return body
    other = build(name, {**settings, "texts": texts})
    own, learned = parameters_of(other), parameters_of(body)
    load_parameters(other, {name: learned[name] if learned[name].shape == x.shape else x for name, x in own.items()})
    return other


def require_lora(model: nn.Module, rank: int) -> None:
    """Refuse adapters where there is no pretrained model."""
    if rank and not any(isinstance(part, LoRALinear) for part in model.modules()):
        raise BadConfig(f"--lora-rank {rank} adapts a pretrained model; name it with --init-from, and omit --from-scratch")


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
