"""What every encoder–decoder offers: features of a whole target for training, and one token a step for decoding.

    model.features(source, n, target)     teacher forcing: row t has read target 0 … t and speaks about target t + 1
    state = model.begin(source, n)        encode once;  state.reorder(rows) follows beams
    model.step(token, state)              logits of the next token, and where this step looked

Both ways must agree: `forward` gives at row t what the t-th `step` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from ..attention import MECHANISMS, Attention, State
from ..errors import BadConfig, DtypeError, ShapeError, UnknownName
from ..kernels import linear
from ..layers import Packing


class Step(NamedTuple):
    """What one step says."""

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
class TranslatorConfig:
    """Plain numbers and names, so that they go to a file and come back."""

    source_vocab: int
    target_vocab: int

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


class Translator(nn.Module):
    """Reads a source, writes a target. A model gives `features`, `head`, `begin` and `step`; the rest is here."""

    facts: ClassVar[ModelFacts]
    Config: ClassVar[type[TranslatorConfig]]
    config: TranslatorConfig

    def features(self, source_BM: Tensor, source_n_B: Tensor, target_BL: Tensor) -> Tensor:
        """x_BLD under teacher forcing. `target_BL` begins with BOS; row t is about target t + 1."""
        raise NotImplementedError

    def real_features(self, source_BM: Tensor, source_n_B: Tensor, target_BL: Tensor, target_n_B: Tensor) -> Tensor:
        """The features of the first `target_n_B` tokens of each row only, one behind the other, x_TD: what a loss needs."""
        x_BLD = self.features(source_BM, source_n_B, target_BL)
        return Packing.of(target_n_B, x_BLD.shape[1]).pack(x_BLD)[0]

    def head(self) -> tuple[Tensor, Tensor | None]:
        """weight_ND and bias_N of the output projection, so that a loss may be computed without ever holding all logits."""
        raise NotImplementedError

    def begin(self, source_BM: Tensor, source_n_B: Tensor) -> State:
        """The source, encoded once, and a decoder that has read nothing yet."""
        raise NotImplementedError

    def step(self, token_B: Tensor, state: State, want_weights: bool = False) -> Step:
        """One token a row; the state goes on."""
        raise NotImplementedError

    def forward(self, source_BM: Tensor, source_n_B: Tensor, target_BL: Tensor) -> Tensor:
        """logits_BLN under teacher forcing."""
        return self.logits(self.features(source_BM, source_n_B, target_BL))

    def logits(self, x: Tensor) -> Tensor:
        return linear(x, *self.head())

    def check(self, source_BM: Tensor, source_n_B: Tensor, target_BL: Tensor | None = None) -> None:
        """Refuse by name what does not fit together."""
        me, given = type(self).__name__, f"source {tuple(source_BM.shape)}, lengths {tuple(source_n_B.shape)}"
        if source_BM.dim() != 2 or source_n_B.shape != source_BM.shape[:1]:
            raise ShapeError(f"{me} takes a source (batch, length) and one length a row, got {given}")
        if target_BL is not None and (target_BL.dim() != 2 or len(target_BL) != len(source_BM)):
            raise ShapeError(f"{me} takes a target (batch, length) of as many rows as the source, got {tuple(target_BL.shape)}, {given}")
        if any(x.dtype.is_floating_point or x.dtype == torch.bool for x in (source_BM, source_n_B)):
            raise DtypeError(f"{me} takes whole numbers, not {source_BM.dtype} and {source_n_B.dtype}; convert with .long()")
        # looking at the numbers makes a GPU wait
        if (
            source_n_B.device.type == "cpu"
            and len(source_n_B)
            and not 1 <= int(source_n_B.min()) <= int(source_n_B.max()) <= source_BM.shape[1]
        ):
            raise ShapeError(
                f"{me}: lengths must be 1 to {source_BM.shape[1]}, got {int(source_n_B.min())} to {int(source_n_B.max())}; "
                "an empty source still has an end-of-sentence token"
            )


class Decoding(State):
    """Where a decoder stands. `now` changes with every step, `fixed` is what the encoder made; all tensors are batch first.

    `looking` is the state of an attention that counts its steps. `reset` lets rows begin the same source anew.
    """

    def __init__(self, now: Mapping[str, Tensor], fixed: Mapping[str, Tensor], looking: State | None = None):
        super().__init__(len(next(iter(now.values()))))
        self.now, self.fixed, self.looking = dict(now), dict(fixed), looking
        self.first = dict(now)

    def move(self, **now: Tensor) -> None:
        """A step was made, to `now`."""
        self.now.update(now)
        self.length += 1

    def reorder(self, rows: Tensor) -> Self:
        for tensors in (self.now, self.fixed, self.first):
            tensors.update({name: x.index_select(0, rows) for name, x in tensors.items()})
        if self.looking is not None:
            self.looking.reorder(rows)
        self.batch = len(rows)
        return self

    def reset(self, rows: Tensor) -> Self:
        for name, x in self.now.items():
            begun = torch.zeros(self.batch, dtype=torch.bool, device=x.device)
            begun[rows] = True
            self.now[name] = torch.where(begun.view(-1, *[1] * (x.dim() - 1)), self.first[name], x)
        if self.looking is not None:
            self.looking.reset(rows)
        return self

    def detach(self) -> Self:
        for tensors in (self.now, self.fixed, self.first):
            tensors.update({name: x.detach() for name, x in tensors.items()})
        if self.looking is not None:
            self.looking.detach()
        return self


def mechanism(name: str) -> type[Attention]:
    """The mechanism a config names."""
    known = {part.facts.name: part for part in MECHANISMS}
    if name not in known:
        raise UnknownName("mechanism", name, known)
    return known[name]
