"""What every model has, whatever it reads and says: facts, a config of plain values, and a name to be built by."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from ..attention import MECHANISMS, Attention
from ..errors import BadConfig, UnknownName


class Step(NamedTuple):
    """What one step of decoding says."""

    logits_BN: Tensor
    weights_BM: Tensor | None  # where it looked in the source: mean of the heads of the last cross-attention; None if there is none


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What is true of a published system."""

    name: str
    year: int
    title: str  # of the paper
    paper: str  # arXiv number or venue


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Plain numbers and names, so that they go to a file and come back."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, list):  # as JSON gives tuples back
                object.__setattr__(self, field.name, tuple(value))
            fits, expected = _FITS.get(str(field.type), (lambda value: True, ""))
            if not fits(value):
                raise BadConfig(f"{type(self).__name__}: {field.name}={value!r}; expected {expected}")

    def _one_of(self, name: str, known: Iterable[str]) -> None:
        if getattr(self, name) not in (known := list(known)):
            raise UnknownName(f"{name} of {type(self).__name__}", str(getattr(self, name)), known)


_FITS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "int": (lambda value: type(value) is int and value >= 1, "a whole number of at least 1"),
    "float": (lambda value: type(value) in (int, float) and 0 <= value < 1, "a number from 0 to below 1"),
    "bool": (lambda value: type(value) is bool, "true or false"),
    "str": (lambda value: type(value) is str, "a name"),
}


class Model(nn.Module):
    """A published system. `Config(**settings)` checks its settings, `Model(config)` builds it; see `models.build`."""

    facts: ClassVar[ModelFacts]
    Config: ClassVar[type[ModelConfig]]
    config: ModelConfig


def mechanism(name: str) -> type[Attention]:
    """The mechanism a config names."""
    known = {part.facts.name: part for part in MECHANISMS}
    if name not in known:
        raise UnknownName("mechanism", name, known)
    return known[name]
