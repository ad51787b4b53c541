"""Configs of models: frozen dataclasses of plain values, whose types say which values are allowed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, get_type_hints

import msgspec

from ..errors import BadConfig, UnknownName

Size = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Probability = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Sizes = Mapping[str, "ModelConfig"]  # published sizes of a model by name


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Plain numbers and names, so that a config can be written to JSON and read back.

    Every value is checked against the type of its field when a config is made; JSON's lists become tuples.
    """

    attention_overrides: tuple[tuple[str, str], ...] = ()  # (path, mechanism) of replaced attentions: see `Model.with_attention`

    def __post_init__(self) -> None:
        wrong = []
        for name, kind in get_type_hints(type(self), include_extras=True).items():
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, msgspec.convert(value, kind))
            except msgspec.ValidationError as error:
                wrong.append(f"{type(self).__name__}: {name}={value!r}; expected {str(error).removeprefix('Expected ')}")
        if wrong:
            raise BadConfig("\n".join(wrong))

    def _one_of(self, name: str, known: Iterable[str]) -> None:
        if getattr(self, name) not in (known := list(known)):
            raise UnknownName(f"{name} of {type(self).__name__}", str(getattr(self, name)), known)
