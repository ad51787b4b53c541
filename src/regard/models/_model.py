"""What every model has, whatever it reads and says: facts, a config of plain values, and a name to be built by."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from ..attention import MECHANISMS, Attention
from ..errors import BadConfig, UnknownName
from ..layers import MultiHead
from ..patterns import Full, Pattern, full, parse


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


class Spec(NamedTuple):
    """Which mechanism, made how, and under which pattern, as one line of a config:

    local                                           as its `sized` makes it for the model
    local(radius=64)                                made with these settings
    softmax(dropout=0.1) under window(64) | tokens(0)   and looking only where the pattern allows, too
    """

    kind: type[Attention]
    settings: dict[str, Any] | None = None  # None: as `sized` makes it
    pattern: Pattern = full

    @classmethod
    def read(cls, text: str) -> Spec:
        """What the line says; never run as code."""
        made, _, under = text.partition(" under ")
        pattern = parse(under) if under else full
        if made.isidentifier():
            return cls(mechanism(made), None, pattern)
        try:
            match ast.parse(made.strip(), mode="eval").body:
                case ast.Call(func=ast.Name(id=name), args=[], keywords=given) if all(option.arg for option in given):
                    return cls(mechanism(name), {str(option.arg): ast.literal_eval(option.value) for option in given}, pattern)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass
        raise BadConfig(
            f"{text!r} names no mechanism; write for example: local, or local(radius=64), or softmax under window(64) | tokens(0)"
        )

    def made(self, *, heads: int, width: int, length: int) -> Attention:
        """The mechanism for `heads` heads of size `width` and up to `length` keys."""
        if self.settings is None:
            return self.kind.sized(heads=heads, width=width, length=length)
        try:
            return self.kind(**self.settings)
        except TypeError as wrong:
            raise BadConfig(f"{self.kind.__name__} is not made with {self.settings}: {wrong}") from wrong

    def __str__(self) -> str:
        given = "" if self.settings is None else f"({', '.join(f'{name}={value!r}' for name, value in self.settings.items())})"
        return self.kind.facts.name + given + ("" if isinstance(self.pattern, Full) else f" under {self.pattern}")


def looking(spec: str, width: int, heads: int, length: int, *, head_width: int | None = None, **options: Any) -> MultiHead:
    """Heads that look as the line of a config says; the options are those of MultiHead."""
    said = Spec.read(spec)
    attention = said.made(heads=heads, width=width // heads if head_width is None else head_width, length=length)
    return MultiHead(width, heads, attention, head_width=head_width, own=said.pattern, **options)
