"""What layers remember between two steps, beside what their mechanisms do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from torch import Tensor

from ..attention import State


class Memory(State):
    """Keys and values of another sequence, projected once and looked at in every step: k_BMHK, v_BMHV, and extra_BMHE if wanted.

    It follows beams like any state. `reset` leaves it: rows that begin anew still look at the same memory.
    """

    def __init__(self, k_BMHK: Tensor, v_BMHV: Tensor, extra_BMHE: Tensor | None = None):
        super().__init__(len(k_BMHK))
        self.k_BMHK, self.v_BMHV, self.extra_BMHE = k_BMHK, v_BMHV, extra_BMHE

    def reorder(self, rows: Tensor) -> Self:
        self.k_BMHK, self.v_BMHV, self.batch = self.k_BMHK.index_select(0, rows), self.v_BMHV.index_select(0, rows), len(rows)
        self.extra_BMHE = None if self.extra_BMHE is None else self.extra_BMHE.index_select(0, rows)
        return self

    def reset(self, rows: Tensor) -> Self:
        return self

    def detach(self) -> Self:
        self.k_BMHK, self.v_BMHV = self.k_BMHK.detach(), self.v_BMHV.detach()
        self.extra_BMHE = None if self.extra_BMHE is None else self.extra_BMHE.detach()
        return self


class States(State):
    """The states of several parts under their names, moved together. Whoever steps the parts adds to `length`."""

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
        self.batch = len(rows)
        return self

    def reset(self, rows: Tensor) -> Self:
        for part in self.parts.values():
            part.reset(rows)
        return self

    def detach(self) -> Self:
        for part in self.parts.values():
            part.detach()
        return self
