"""One call of a mechanism: `Call` is what its hooks receive besides q, k and v, `Observation` what observers of its weights receive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..kernels import Bias
from ..patterns import Both, Causal, Full, Pattern, at_positions, from_row_start
from ._cache import Cache
from ._recurrent_state import StepState
from ._state import State, positions
from .helpers import pattern_rows

if TYPE_CHECKING:
    from ._base import Attention


@dataclass(slots=True, eq=False)  # not frozen: that costs a microsecond per call
class Call:
    """Arguments of a hook besides q, k and v; everything covers the given keys, a cache's past included."""

    pattern: Pattern  # over the given keys
    bias: Tensor | Bias | None  # added to the scores
    gates_BMHE: Tensor | None  # `attention.gates` numbers per key token and head
    queries: int  # in q
    keys: int  # in k
    device: torch.device  # where q and k are
    state: State | None = None  # a RecurrentState or StepState; a Cache is merged into k and v already
    cache: Cache | None = None  # the one that was merged
    rows_L: Tensor | None = None  # queries of the whole call that are in q; None: all of them
    first: int | None = None  # where the first of all queries is on the key axis; None: aligned at the end
    query_gates_BLHE: Tensor | None = None  # `attention.query_gates` numbers per query token and head

    def mask(self) -> Tensor:
        """The pattern as booleans, mask_BHLM; B and H are 1 where it is the same for all."""
        return self.pattern.mask(self.queries, self.keys, self.device)

    def scores_bias(self) -> Tensor | float:
        """The caller's bias as something to add to scores_BHLM."""
        return 0.0 if self.bias is None else self.evaluate(self.bias)

    def evaluate(self, bias: Tensor | Bias) -> Tensor:
        """A bias for these queries and keys, broadcasting to BHLM."""
        if isinstance(bias, Tensor):
            return bias
        return bias.tile(self.query_index(), torch.arange(self.keys, device=self.device), *bias.tensors)

    def row_index(self) -> Tensor:
        """Numbers of these queries in the whole call, (L,)."""
        return torch.arange(self.queries, device=self.device) if self.rows_L is None else self.rows_L

    def query_index(self) -> Tensor:
        """Where the queries are on the key axis, (L,): the last query at the last key. Negative before the first key."""
        return self.row_index() + (self.keys - self.queries if self.first is None else self.first)

    def key_positions(self) -> Tensor:
        """Positions of the keys, (1 or B, M), counted from the beginning of each row."""
        if self.cache is not None:
            return self.cache.key_positions()
        first = self.state.position() if self.state is not None and self.state.grows else 0
        at = positions(first, self.keys, self.device)
        return at if at.dim() == 2 else at[None]

    def query_positions(self) -> Tensor:
        """Positions of the queries, (1 or B, L)."""
        if not self.keys:
            return self.query_index()[None]
        return self.key_positions()[:, -1:] + 1 - self.keys + self.query_index()

    def keys_allowed(self) -> Tensor | None:
        """Keys that every query may attend to, (1 or B, M), apart from `causal`; None: all of them."""
        streams = self.state is not None and self.state.grows  # its pattern is over positions; any other is over the given keys
        index = self.key_positions() if streams else torch.arange(self.keys, device=self.device)[None]
        return _allowed_keys(self.pattern, index)

    def place(self, pattern: Pattern) -> Pattern:
        """A pattern on positions as one over the given keys: a rolling cache has dropped some, rows may start late."""
        return pattern if self.cache is None else self.cache.over(pattern, self.queries)

    def place_bias(self, bias: Bias) -> Bias:
        """A bias on positions as one over the given keys."""
        return bias if self.cache is None else self.cache.bias_over(bias, self.queries)

    def of_rows(self, rows: Tensor) -> Call:
        """The call for some of the queries only."""
        pattern, bias, gates = pattern_rows(self.pattern, rows, self.queries, self.keys), self.bias, self.query_gates_BLHE
        if isinstance(bias, Tensor) and bias.shape[-2] > 1:
            bias = bias[..., rows, :]
        gates = None if gates is None else gates[:, rows]
        return replace(
            self, pattern=pattern, bias=bias, queries=len(rows), rows_L=rows, first=self.keys - self.queries, query_gates_BLHE=gates
        )


class Observation(NamedTuple):
    """A call that has just run, for observers of its attention weights."""

    attention: Attention  # the mechanism
    q_BLHK: Tensor  # its queries
    k_BMHK: Tensor  # its keys, the past included
    call: Call  # its other arguments
    pattern: Pattern  # over positions, before a cache dropped or aligned anything
    change: Callable[[Tensor, Call], Tensor] | None = None  # intervention on weights_BHLM of some queries

    @property
    def rows_cheap(self) -> bool:
        """True if the weights of one query cost less than those of all."""
        return self.attention._rows_cheap()

    def weights(self, rows: Tensor) -> Tensor:
        """weights_BHLM of some queries over all keys, the past included, as they were applied."""
        weights_BHLM = self._own_weights(rows)
        return weights_BHLM if self.change is None else self.change(weights_BHLM, self.call.of_rows(rows))

    def _own_weights(self, rows: Tensor) -> Tensor:
        if isinstance(self.call.state, StepState):
            return self.attention._step_weights(self.q_BLHK, self.k_BMHK, self.call)[:, :, rows]
        return self.attention._weights_of(rows, self.q_BLHK, self.k_BMHK, self.call)


def _allowed_keys(pattern: Pattern, index_BM: Tensor) -> Tensor | None:
    """Keys of these that the pattern allows for every query, (1 or B, M), apart from `causal`; None: all of them."""
    device = index_BM.device
    match pattern:
        case Full() | Causal():
            return None
        case Both(left=left, right=right):
            one_BM, two_BM = _allowed_keys(left, index_BM), _allowed_keys(right, index_BM)
            return two_BM if one_BM is None else one_BM if two_BM is None else one_BM & two_BM
        case at_positions(rule=rule, keys=keys):
            return _allowed_keys(rule, keys.to(device)[index_BM])
        case from_row_start(rule=rule, first=first):
            from_start_BM = index_BM - torch.tensor(first, device=device)[:, None]
            inside_BM, allowed_BM = from_start_BM >= 0, _allowed_keys(rule, from_start_BM.clamp(min=0))
            return inside_BM if allowed_BM is None else inside_BM & allowed_BM
    any_query = torch.zeros((), dtype=torch.long, device=device)
    return pattern.allows(torch.arange(pattern.batch, device=device)[:, None], any_query, any_query, index_BM)
