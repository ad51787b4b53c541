"""Adaptive span: each head learns how far it looks, and pays for no more."""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor, nn

from ..errors import ShapeError
from ..kernels import Bias, add_bias, attend
from ..patterns import Pattern, causal, full, per_head, window
from ._base import Attention, Facts, bias_of, bias_rows, pattern_rows, share_heads, softmax_where
from ._scored import fits
from ._state import Cache, State, remembered


class AdaptiveSpanAttention(Attention):
    r"""Softmax attention in which each head fades out at a distance of its own, and learns that distance.

    $$o_i = \sum_j \frac{m_z(|i-j|)\, e^{s_{ij}}}{\sum_n m_z(|i-n|)\, e^{s_{in}}}\, v_j, \qquad
      m_z(\delta) = \mathrm{clamp}\Big(\frac{R + z - \delta}{R},\, 0,\, 1\Big), \qquad s_{ij} = q_i^\top k_j / \sqrt K + b_{ij}$$

    Cost:    time O(L·(z + R)·K) for each head by its own z, z + R rounded up to 64 keys or a quarter; memory O(L·K). While spans
             learn, 1.1 to 2.6 times a fixed window as long as the longest (measured at 4,096 tokens, 8 heads).
    Use it:  for long contexts, characters above all: most heads turn out to need little, and a few take it all.
    Avoid it: where one far token decides from the start: beyond z + R there is no weight, and so no gradient to reach further.
    Limits:  looks within one sequence: the queries are the last of the keys. A row whose allowed keys are all beyond its span
             gives zeros. Heads are fixed when it is made. Step by step, spans are those at `start`.
    Paper:   Sukhbaatar et al. 2019, "Adaptive attention span in transformers", arXiv:1905.07799, eq. 3–5.
    Training: after each step of the optimiser call `clamp_()`; add `λ · penalty()` to the loss (the paper: λ = 2·10⁻⁶,
             `longest` = 8,192, R = 32); no weight decay on `share_H`.
    We differ: the paper is causal; here the distance is |i − j|, so the same z rules both sides under patterns that look ahead.
             Its code cuts all heads at the largest span; here each head has its own cut.
    """

    facts = Facts(
        name="adaptive_span",
        year=2019,
        title="Adaptive attention span in transformers",
        paper="arXiv:1905.07799",
        formula="m(|i − j|) exp(q·k / √K) v / Σ,  m(δ) = clamp((R + z − δ) / R, 0, 1)",
        time="L·(z + R)·K",
        memory="L·K",
        cross="last",
        positional=True,
    )

    def __init__(self, *, heads: int = 1, longest: int = 1024, ramp: float = 32.0, begin: float = 0.0):
        """`longest` bounds every span, `ramp` is R; spans begin at `begin`, as the published code at 0."""
        super().__init__()
        if ramp <= 0 or longest < 1 or not 0 <= begin <= longest:
            raise ShapeError(f"AdaptiveSpanAttention: ramp={ramp} must be above 0, and begin={begin} between 0 and longest={longest}")
        self.heads, self.longest, self.ramp = heads, longest, ramp
        self.share_H = nn.Parameter(torch.full((heads,), begin / longest))  # z as a share of the longest, so that one rate fits all

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(heads=heads, longest=length)

    def span(self) -> Tensor:
        """span_H: up to which distance each head looks in full, z; it sees nothing from z + R on."""
        share_H = self.share_H.to(torch.promote_types(self.share_H.dtype, torch.float32))
        return self.longest * share_H.clamp(0, 1)

    def penalty(self) -> Tensor:
        """The mean span, in tokens: what a loss adds to make heads look no further than they must."""
        return self.span().mean()

    @torch.no_grad()
    def clamp_(self) -> None:
        """Spans back to between 0 and `longest`: to be called after every step, for outside there is no gradient."""
        self.share_H.clamp_(0, 1)

    def weights(self, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None) -> Tensor:
        self.check(q_BLHK, k_BMHK, None, pattern, bias)
        return self.weights_of(torch.arange(q_BLHK.shape[1], device=q_BLHK.device), q_BLHK, k_BMHK, pattern, bias)

    def weights_of(
        self, rows: Tensor, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None
    ) -> Tensor:
        fits(self, q_BLHK, self.heads, None)
        (L, H, K), M, device = q_BLHK.shape[1:], k_BMHK.shape[1], q_BLHK.device
        here, fade_HLM = pattern_rows(pattern, rows, L, M), bias_rows(_Fade(self.span(), self.ramp), rows, L, M)
        scores_BHLM = torch.einsum("blhk,bmhk->bhlm", q_BLHK[:, rows], share_heads(k_BMHK, H)) * K**-0.5
        scores_BHLM = scores_BHLM + bias_of(bias_rows(bias, rows, L, M), len(rows), M, device) + fade_HLM
        return softmax_where(scores_BHLM, here.mask(len(rows), M, device))

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
        fits(self, q_BLHK, self.heads, None)
        span_H, (L, M) = self.span(), (q_BLHK.shape[1], k_BMHK.shape[1])
        length = M if state is None else state.length + M
        fade: Tensor | Bias | None = _Fade(span_H.detach(), self.ramp)
        slope: Tensor | Bias | None = _Slope(span_H.detach(), self.ramp)
        near, band = pattern & self._near(length), pattern & self._near(length, slope_only=True)
        if state is not None:
            k_BMHK, v_BMHV, near, bias = remembered(state, q_BLHK, k_BMHK, v_BMHV, near, bias)
            band, fade, slope, M = state.over(band, L), state.bias_over(fade, L), state.bias_over(slope, L), k_BMHK.shape[1]
        faded = add_bias(fade, bias, L, M)
        if not (span_H.requires_grad and torch.is_grad_enabled()):
            return attend(q_BLHK, k_BMHK, v_BMHV, near, bias=faded)
        out_BLHV, lse_BHL = attend(q_BLHK, k_BMHK, v_BMHV, near, bias=faded, with_lse=True)
        with torch.no_grad():
            # ∂m/∂z is 1/R on the slope and 0 elsewhere, so ∂o/∂z = (share of the slope) / R · (average over the slope − o):
            # one more look at the ramp. A gradient through every tile of the fade takes 1.3 to 2.3 times as long (4,096 tokens; LOG.md)
            band_BLHV, band_BHL = attend(q_BLHK, k_BMHK, v_BMHV, band, bias=add_bias(slope, bias, L, M), with_lse=True)
            share_BLH = (band_BHL - lse_BHL.masked_fill(lse_BHL == -torch.inf, 0)).exp().transpose(1, 2)
            change_BLHV = (band_BLHV - out_BLHV) * (share_BLH / self.ramp).to(out_BLHV.dtype).unsqueeze(-1)
        return out_BLHV + change_BLHV * (span_H - span_H.detach()).to(out_BLHV.dtype)[:, None]  # plus zero, with that gradient

    def start(self, batch: int, pattern: Pattern = causal) -> Cache:
        reach, known = max(self._reaches()), pattern.reach()
        if known is not None and not known[1]:  # sinks are not held apart: far ones have no weight here
            reach = min(reach, known[0])
        return Cache(batch, (reach, 0))

    def extra_repr(self) -> str:
        return f"heads={self.heads}, longest={self.longest}, ramp={self.ramp}"

    def _reaches(self) -> list[int]:
        """The largest distance at which each head has weight."""
        return [math.ceil(edge) - 1 for edge in (self.span().detach() + self.ramp).tolist()]

    def _near(self, keys: int, slope_only: bool = False) -> Pattern:
        """The keys where a head has weight, or only those on its ramp; and a few more, which the fade or the slope leaves out."""
        rules: list[Pattern] = []
        for z, reach in zip(self.span().tolist(), self._reaches(), strict=True):
            furthest, flat = _coarse(reach), _coarse(math.ceil(z) - 1, -1)
            rule: Pattern = window(furthest) if furthest < keys else full
            rules.append(rule & ~window(flat) if slope_only and flat > 0 else rule)
        return rules[0] if len(set(rules)) == 1 else per_head(*rules)


def _coarse(distance: int, sign: int = 1) -> int:
    """Rounded up, or down for −1, by an eighth to a quarter: work is laid out anew only when a span has moved that far."""
    step = max(64, 1 << max(distance.bit_length() - 3, 0))
    return sign * -(-sign * distance // step) * step


class _Fade(Bias):
    """log m_z(|i − j|) of each head, −inf from z + R on."""

    by_distance = True

    def __init__(self, span_H: Tensor, ramp: float):
        self.tensors, self.ramp = (span_H,), ramp

    def tile(self, i: Tensor, j: Tensor, *tensors: Tensor) -> Tensor:
        left_HLM = _left(i, j, tensors[0], self.ramp)
        tiny = torch.finfo(left_HLM.dtype).tiny
        return left_HLM.clamp(tiny, 1).log().masked_fill(left_HLM <= 0, -torch.inf)


class _Slope(Bias):
    """0 on the ramp, z ≤ δ < z + R, where the weight changes with z; −inf elsewhere."""

    by_distance = True

    def __init__(self, span_H: Tensor, ramp: float):
        self.tensors, self.ramp = (span_H,), ramp

    def tile(self, i: Tensor, j: Tensor, *tensors: Tensor) -> Tensor:
        left_HLM = _left(i, j, tensors[0], self.ramp)
        return torch.zeros_like(left_HLM).masked_fill((left_HLM <= 0) | (left_HLM > 1), -torch.inf)


def _left(i: Tensor, j: Tensor, span_H: Tensor, ramp: float) -> Tensor:
    """(R + z − δ) / R"""
    return (span_H[:, None, None] + ramp - (i[:, None] - j).abs()) / ramp
