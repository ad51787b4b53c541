"""Score × normaliser × average: what the attentions of the recurrent era, and softmax attention after them, have in common."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..errors import ShapeError
from ..kernels import Bias, attend
from ..patterns import Pattern, causal, full
from ._base import Attention, average, bias_of, bias_rows, pattern_rows, share_heads, softmax_where
from ._state import Cache, State, remembered

BUDGET = 2**22  # numbers a chunk of query rows may form between the scores and their average: 16 MB in float32


class Scored(Attention):
    r"""A score for each pair of query and key, a softmax over the keys one may see, an average of their values.

    $$o_i = \sum_j \mathrm{softmax}_j\big(s(q_i, k_j) + b_{ij}\big)\, v_j$$

    The holes: `prepare` does what concerns a query or a key alone, once a call; `scores` is the rest of s; `per_pair` says
    how many numbers it forms for a pair. The average goes over chunks of query rows, and in training each chunk is
    computed again on the way back: L × M exists at no time unless it is small.
    """

    heads: int | None = None  # what the parameters were made for; None fits any
    width: int | None = None

    def prepare(self, q_BLHK: Tensor, k_BMHK: Tensor) -> tuple[Tensor, Tensor]:
        return q_BLHK, k_BMHK

    def scores(self, q_BLHK: Tensor, k_BMHK: Tensor, place_BM: Tensor) -> Tensor:
        """scores_BHLM from what was prepared; `place_BM` (or 1M) says where the keys stand, counting from 0."""
        raise NotImplementedError

    def per_pair(self, q_BLHK: Tensor) -> int:
        return 1

    def check(
        self,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        v_BMHV: Tensor | None,
        pattern: Pattern,
        bias: Tensor | Bias | None = None,
        state: State | None = None,
    ) -> None:
        super().check(q_BLHK, k_BMHK, v_BMHV, pattern, bias, state)
        fits(self, q_BLHK, self.heads, self.width)

    def weights(self, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None) -> Tensor:
        self.check(q_BLHK, k_BMHK, None, pattern, bias)
        return self._weights(*self.prepare(q_BLHK, k_BMHK), pattern, bias, _from_zero(k_BMHK))

    def forward(
        self,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        v_BMHV: Tensor,
        pattern: Pattern = full,
        bias: Tensor | Bias | None = None,
        state: State | None = None,
    ) -> Tensor:
        self.check(q_BLHK, k_BMHK, v_BMHV, pattern, bias, state)
        place_BM = None
        if state is not None:
            k_BMHK, v_BMHV, pattern, bias = remembered(state, q_BLHK, k_BMHK, v_BMHV, pattern, bias)
            assert isinstance(state, Cache)
            place_BM = state.places()
        q_BLHK, k_BMHK = self.prepare(q_BLHK, k_BMHK)
        return self._average(q_BLHK, k_BMHK, v_BMHV, pattern, bias, _from_zero(k_BMHK) if place_BM is None else place_BM)

    def start(self, batch: int, pattern: Pattern = causal) -> Cache:
        return Cache(batch, pattern.reach())

    def weights_of(
        self, rows: Tensor, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None
    ) -> Tensor:
        L, M = q_BLHK.shape[1], k_BMHK.shape[1]
        return self.weights(q_BLHK[:, rows], k_BMHK, pattern_rows(pattern, rows, L, M), bias_rows(bias, rows, L, M))

    def extra_repr(self) -> str:
        said = {"heads": self.heads, "width": self.width}
        return ", ".join(f"{name}={value}" for name, value in said.items() if value is not None)

    def _weights(self, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern, bias: Tensor | Bias | None, place_BM: Tensor) -> Tensor:
        L, M, device = q_BLHK.shape[1], k_BMHK.shape[1], q_BLHK.device
        scores_BHLM = self.scores(q_BLHK, k_BMHK, place_BM) + bias_of(bias, L, M, device)
        return softmax_where(scores_BHLM, pattern.mask(L, M, device))

    def _average(
        self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, pattern: Pattern, bias: Tensor | Bias | None, place_BM: Tensor
    ) -> Tensor:
        (B, L, H), M = q_BLHK.shape[:3], k_BMHK.shape[1]

        def look(rows: Tensor) -> Tensor:
            here, added = pattern_rows(pattern, rows, L, M), bias_rows(bias, rows, L, M)
            return average(self._weights(q_BLHK[:, rows], k_BMHK, here, added, place_BM), v_BMHV)

        return by_rows(look, L, B * H * M * self.per_pair(q_BLHK), q_BLHK.device)


class Product(Scored):
    """A score that is the dot product of a changed query and a changed key, so the kernel of softmax attention serves it."""

    def scores(self, q_BLHK: Tensor, k_BMHK: Tensor, place_BM: Tensor) -> Tensor:
        return torch.einsum("blhk,bmhk->bhlm", q_BLHK, share_heads(k_BMHK, q_BLHK.shape[2]))

    def _average(
        self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, pattern: Pattern, bias: Tensor | Bias | None, place_BM: Tensor
    ) -> Tensor:
        return attend(q_BLHK, k_BMHK, v_BMHV, pattern, scale=1.0, bias=bias)


def by_rows(look: Callable[[Tensor], Tensor], queries: int, per_row: int, device: torch.device) -> Tensor:
    """`look(rows)` for as many query rows at a time as fit the budget, put together along axis 1."""
    step = max(1, BUDGET // max(1, per_row))
    chunks = torch.arange(queries, device=device).split(step)
    if len(chunks) == 1:
        return look(chunks[0])
    if not torch.is_grad_enabled():
        return torch.cat([look(rows) for rows in chunks], 1)
    # kept for the way back, the chunks would be as large as the whole: compute them again
    return torch.cat([checkpoint(look, rows, use_reentrant=False, preserve_rng_state=False) for rows in chunks], 1)


def fits(mechanism: Attention, q_BLHK: Tensor, heads: int | None, width: int | None) -> None:
    """Refuse queries of another number or size of heads than the parameters were made for."""
    H, K = q_BLHK.shape[2:]
    if heads not in (None, H) or width not in (None, K):
        made = f"{heads} heads" + ("" if width is None else f" of size {width}")
        name = type(mechanism).__name__
        raise ShapeError(f"{name} was made for {made}, got q_BLHK {tuple(q_BLHK.shape)}; {name}.sized(heads={H}, width={K}, length=…) fits")


def uniform(*shape: int, fan: int) -> nn.Parameter:
    """A parameter drawn from ±1/√fan, as PyTorch's linear maps are."""
    return nn.Parameter(torch.empty(*shape).uniform_(-(fan**-0.5), fan**-0.5))


def _from_zero(k_BMHK: Tensor) -> Tensor:
    return torch.arange(k_BMHK.shape[1], device=k_BMHK.device)[None]
