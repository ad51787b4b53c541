"""Names of tensors here and in published files, both ways, from one table.

A line of the table says which of our tensors is made of which of theirs: one, or several stacked (q, k and v in one matrix).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import BadConfig, Misfit, UnknownName


@dataclass(frozen=True)
class Line:
    """`ours` is `theirs`, stacked along the first axis if there are several; `turned`: stored as (in, out) over there."""

    ours: str
    theirs: tuple[str, ...]
    turned: bool = False


def line(ours: str, *theirs: str, turned: bool = False) -> Line:
    return Line(ours, theirs, turned)


def both(ours: str, *theirs: str, turned: bool = False) -> list[Line]:
    """The weight and the bias of a layer."""
    return [
        line(f"{ours}.{part}", *(f"{name}.{part}" for name in theirs), turned=turned and part == "weight") for part in ("weight", "bias")
    ]


def ours(hf: Mapping[str, Tensor], table: Iterable[Line]) -> dict[str, Tensor]:
    """Their tensors under our names; those that are missing are named all at once."""
    table = list(table)
    wanted = [name for each in table for name in each.theirs]
    missing = [name for name in wanted if name not in hf]
    if missing:
        raise Misfit("the checkpoint", missing)
    found = {}
    for each in table:
        parts = [hf[name].t() if each.turned else hf[name] for name in each.theirs]
        found[each.ours] = parts[0] if len(parts) == 1 else torch.cat(parts)
    return found


def theirs(weights: Mapping[str, Tensor], table: Iterable[Line]) -> dict[str, Tensor]:
    """Our tensors under their names; stacked ones are cut into equal parts."""
    found = {}
    for each in table:
        parts = weights[each.ours].chunk(len(each.theirs))
        for name, part in zip(each.theirs, parts, strict=True):
            found[name] = (part.t() if each.turned else part).contiguous()
    return found


ACTIVATIONS = {  # as they are called over there → ours
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "gelu_quick",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


def activation(hf: Mapping[str, Any], key: str = "hidden_act", default: str = "gelu") -> str:
    """Our name of an activation."""
    name = hf.get(key, default)
    if name not in ACTIVATIONS:
        raise UnknownName(f"activation ({key} of config.json)", str(name), ACTIVATIONS)
    return ACTIVATIONS[name]


def their_activation(name: str) -> str:
    """The first name an activation has over there; `gelu_tanh` is gelu_new."""
    return next(there for there, here in ACTIVATIONS.items() if here == name)


def need(hf: Mapping[str, Any], key: str) -> Any:
    """A setting without which nothing can be built."""
    if key not in hf:
        raise BadConfig(f"config.json lacks {key!r}; it is written by save_pretrained")
    return hf[key]


def expect(hf: Mapping[str, Any], **wanted: Any) -> None:
    """Settings of config.json that a model of ours has in one way only; where they are left out they are as wanted."""
    for key, value in wanted.items():
        if hf.get(key, value) != value:
            raise BadConfig(f"config.json says {key}={hf[key]!r}; models here are built with {value!r} only, so the result would differ")
