"""States of fixed size: sums over the past, and counters of steps."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from ..errors import StateNotSupported
from ..kernels import accumulation_dtype
from ..patterns import full
from ._cache import Cache
from ._state import State, zero_rows


class RecurrentState(State):
    """A past of fixed size: named sums over all tokens so far, (B, …), in float32 or wider, initially zero.

    The keys themselves are gone, unless `keep_keys` was called before the first step.

    Args:
        batch: number of rows.
    """

    def __init__(self, batch: int):
        super().__init__(batch)
        self.sums: dict[str, Tensor] = {}
        self.kept: Cache | None = None

    def sum(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """The sum called `name`, of `shape` per batch row; zeros on the device of `like` at first.

        Args:
            name: name of the sum.
            shape: shape per batch row.
            like: tensor that has its device, and a dtype that it is as wide as.
        """
        if name not in self.sums:
            dtype = accumulation_dtype(like)
            self.sums[name] = torch.zeros(self.batch, *shape, dtype=dtype, device=like.device)
        return self.sums[name]

    def move(self, k_BMHK: Tensor, gates_BMHE: Tensor | None = None, **sums: Tensor) -> None:
        """Record that the tokens of `k_BMHK` have been read, and the new sums.

        Args:
            k_BMHK: keys that were read.
            gates_BMHE: their gates; None: the mechanism reads none.
            **sums: sums after the last of them, by name.
        """
        self.sums.update(sums)
        self.length += k_BMHK.shape[1]
        if self.kept is not None:
            self.kept.append(k_BMHK.detach(), (k_BMHK[..., :0] if gates_BMHE is None else gates_BMHE).detach(), full)

    def keep_keys(self) -> None:
        if self.kept is None and self.length:
            raise StateNotSupported(
                f"this {type(self).__name__} has read {self.length} tokens and kept only their sums; create another with "
                "attention.start(batch, pattern), and call keep_keys() before the first step"
            )
        self.kept = self.kept or Cache(self.batch)

    def reorder(self, rows: Tensor) -> Self:
        self.sums = {name: x.index_select(0, rows) for name, x in self.sums.items()}
        if self.kept is not None:
            self.kept.reorder(rows)
        return super().reorder(rows)

    def reset(self, rows: Tensor) -> Self:
        self.sums = {name: zero_rows(x, rows) for name, x in self.sums.items()}
        if self.kept is not None:
            self.kept.reset(rows)
        return super().reset(rows)

    def join(self, other: Self) -> Self:
        self._check_join(other)

        def sum_or_zeros(state: RecurrentState, name: str, like: Tensor) -> Tensor:
            return state.sums[name] if name in state.sums else like.new_zeros(state.batch, *like.shape[1:])  # it has read nothing yet

        known = {**other.sums, **self.sums}
        self.sums = {name: torch.cat([sum_or_zeros(state, name, like) for state in (self, other)]) for name, like in known.items()}
        self.kept = None if self.kept is None or other.kept is None else self.kept.join(other.kept)
        return super().join(other)

    def detach(self) -> Self:
        self.sums = {name: x.detach() for name, x in self.sums.items()}
        return self


class StepState(State):
    """The progress of each row's queries over fixed keys: one tensor `at`, (B, …), initially zero.

    Args:
        batch: number of rows.
    """

    grows = False

    def __init__(self, batch: int):
        super().__init__(batch)
        self.at: Tensor | None = None

    def move(self, at: Tensor, steps: int) -> None:
        """Record that the queries advanced by `steps`, to `at`."""
        self.at = at
        self.length += steps

    def reorder(self, rows: Tensor) -> Self:
        self.at = None if self.at is None else self.at.index_select(0, rows)
        return super().reorder(rows)

    def reset(self, rows: Tensor) -> Self:
        self.at = None if self.at is None else zero_rows(self.at, rows)
        return super().reset(rows)

    def join(self, other: Self) -> Self:
        self._check_join(other)
        known = self.at if self.at is not None else other.at
        if known is not None:
            parts = ((self.at, self.batch), (other.at, other.batch))
            self.at = torch.cat([known.new_zeros(n, *known.shape[1:]) if at is None else at for at, n in parts])
        return super().join(other)

    def detach(self) -> Self:
        self.at = None if self.at is None else self.at.detach()
        return self
