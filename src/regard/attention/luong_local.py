"""Luong's local attention: a window of keys whose centre advances with time or is predicted."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..bounds import Count, Heads, Positive, Size
from ..kernels import accumulation_dtype
from ..patterns import Full, Pattern
from ._base import Attention, Call, Facts, Paper
from ._cache import Cache
from ._recurrent_state import StepState
from .helpers import by_rows, float32_or_wider, share_heads, softmax_where, uniform_parameter


class _LocalAttention(Attention):
    """Dot-product attention within `radius` keys of a centre. Write `centre`; optional: `fade` and `score_query`.

    The fast path gathers the 2·radius + 1 keys and values around each centre: time and memory do not grow with M.
    """

    def __init__(self, *, radius: Count = 10):
        super().__init__()
        self.radius = radius

    def centre(self, q_BLHK: Tensor, step_BL: Tensor, begin_B: Tensor, first_BHL: Tensor, last_BHL: Tensor) -> Tensor:
        """centre_BHL, an index into the keys, from the step of each query, the index where each batch row starts (1 or B), and the
        first and the last key each query may attend to (0 and −1 where there is none)."""
        raise NotImplementedError

    def fade(self, away_BHLW: Tensor) -> Tensor:
        """A factor on the weights, by distance from the centre."""
        return torch.ones_like(away_BHLW)

    def score_query(self, q_BLHK: Tensor) -> Tensor:
        """The query that keys are multiplied with."""
        return q_BLHK

    def _weights(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        H, M, device = q_BLHK.shape[2], call.keys, call.device
        centre_BHL = self._centre(q_BLHK, call)
        away_BHLM = torch.arange(M, device=device) - centre_BHL.unsqueeze(-1)
        scores_BHLM = torch.einsum("blhk,bmhk->bhlm", self.score_query(q_BLHK), share_heads(k_BMHK, H)) + call.scores_bias()
        allowed_BHLM = call.mask() & (away_BHLM.abs() <= self.radius)
        return softmax_where(scores_BHLM, allowed_BHLM) * self.fade(away_BHLM).to(q_BLHK.dtype)

    def _forward(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, call: Call) -> Tensor:
        (B, _, H, K), (M, G, V), device = q_BLHK.shape, v_BMHV.shape[1:], call.device
        size = min(2 * self.radius + 1, M)
        head_H1 = torch.arange(H, device=device).mul(G).div(max(H, 1), rounding_mode="floor")[:, None, None]
        row_B1 = torch.arange(B, device=device)[:, None, None, None]

        def attend_rows(rows: Tensor) -> Tensor:
            here, q_BCHK, C = call.of_rows(rows), q_BLHK[:, rows], len(rows)
            centre_BHC = self._centre(q_BCHK, here).expand(B, H, C)
            start_BHC = (centre_BHC.detach() - self.radius).ceil().long().clamp(0, M - size)
            at_BHCW = start_BHC.unsqueeze(-1) + torch.arange(size, device=device)
            away_BHCW = at_BHCW - centre_BHC.unsqueeze(-1)
            allowed_BHCW = _allowed(here.pattern, at_BHCW, M) & (away_BHCW.abs() <= self.radius)
            index_BHCW = (row_B1 * M + at_BHCW) * G + head_H1
            scores_BHCW = torch.einsum("bchk,bhcwk->bhcw", self.score_query(q_BCHK), k_BMHK.reshape(-1, K)[index_BHCW])
            if call.bias is not None:
                scores_BHCW = scores_BHCW + torch.as_tensor(here.scores_bias(), device=device).expand(B, H, C, M).gather(-1, at_BHCW)
            weights_BHCW = softmax_where(scores_BHCW, allowed_BHCW) * self.fade(away_BHCW).to(q_BLHK.dtype)
            return torch.einsum("bhcw,bhcwv->bchv", weights_BHCW, v_BMHV.reshape(-1, V)[index_BHCW])

        out_BLHV = by_rows(attend_rows, q_BLHK, v_BMHV, H * size * (K + V))
        if isinstance(call.state, StepState):
            call.state.move(_steps_before(call.state, device) + call.queries, call.queries)
        return out_BLHV

    def _centre(self, q_BLHK: Tensor, call: Call) -> Tensor:
        step_BL = call.row_index()[None]
        if isinstance(call.state, StepState):
            step_BL = step_BL + _steps_before(call.state, call.device)[:, None]
        begin_B = -call.key_positions()[:, 0] if call.keys else step_BL.new_zeros(1)
        return self.centre(q_BLHK, step_BL, begin_B, *_ends(call))


class LocalMonotonicAttention(_LocalAttention):
    r"""The t-th query attends to the keys around the t-th: input and output are assumed to advance together (local-m).

    $$o_t = \sum_{|s - p_t| \le D} \mathrm{softmax}_s\big(q_t^\top k_s + b_{ts}\big)\, v_s, \qquad p_t = t$$

    Cost:    time O(L·D·K), memory O(D·K) per row of a chunk: neither grows with M, except by the mask of patterns
             other than `full`.
    Use it:  for monotone tasks, as a baseline, and as the case that must fail on reordering.
    Avoid it: for translation between languages of different word order; LocalPredictiveAttention learns the centre.
    Limits:  in a stream, pass all keys and values at every call, and the queries as they come; the state counts
             them. The pattern aligns the newest query with the last key, so use rules that are the same for all
             queries, such as `full` and `lengths`. `window(D)` differs: it is aligned at the end, this at the start.
    Args:
        radius: keys D on either side of the centre.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Luong, Pham & Manning 2015, "Effective approaches to attention-based neural machine translation",
             arXiv:1508.04025, section 3.2.
    We differ: t and s count from 0. The centre is clamped to the keys the row may attend to, so that an output longer
             than its input keeps attending to the end; the paper does not say. The score is the plain dot product.
    """

    facts = Facts(
        name="local_monotonic",
        paper=Paper("Effective approaches to attention-based neural machine translation", 2015, "arXiv:1508.04025"),
        formula="softmax(q·k) v,  |s − t| ≤ D",
        time="L·D·K",
        memory="D·K",
        state=StepState,
        positional=True,
    )

    def centre(self, q_BLHK: Tensor, step_BL: Tensor, begin_B: Tensor, first_BHL: Tensor, last_BHL: Tensor) -> Tensor:
        # not in the paper: clamped to the allowed keys
        return torch.minimum(torch.maximum(step_BL[:, None], first_BHL), last_BHL).to(accumulation_dtype(q_BLHK))


class _PredictiveAttention(_LocalAttention):
    """A centre predicted from the query, and weights that fade with the distance from it."""

    def __init__(self, *, head_dim: Size, heads: Heads = 1, radius: Count = 10, sigma: Positive | None = None):
        super().__init__(radius=radius)
        self.heads, self.head_dim = heads, head_dim
        self.sigma = max(radius, 1) / 2 if sigma is None else sigma
        self.w_HKK = uniform_parameter(heads, head_dim, head_dim, fan=head_dim)
        self.u_HK = uniform_parameter(heads, head_dim, fan=head_dim)

    def centre(self, q_BLHK: Tensor, step_BL: Tensor, begin_B: Tensor, first_BHL: Tensor, last_BHL: Tensor) -> Tensor:
        hidden_BLHK = torch.tanh(torch.einsum("blhk,hka->blha", q_BLHK, self.w_HKK))
        logit_BHL = torch.einsum("blhk,hk->bhl", hidden_BLHK, self.u_HK)
        begin_B11 = begin_B[:, None, None]
        return begin_B11 + (last_BHL + 1 - begin_B11) * torch.sigmoid(float32_or_wider(logit_BHL))

    def fade(self, away_BHLW: Tensor) -> Tensor:
        return torch.exp(-((away_BHLW / self.sigma) ** 2) / 2)

    def _start(self, batch: int, pattern: Pattern) -> Cache:
        return Cache(batch)  # keeps every key, whatever the pattern: windows are located by index


class LocalPredictiveAttention(_PredictiveAttention):
    r"""The query predicts a centre, and weights fade with the distance from it (local-p).

    $$o_t = \sum_{|s - p_t| \le D} \mathrm{softmax}_s\big(q_t^\top k_s + b_{ts}\big)\,
      e^{-(s - p_t)^2 / 2\sigma^2}\, v_s, \qquad p_t = S\cdot\mathrm{sigmoid}\big(u^\top \tanh(W q_t)\big)$$

    Cost:    time O(L·(K² + D·K)), memory O(D·K) per row of a chunk: neither grows with M, except by the mask of
             patterns other than `full`.
    Use it:  for long inputs where one region matters at a time and the query can predict which.
    Avoid it: for inputs longer than in training: p_t is a fraction of the length, which does not carry over.
    Limits:  heads and head size are fixed at construction. Weights sum to less than one. p_t learns through the
             fading alone; which keys are inside the window has no gradient.
    Args:
        head_dim: size K of queries.
        heads: number of heads, each of which predicts a centre of its own.
        radius: keys D on either side of the centre.
        sigma: standard deviation σ of the Gaussian in keys; D / 2 if not given.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Luong, Pham & Manning 2015, "Effective approaches to attention-based neural machine translation",
             arXiv:1508.04025, section 3.2.
    We differ: s counts from 0. S is one more than the last key the query may attend to, so padding changes nothing,
             and under `causal` S is the number of keys so far. p_t is not rounded. The score is the plain dot product.
    """

    facts = Facts(
        name="local_predictive",
        paper=Paper("Effective approaches to attention-based neural machine translation", 2015, "arXiv:1508.04025"),
        formula="softmax(q·k) exp(−(s − p)² / 2σ²) v,  p = S·σ(u·tanh(Wq)),  |s − p| ≤ D",
        time="L·(K² + D·K)",
        memory="D·K",
        normalised=False,
        positional=True,
    )


class LocalPredictiveGeneralAttention(_PredictiveAttention):
    r"""The query predicts a centre, and a learned matrix scores the keys around it (local-p with the general score).

    $$o_t = \sum_{|s - p_t| \le D} \mathrm{softmax}_s\big(q_t^\top W_a k_s + b_{ts}\big)\,
      e^{-(s - p_t)^2 / 2\sigma^2}\, v_s, \qquad p_t = S\cdot\mathrm{sigmoid}\big(u^\top \tanh(W q_t)\big)$$

    Cost:    time O(L·(K² + D·K)), memory O(D·K) per row of a chunk: neither grows with M, except by the mask of
             patterns other than `full`.
    Use it:  as LocalPredictiveAttention, where queries and keys come from different networks: the paper's best.
    Avoid it: after projections of q and k, which already form such a matrix.
    Limits:  those of LocalPredictiveAttention.
    Args:
        head_dim: size K of queries and keys.
        heads: number of heads, each of which predicts a centre of its own.
        radius: keys D on either side of the centre.
        sigma: standard deviation σ of the Gaussian in keys; D / 2 if not given.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Luong, Pham & Manning 2015, "Effective approaches to attention-based neural machine translation",
             arXiv:1508.04025, sections 3.1 and 3.2, table 4.
    We differ: as LocalPredictiveAttention. W_a is initialised with standard deviation 1/K, as in GeneralAttention.
    """

    facts = Facts(
        name="local_predictive_general",
        paper=Paper("Effective approaches to attention-based neural machine translation", 2015, "arXiv:1508.04025"),
        formula="softmax(q·W_a k) exp(−(s − p)² / 2σ²) v,  p = S·σ(u·tanh(Wq)),  |s − p| ≤ D",
        time="L·(K² + D·K)",
        memory="D·K",
        normalised=False,
        positional=True,
    )

    def __init__(self, *, head_dim: Size, heads: Heads = 1, radius: Count = 10, sigma: Positive | None = None):
        super().__init__(head_dim=head_dim, heads=heads, radius=radius, sigma=sigma)
        self.score_HKK = nn.Parameter(torch.randn(heads, head_dim, head_dim) / head_dim)

    def score_query(self, q_BLHK: Tensor) -> Tensor:
        return torch.einsum("blha,hak->blhk", q_BLHK, self.score_HKK)


def _steps_before(state: StepState, device: torch.device) -> Tensor:
    """Queries of each row before this call, (B,)."""
    return torch.zeros(state.batch, dtype=torch.long, device=device) if state.at is None else state.at


def _ends(call: Call) -> tuple[Tensor, Tensor]:
    """The first and the last key each query may attend to, (1 or B, 1 or H, L); 0 and −1 where there is none."""
    if isinstance(call.pattern, Full) or not call.keys:
        ends = torch.zeros(1, 1, call.queries, dtype=torch.long, device=call.device)
        return ends, ends + call.keys - 1
    mask_BHLM = call.mask()
    j = torch.arange(call.keys, device=call.device)
    last_BHL = j.masked_fill(~mask_BHLM, -1).amax(-1)
    return j.masked_fill(~mask_BHLM, call.keys).amin(-1).masked_fill(last_BHL < 0, 0), last_BHL


def _allowed(pattern: Pattern, at_BHLW: Tensor, keys: int) -> Tensor:
    """The pattern at chosen keys of each query."""
    device, queries = at_BHLW.device, at_BHLW.shape[2]
    b = torch.arange(pattern.batch, device=device)[:, None, None, None]
    h = torch.arange(pattern.heads, device=device)[:, None, None]
    i = torch.arange(keys - queries, keys, device=device)[:, None]
    return pattern.fit(queries, keys).allows(b, h, i, at_BHLW)
