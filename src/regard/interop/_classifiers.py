"""Fine-tuned encoders in transformers' files: its classes that classify a text, or each of its tokens, or find the span of an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..errors import NotSupported
from ..models import Classifier, Headed, Model, SpanReader
from ..models.encoder import Encoder
from .families import families
from .family import ClassifierHead, Family
from .hf_config import label_config, labels_of

START, END = "start", "end"  # the outputs of a span head


@dataclass(frozen=True)
class LabelHead:
    """The head that a config.json describes."""

    unit: str  # "text", "token" or "span"
    head: ClassifierHead
    base_pooler: str  # the pooler's name in a model that is not fine-tuned
    labels: tuple[str, ...]

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> LabelHead | None:
        """Read the head from a config; None for a model without such a head."""
        architectures = config.get("architectures") or []
        names = map(str, architectures) if isinstance(architectures, list) else ()
        name = next((name for name in names if name.endswith(("Classification", "QuestionAnswering"))), None)
        if name is None or any(name in family.own_heads for family in families().values()):
            return None
        known = {head.architecture: (unit, head, family) for family in families().values() for unit, head in family.classifiers.items()}
        if name not in known:
            raise NotSupported(f"{name} is not supported; supported are {', '.join(known)}")
        unit, head, family = known[name]
        labels = (START, END) if unit == "span" else labels_of(config)
        if len(labels) < 2 or config.get("problem_type") not in (None, "single_label_classification"):
            raise NotSupported(
                f"{name} with {len(labels)} labels and problem_type={config.get('problem_type')!r}; only single-label classification "
                "with at least two labels is supported"
            )
        return cls(unit, head, f"{family.prefix}.{family.pooler}", labels)

    def add_to(self, body: Model) -> Classifier | SpanReader:
        """The model with a head of this kind, whose parameters are new."""
        return SpanReader(body) if self.unit == "span" else Classifier(body, len(self.labels), each=self.unit == "token")


def export_head(
    model: Headed, labels: Sequence[str], config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json and tensors of a fine-tuned model, from those of its body. Pretraining heads are left out."""
    family, head = _head(model)
    body = {name.removeprefix(f"{family.prefix}."): x for name, x in tensors.items() if not name.startswith(family.heads)}
    exported = {f"{family.prefix}.{name}": x for name, x in body.items() if not name.startswith("pooler.")}
    for part, output in (("weight", model.output.weight), ("bias", model.output.bias)):
        if head.pooler and f"{family.pooler}.{part}" in body:
            exported[f"{head.pooler}.{part}"] = body[f"{family.pooler}.{part}"]
        exported[f"{head.output}.{part}"] = output
    more: dict[str, Any] = {"architectures": [head.architecture]}
    if isinstance(model, Classifier):
        names = list(labels) or [f"LABEL_{n}" for n in range(model.output.out_features)]
        more |= {**label_config(names), "classifier_dropout": model.dropout.p}
    return {**config, **more}, exported


def _head(model: Headed) -> tuple[Family, ClassifierHead]:
    if isinstance(model, Classifier) and model.ngrams is not None:
        raise NotSupported("transformers has no linear classifier over n-grams beside a model; train with --ngram-buckets 0 to export it")
    body, unit = model.body, "span" if not isinstance(model, Classifier) else "token" if model.each else "text"
    fitting = {
        family.model: family
        for family in reversed(families().values())
        if unit in family.classifiers and (family.model != body.facts.name or family.fits(body))
    }
    if body.facts.name not in fitting:
        raise NotSupported(
            f"transformers has no {'reader of spans' if unit == 'span' else f'{unit} classifier'} that computes what this {body.facts.name} does; "
            f"supported are {', '.join(sorted(fitting))}. `regard predict` takes the run as it is"
        )
    family = fitting[body.facts.name]
    head = family.classifiers[unit]
    assert isinstance(body, Encoder)
    if unit == "text" and body.pooler is None:
        raise NotSupported(
            f"transformers' {head.architecture} needs a pooler, and this encoder has none; fine-tune one that was "
            "trained with it: regard train masked --next-sentence yes, or --set pooler=true"
        )
    return family, head
