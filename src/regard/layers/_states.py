"""Decoding states of layers, in addition to those of their mechanisms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from ..attention import State
from ..errors import StateNotSupported
from ..patterns import Pattern, full, lengths


def below(one_BMD: Tensor, two_BMD: Tensor) -> Tensor:
    """Concatenate two batches; the shorter sequences are padded with zeros."""
    length = max(one_BMD.shape[1], two_BMD.shape[1])
    return torch.cat([F.pad(x, (0, 0) * (x.dim() - 2) + (0, length - x.shape[1])) for x in (one_BMD, two_BMD)])


class CrossCache(State):
    """Keys and values of another sequence, projected once and attended to in every step: k_BMHK, v_BMHV, and gates_BMHE if needed.

    The first n_B tokens of each row are real. It is reordered with the beams like any state, but beams of one sentence share their
    memory: it is stored once per run of `share` rows, and nothing is copied while beams change order within a run. `reset` leaves it
    as it is: rows that start again attend to the same memory.
    """

    def __init__(self, k_BMHK: Tensor, v_BMHV: Tensor, gates_BMHE: Tensor | None = None, n_B: Tensor | None = None, share: int = 1):
        super().__init__(len(k_BMHK) * share)
        self.k_BMHK, self.v_BMHV, self.gates_BMHE, self.share = k_BMHK, v_BMHV, gates_BMHE, share
        self.n_B = None if n_B is None or bool((n_B == k_BMHK.shape[1]).all()) else n_B

    @property
    def pattern(self) -> Pattern:
        """The keys that are not padding."""
        return full if self.n_B is None else lengths(self.n_B)

    def reorder(self, rows: Tensor) -> Self:
        whose = rows // self.share
        if len(rows) == self.batch and whose.equal(torch.arange(len(rows), device=rows.device) // self.share):
            return self
        kept, runs = torch.unique_consecutive(whose, return_counts=True)
        even = len(runs) > 0 and bool((runs == runs[0]).all())
        kept, self.share = (kept, int(runs[0])) if even else (whose, 1)
        if not kept.equal(torch.arange(len(self.k_BMHK), device=kept.device)):
            self._each(lambda x: x.index_select(0, kept))
        return super().reorder(rows)

    def join(self, other: Self) -> Self:
        self._check_join(other)
        one, two = (self, other) if self.share == other.share else (self.apart(), other.apart())
        sizes = [len(x) for x in (one.k_BMHK, two.k_BMHK)]
        shortest, longest = sorted(x.k_BMHK.shape[1] for x in (one, two))
        if shortest < longest or one.n_B is not None or two.n_B is not None:
            real = [
                torch.full((n,), x.k_BMHK.shape[1], device=x.k_BMHK.device) if x.n_B is None else x.n_B
                for x, n in zip((one, two), sizes, strict=True)
            ]
            self.n_B = torch.cat(real)
        self.k_BMHK, self.v_BMHV = below(one.k_BMHK, two.k_BMHK), below(one.v_BMHV, two.v_BMHV)
        if one.gates_BMHE is not None and two.gates_BMHE is not None:
            self.gates_BMHE = below(one.gates_BMHE, two.gates_BMHE)
        self.share = one.share
        return super().join(other)

    def apart(self) -> CrossCache:
        """The same with one row per query row: nothing is shared."""
        if self.share == 1:
            return self
        one = copy(self)
        one._each(lambda x: x.repeat_interleave(self.share, 0))
        one.share = 1
        return one

    def reset(self, rows: Tensor) -> Self:
        return self

    def detach(self) -> Self:
        self._each(lambda x: x.detach())
        return self

    def _each(self, change: Callable[[Tensor], Tensor]) -> None:
        self.k_BMHK, self.v_BMHV = change(self.k_BMHK), change(self.v_BMHV)
        self.gates_BMHE = None if self.gates_BMHE is None else change(self.gates_BMHE)
        self.n_B = None if self.n_B is None else change(self.n_B)


CrossInput = Tensor | CrossCache | None  # what cross-attention takes: another sequence, or its keys and values; None: self-attention


class States(State):
    """The states of several parts by name, changed together. The caller that steps the parts increases `length`."""

    def __init__(self, batch: int, parts: Mapping[str, State]):
        super().__init__(batch)
        self.parts = dict(parts)

    def __getitem__(self, name: str) -> State:
        return self.parts[name]

    def get(self, name: str) -> State | None:
        return self.parts.get(name)

    def reorder(self, rows: Tensor) -> Self:
        for part in self.parts.values():
            part.reorder(rows)
        return super().reorder(rows)

    def reset(self, rows: Tensor) -> Self:
        for part in self.parts.values():
            part.reset(rows)
        return super().reset(rows)

    def join(self, other: Self) -> Self:
        self._check_join(other)
        for name, part in self.parts.items():
            part.join(other.parts[name])
        return super().join(other)

    def _check_join(self, other: State) -> None:
        super()._check_join(other)
        assert isinstance(other, States)
        if self.parts.keys() != other.parts.keys():
            raise StateNotSupported(
                f"states of {', '.join(self.parts)} and of {', '.join(other.parts)} cannot be joined: they were started by different modules"
            )
        for name, part in self.parts.items():
            part._check_join(other.parts[name])

    def back(self, count: int) -> Self:
        for part in self.parts.values():
            part.back(count)
        self.length -= count
        return self

    def detach(self) -> Self:
        for part in self.parts.values():
            part.detach()
        return self
