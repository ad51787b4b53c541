"""Fine-tuned encoders in the files of transformers: its classes that name a text, or each of its tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..errors import BadFile, NotSupported
from ..models import Labeller
from ..models._encoder import Encoder


@dataclass(frozen=True)
class Head:
    """A class over there: what its output layer is called, and where the pooler goes, if it has one."""

    architecture: str
    output: str = "classifier"
    pooler: str = ""


# our model → the prefix of its tensors over there, and its classes for texts and for words. BigBird and Nyströmformer have a class for
# texts, too; but it reads the first token through gelu where ours has tanh.
HEADS: dict[str, tuple[str, dict[str, Head]]] = {
    "bert": ("bert", {
        "classify": Head("BertForSequenceClassification", pooler="bert.pooler.dense"),
        "label": Head("BertForTokenClassification"),
    }),
    "fnet": ("fnet", {
        "classify": Head("FNetForSequenceClassification", pooler="fnet.pooler.dense"),
        "label": Head("FNetForTokenClassification", pooler="fnet.pooler.dense"),
    }),
    "longformer_encoder": ("longformer", {
        "classify": Head("LongformerForSequenceClassification", "classifier.out_proj", "classifier.dense"),
        "label": Head("LongformerForTokenClassification"),
    }),
    "big_bird": ("bert", {"label": Head("BigBirdForTokenClassification", pooler="bert.pooler")}),
    "nystromformer": ("nystromformer", {"label": Head("NystromformerForTokenClassification")}),
}  # fmt: skip


@dataclass(frozen=True)
class Told:
    """What a config.json says of a fine-tuned model."""

    task: str  # classify or label
    head: Head
    pooler: str  # what the pooler is called where nothing was fine-tuned
    labels: tuple[str, ...]

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Told | None:
        """None if it is not fine-tuned to label anything."""
        kinds, named = config.get("architectures") or [], config.get("id2label")
        kind = next((str(name) for name in kinds if str(name).endswith("Classification")), None) if isinstance(kinds, list) else None
        if kind is None:
            return None
        known = {head.architecture: (task, head, prefix) for prefix, heads in HEADS.values() for task, head in heads.items()}
        if kind not in known:
            raise NotSupported(f"{kind} is not read; of models that classify these are: {', '.join(known)}")
        task, head, prefix = known[kind]
        named = {"0": "LABEL_0", "1": "LABEL_1"} if named is None else named  # transformers does not write these two down
        if not isinstance(named, dict) or sorted(named) != sorted(str(n) for n in range(len(named))):
            raise BadFile(f"config.json: id2label is {str(named)[:100]}; expected names by number, from 0 on")
        labels = tuple(str(named[str(n)]) for n in range(len(named)))
        if len(labels) < 2 or config.get("problem_type") not in (None, "single_label_classification"):
            raise NotSupported(
                f"{kind} with {len(labels)} labels, problem_type {config.get('problem_type')!r}: only one of several labels is told here"
            )
        return cls(task, head, f"{prefix}.pooler.dense" if head.pooler.endswith("dense") else head.pooler, labels)


def labelled(
    model: Labeller, labels: Sequence[str], config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json and tensors of a fine-tuned model, from those of its body. Heads that fine-tuning does not use are left out."""
    prefix, head = _head(model)
    plain = {name.removeprefix(f"{prefix}."): x for name, x in tensors.items() if not name.startswith(("cls.", "lm_head."))}
    found = {f"{prefix}.{name}": x for name, x in plain.items() if not name.startswith("pooler.")}
    if head.pooler:
        found |= {f"{head.pooler}.{name.rpartition('.')[2]}": x for name, x in plain.items() if name.startswith("pooler.")}
    found |= {f"{head.output}.weight": model.output.weight, f"{head.output}.bias": model.output.bias}
    names = list(labels) or [f"LABEL_{n}" for n in range(model.output.out_features)]
    said = {
        "architectures": [head.architecture],
        "id2label": {str(n): name for n, name in enumerate(names)},
        "label2id": {name: n for n, name in enumerate(names)},
        "classifier_dropout": model.dropout.p,
    }
    return {**config, **said}, found


def _head(model: Labeller) -> tuple[str, Head]:
    body, task = model.body, "label" if model.each else "classify"
    prefix, heads = HEADS.get(body.facts.name, ("", {}))
    if task not in heads:
        known = ", ".join(name for name, (_, has) in HEADS.items() if task in has)
        raise NotSupported(
            f"transformers has no class that {'labels words' if model.each else 'classifies texts'} as this {body.facts.name} does; "
            f"those that can be written: {known}. `regard predict` uses the run as it is"
        )
    assert isinstance(body, Encoder)
    if not model.each and body.pooler is None:
        raise NotSupported(
            f"transformers' {heads[task].architecture} reads a text through a pooler, and this encoder has none; fine-tune one that was "
            "trained with it: regard train masked --following yes, or --set pooler=true"
        )
    return prefix, heads[task]
