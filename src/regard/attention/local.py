"""Luong's local attention: a soft look at a window of keys, whose centre moves with time or is predicted."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from ..errors import ShapeError
from ..kernels import Bias
from ..patterns import Full, Pattern, causal, full
from ._base import Attention, Facts, bias_of, bias_rows, pattern_rows, share_heads, softmax_where
from ._scored import by_rows, fits, uniform
from ._state import Cache, Standing, State, remembered, standing


class _Local(Attention):
    """Products within `radius` keys of a centre. The holes: `centre`, `fade` by distance from it, and what keys are `compared` with.

    The fast way gathers the 2·radius + 1 keys and values around each centre: time and memory know no M.
    """

    heads: int | None = None  # what the parameters were made for; None fits any
    width: int | None = None

    def __init__(self, *, radius: int = 10):
        super().__init__()
        if radius < 0:
            raise ShapeError(f"{type(self).__name__} looks `radius` keys to either side, so at least 0, got {radius}")
        self.radius = radius

    def centre(self, q_BLHK: Tensor, t_BL: Tensor, begin_B: Tensor, first_BHL: Tensor, last_BHL: Tensor) -> Tensor:
        """centre_BHL, an index into the keys. Given: the step of each query, where each batch row begins (also 1), and the
        first and the last key each query may see (0 and −1 where there is none)."""
        raise NotImplementedError

    def fade(self, away_BHLW: Tensor) -> Tensor:
        """A factor on the weights, by distance from the centre."""
        return torch.ones_like(away_BHLW)

    def compared(self, q_BLHK: Tensor) -> Tensor:
        """What stands beside the key in the product: the query itself."""
        return q_BLHK

    def weights(self, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None) -> Tensor:
        return self.weights_of(torch.arange(q_BLHK.shape[1], device=q_BLHK.device), q_BLHK, k_BMHK, pattern, bias)

    def weights_of(
        self, rows: Tensor, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None
    ) -> Tensor:
        self.check(q_BLHK, k_BMHK, None, pattern, bias)
        fits(self, q_BLHK, self.heads, self.width)
        (L, H), M, device = q_BLHK.shape[1:3], k_BMHK.shape[1], q_BLHK.device
        here, q_BLHK = pattern_rows(pattern, rows, L, M), q_BLHK[:, rows]
        centre_BHL = self.centre(q_BLHK, rows[None], rows.new_zeros(1), *_ends(here, len(rows), M, device))
        away_BHLM = torch.arange(M, device=device) - centre_BHL.unsqueeze(-1)
        scores_BHLM = torch.einsum("blhk,bmhk->bhlm", self.compared(q_BLHK), share_heads(k_BMHK, H))
        scores_BHLM = scores_BHLM + bias_of(bias_rows(bias, rows, L, M), len(rows), M, device)
        seen_BHLM = here.mask(len(rows), M, device) & (away_BHLM.abs() <= self.radius)
        return softmax_where(scores_BHLM, seen_BHLM) * self.fade(away_BHLM).to(q_BLHK.dtype)

    def _average(
        self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, pattern: Pattern, bias: Tensor | Bias | None, t_BL: Tensor, begin_B: Tensor
    ) -> Tensor:
        (B, L, H, K), (M, G, V), device = q_BLHK.shape, v_BMHV.shape[1:], q_BLHK.device
        size = min(2 * self.radius + 1, M)
        head_H1 = torch.arange(H, device=device).mul(G).div(max(H, 1), rounding_mode="floor")[:, None, None]
        row_B1 = torch.arange(B, device=device)[:, None, None, None]

        def look(rows: Tensor) -> Tensor:
            here, q_BCHK, C = pattern_rows(pattern, rows, L, M), q_BLHK[:, rows], len(rows)
            centre_BHC = self.centre(q_BCHK, t_BL[:, rows], begin_B, *_ends(here, C, M, device)).expand(B, H, C)
            start_BHC = (centre_BHC.detach() - self.radius).ceil().long().clamp(0, M - size)
            at_BHCW = start_BHC.unsqueeze(-1) + torch.arange(size, device=device)
            away_BHCW = at_BHCW - centre_BHC.unsqueeze(-1)
            seen_BHCW = _allowed(here, at_BHCW, M) & (away_BHCW.abs() <= self.radius)
            index_BHCW = (row_B1 * M + at_BHCW) * G + head_H1
            scores_BHCW = torch.einsum("bchk,bhcwk->bhcw", self.compared(q_BCHK), k_BMHK.reshape(-1, K)[index_BHCW])
            if bias is not None:
                added = bias_of(bias_rows(bias, rows, L, M), C, M, device)
                scores_BHCW = scores_BHCW + torch.as_tensor(added).expand(B, H, C, M).gather(-1, at_BHCW)
            weights_BHCW = softmax_where(scores_BHCW, seen_BHCW) * self.fade(away_BHCW).to(q_BLHK.dtype)
            return torch.einsum("bhcw,bhcwv->bchv", weights_BHCW, v_BMHV.reshape(-1, V)[index_BHCW])

        return by_rows(look, L, B * H * size * (K + V), device)

    def extra_repr(self) -> str:
        return f"radius={self.radius}"


class LocalMonotonicAttention(_Local):
    r"""The t-th query looks at the keys around the t-th: input and output are taken to go along together (local-m).

    $$o_t = \sum_{|s - p_t| \le D} \mathrm{softmax}_s\big(q_t^\top k_s + b_{ts}\big)\, v_s, \qquad p_t = t$$

    Cost:    time O(L·D·K), memory O(D·K) a chunk of rows: neither grows with M (patterns other than `full` cost L·M bits).
    Use it:  for tasks known to be monotone, as a baseline, and as the case that must fail on reordering.
    Avoid it: for translation between languages of different order; LocalPredictiveAttention learns the centre.
    Limits:  Step by step, all keys and values are given at every call, the queries as they come; the state counts them.
             The pattern then places the newest query at the last key, as always: use rules that are the same for all
             queries, such as `full` and `lengths`. `window(D)` differs: it is aligned at the end, this at the start.
    Paper:   Luong, Pham & Manning 2015, "Effective approaches to attention-based neural machine translation",
             arXiv:1508.04025, section 3.2.
    We differ: t and s count from 0. The centre stops at the ends of what the row may see, so that an output longer than its
             input goes on looking at the end, not at nothing; the paper does not say. The score is the plain dot product.
    """

    facts = Facts(
        name="local_monotonic",
        year=2015,
        title="Effective approaches to attention-based neural machine translation",
        paper="arXiv:1508.04025",
        formula="softmax(q·k) v,  |s − t| ≤ D",
        time="L·D·K",
        memory="D·K",
        fixed_memory=True,
        positional=True,
    )

    def centre(self, q_BLHK: Tensor, t_BL: Tensor, begin_B: Tensor, first_BHL: Tensor, last_BHL: Tensor) -> Tensor:
        # one more rule than the paper's: never outside what may be seen
        return torch.minimum(torch.maximum(t_BL[:, None], first_BHL), last_BHL).to(torch.promote_types(q_BLHK.dtype, torch.float32))

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
        B, L = q_BLHK.shape[:2]
        t_BL = torch.arange(L, device=q_BLHK.device)[None]
        if state is not None:
            here = standing(state, B)
            before_B = t_BL.new_zeros(B) if here.at is None else here.at
            t_BL = t_BL + before_B[:, None]
            here.move(before_B + L, L)
        return self._average(q_BLHK, k_BMHK, v_BMHV, pattern, bias, t_BL, t_BL.new_zeros(1))

    def start(self, batch: int, pattern: Pattern = full) -> Standing:
        return Standing(batch)


class _Predictive(_Local):
    """A centre that the query predicts, and a look that fades with the distance from it."""

    def __init__(self, *, width: int, heads: int = 1, radius: int = 10, sigma: float | None = None):
        super().__init__(radius=radius)
        self.heads, self.width = heads, width
        self.sigma = max(radius, 1) / 2 if sigma is None else sigma
        self.w_HKK = uniform(heads, width, width, fan=width)
        self.u_HK = uniform(heads, width, fan=width)

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(heads=heads, width=width)

    def centre(self, q_BLHK: Tensor, t_BL: Tensor, begin_B: Tensor, first_BHL: Tensor, last_BHL: Tensor) -> Tensor:
        hidden_BLHK = torch.tanh(torch.einsum("blhk,hka->blha", q_BLHK, self.w_HKK))
        logit_BHL = torch.einsum("blhk,hk->bhl", hidden_BLHK, self.u_HK).to(torch.promote_types(q_BLHK.dtype, torch.float32))
        begin_B11 = begin_B[:, None, None]
        return begin_B11 + (last_BHL + 1 - begin_B11) * torch.sigmoid(logit_BHL)

    def fade(self, away_BHLW: Tensor) -> Tensor:
        return torch.exp(-((away_BHLW / self.sigma) ** 2) / 2)

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
        fits(self, q_BLHK, self.heads, self.width)
        t_BL = torch.arange(q_BLHK.shape[1], device=q_BLHK.device)[None]
        begin_B = t_BL.new_zeros(1)
        if state is not None:
            k_BMHK, v_BMHV, pattern, bias = remembered(state, q_BLHK, k_BMHK, v_BMHV, pattern, bias)
            assert isinstance(state, Cache)
            begin_B = -state.places()[:, 0]
        return self._average(q_BLHK, k_BMHK, v_BMHV, pattern, bias, t_BL, begin_B)

    def start(self, batch: int, pattern: Pattern = causal) -> Cache:
        return Cache(batch)  # keeps every key, whatever the pattern: windows are found by counting

    def extra_repr(self) -> str:
        return f"heads={self.heads}, width={self.width}, radius={self.radius}, sigma={self.sigma}"


class LocalPredictiveAttention(_Predictive):
    r"""The query predicts where to look, and the look fades with the distance from there (local-p).

    $$o_t = \sum_{|s - p_t| \le D} \mathrm{softmax}_s\big(q_t^\top k_s + b_{ts}\big)\,
      e^{-(s - p_t)^2 / 2\sigma^2}\, v_s, \qquad p_t = S\cdot\mathrm{sigmoid}\big(u^\top \tanh(W q_t)\big)$$

    Cost:    time O(L·(K² + D·K)), memory O(D·K) a chunk of rows: neither grows with M (patterns other than `full` cost
             L·M bits).
    Use it:  for long inputs where one region matters at a time and the query can know where.
    Avoid it: for inputs longer than in training: p_t is a share of the length, and shares do not carry over.
    Limits:  heads and key size are fixed when it is made. The weights sum to less than one. p_t learns through the fading
             alone; which keys are inside the window has no gradient.
    Paper:   Luong, Pham & Manning 2015, "Effective approaches to attention-based neural machine translation",
             arXiv:1508.04025, section 3.2.
    We differ: s counts from 0. S is the query's own number of keys, one more than the last it may see, so padding changes
             nothing and under `causal` S is how many have come. p_t is not rounded. The score is the plain dot product.
    """

    facts = Facts(
        name="local_predictive",
        year=2015,
        title="Effective approaches to attention-based neural machine translation",
        paper="arXiv:1508.04025",
        formula="softmax(q·k) exp(−(s − p)² / 2σ²) v,  p = S·σ(u·tanh(Wq)),  |s − p| ≤ D",
        time="L·(K² + D·K)",
        memory="D·K",
        normalised=False,
        positional=True,
    )


class LocalPredictiveGeneralAttention(_Predictive):
    r"""The query predicts where to look, and a matrix learns what it looks for there (local-p with the general score).

    $$o_t = \sum_{|s - p_t| \le D} \mathrm{softmax}_s\big(q_t^\top W_a k_s + b_{ts}\big)\,
      e^{-(s - p_t)^2 / 2\sigma^2}\, v_s, \qquad p_t = S\cdot\mathrm{sigmoid}\big(u^\top \tanh(W q_t)\big)$$

    Cost:    time O(L·(K² + D·K)), memory O(D·K) a chunk of rows: neither grows with M (patterns other than `full` cost
             L·M bits).
    Use it:  where LocalPredictiveAttention serves, and queries and keys come from different networks: the paper's best.
    Avoid it: after projections of q and k, which already are such a matrix.
    Limits:  those of LocalPredictiveAttention.
    Paper:   Luong, Pham & Manning 2015, "Effective approaches to attention-based neural machine translation",
             arXiv:1508.04025, sections 3.1 and 3.2, table 4.
    We differ: as LocalPredictiveAttention. W_a begins at random with standard deviation 1/K, as in GeneralAttention.
    """

    facts = Facts(
        name="local_predictive_general",
        year=2015,
        title="Effective approaches to attention-based neural machine translation",
        paper="arXiv:1508.04025",
        formula="softmax(q·W_a k) exp(−(s − p)² / 2σ²) v,  p = S·σ(u·tanh(Wq)),  |s − p| ≤ D",
        time="L·(K² + D·K)",
        memory="D·K",
        normalised=False,
        positional=True,
    )

    def __init__(self, *, width: int, heads: int = 1, radius: int = 10, sigma: float | None = None):
        super().__init__(width=width, heads=heads, radius=radius, sigma=sigma)
        self.score_HKK = nn.Parameter(torch.randn(heads, width, width) / width)

    def compared(self, q_BLHK: Tensor) -> Tensor:
        return torch.einsum("blha,hak->blhk", q_BLHK, self.score_HKK)


def _ends(pattern: Pattern, queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The first and the last key each query may see, (1 or B, 1 or H, L); 0 and −1 where there is none."""
    if isinstance(pattern, Full) or not keys:
        ends = torch.zeros(1, 1, queries, dtype=torch.long, device=device)
        return ends, ends + keys - 1
    mask_BHLM = pattern.mask(queries, keys, device)
    j = torch.arange(keys, device=device)
    last_BHL = j.masked_fill(~mask_BHLM, -1).amax(-1)
    return j.masked_fill(~mask_BHLM, keys).amin(-1).masked_fill(last_BHL < 0, 0), last_BHL


def _allowed(pattern: Pattern, at_BHLW: Tensor, keys: int) -> Tensor:
    """The pattern at chosen keys of each query."""
    device, queries = at_BHLW.device, at_BHLW.shape[2]
    b = torch.arange(pattern.batch, device=device)[:, None, None, None]
    h = torch.arange(pattern.heads, device=device)[:, None, None]
    i = torch.arange(keys - queries, keys, device=device)[:, None]
    return pattern.fit(queries, keys).allows(b, h, i, at_BHLW)
