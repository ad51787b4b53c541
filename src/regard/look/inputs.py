"""Inputs of a call, from which it computed its weights, kept so that any rows can be computed later: how the explorer opens long texts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..attention import Observation
from ..layers.reversible import RngSnapshot

DEFER = 2**22  # weights of a map, 16 MiB as float32

defer_above: ContextVar[int | None] = ContextVar("defer_above", default=None)


@contextmanager
def keep_inputs(above: int = DEFER) -> Iterator[None]:
    """Let every capture inside the `with` keep the q and k of each call (`Map.inputs`), too, for the explorer.

    Of maps with more than `above` weights it keeps only these: `Map.read` computes rows when they are needed, so that a long text
    opens at once and memory stays bounded by the limit of the capture.

    Args:
        above: number of weights above which a map keeps its inputs only.
    """
    token = defer_above.set(above)
    try:
        yield
    finally:
        defer_above.reset(token)


@dataclass(frozen=True, eq=False)
class Inputs:
    """Inputs from which a call computed its weights, kept inside `keep_inputs`: any rows can be computed later."""

    observed: Observation = field(repr=False)
    rng: RngSnapshot = field(repr=False)
    rows: tuple[int, ...]  # queries of the call that the map has
    value_norms_BHM: Tensor | None = field(default=None, repr=False)  # ‖W_o v_j‖ per head

    @property
    def nbytes(self) -> int:
        """Bytes that q and k take."""
        return self.observed.q_BLHK.nbytes + self.observed.k_BMHK.nbytes

    @torch.no_grad()
    def weights(self, first: int, last: int, heads: tuple[int, ...]) -> Tensor:
        """weights_BHLM of the map's rows from `first` up to, not including, `last`."""
        with self.rng.replayed(), torch.autocast(self.observed.q_BLHK.device.type, enabled=False):
            rows = torch.tensor(self.rows[first:last], dtype=torch.long, device=self.observed.q_BLHK.device)
            return self.observed.weights(rows)[:, list(heads)].float().cpu()
