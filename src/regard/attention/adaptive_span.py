"""Adaptive span: each head learns how far it attends, and costs no more than that."""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor, nn

from ..bounds import Heads, NonNegative, Positive, Size
from ..errors import BadConfig
from ..kernels import Bias, add_bias, attend
from ..patterns import Pattern, full, per_head, window
from ._base import Attention, Call, Facts, Paper
from ._cache import Cache
from .helpers import float32_or_wider, share_heads, softmax_where


class AdaptiveSpanAttention(Attention):
    r"""Softmax attention whose weights fade out at a distance that each head learns.

    $$o_i = \sum_j \frac{m_z(|i-j|)\, e^{s_{ij}}}{\sum_n m_z(|i-n|)\, e^{s_{in}}}\, v_j, \qquad
      m_z(\delta) = \mathrm{clamp}\Big(\frac{R + z - \delta}{R},\, 0,\, 1\Big), \qquad s_{ij} = q_i^\top k_j / \sqrt K + b_{ij}$$

    Cost:    time O(L·(z + R)·K) per head for its own z, z + R rounded up to 64 keys or by a quarter; memory O(L·K). While
             spans train, 1.1 to 2.6 times a fixed window as long as the longest span (measured at 4,096 tokens, 8 heads).
    Use it:  for long contexts, characters above all: most heads turn out to need a short span, and a few use all of it.
    Avoid it: where a distant token matters from the start: beyond z + R the weight is zero, and so is the gradient of the span.
    Limits:  self-attention only: the queries are the last of the keys. A row whose allowed keys are all beyond its span
             gives zeros. The number of heads is fixed at construction. A stream uses the spans at the time of `start`.
    Args:
        heads: number of heads; each learns a span of its own.
        longest: upper bound of every span, in tokens.
        ramp: R, the distance in tokens over which weights fade from full to zero.
        begin: initial span z in tokens; 0 as in the published code.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Sukhbaatar et al. 2019, "Adaptive attention span in transformers", arXiv:1905.07799, eq. 3–5.
    Training: call `clamp_()` after each optimizer step; add `λ · penalty()` to the loss (paper: λ = 2·10⁻⁶,
             `longest` = 8,192, R = 32); no weight decay on `share_H`.
    We differ: the paper is causal; here the distance is |i − j|, so z applies to both sides under patterns that
             allow later keys. Its code cuts all heads at the largest span; here each head has its own cut-off.
    """

    facts = Facts(
        name="adaptive_span",
        paper=Paper("Adaptive attention span in transformers", 2019, "arXiv:1905.07799"),
        formula="m(|i − j|) exp(q·k / √K) v / Σ,  m(δ) = clamp((R + z − δ) / R, 0, 1)",
        time="L·(z + R)·K",
        memory="L·K",
        cross="last",
        positional=True,
    )

    def __init__(self, *, heads: Heads = 1, longest: Size = 1024, ramp: Positive = 32.0, begin: NonNegative = 0.0):
        super().__init__()
        if begin > longest:
            raise BadConfig(f"AdaptiveSpanAttention: begin={begin}, longest={longest}; expected a begin of at most `longest`")
        self.heads, self.longest, self.ramp, self.begin = heads, longest, ramp, begin
        self.share_H = nn.Parameter(torch.full((heads,), begin / longest))  # z / longest, so that one learning rate fits all

    @classmethod
    def sized(cls, *, heads: int, head_dim: int, length: int) -> Self:
        return cls(heads=heads, longest=length)

    def span(self) -> Tensor:
        """span_H: the distance z up to which each head attends with full weight; from z + R on the weight is zero."""
        return self.longest * float32_or_wider(self.share_H).clamp(0, 1)

    def penalty(self) -> Tensor:
        """The mean span in tokens; add it to the loss so that heads attend no further than they need."""
        return self.span().mean()

    @torch.no_grad()
    def clamp_(self) -> None:
        """Clamp spans to [0, `longest`]; call it after every optimizer step, because the gradient is zero outside."""
        self.share_H.clamp_(0, 1)

    def _within(self, pattern: Pattern, length: int) -> Pattern:
        return pattern & self._near(length)

    def _weights(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        H, K = q_BLHK.shape[2:]
        scores_BHLM = torch.einsum("blhk,bmhk->bhlm", q_BLHK, share_heads(k_BMHK, H)) * K**-0.5 + call.scores_bias()
        scores_BHLM = scores_BHLM + call.evaluate(call.place_bias(_Fade(self.span(), self.ramp)))
        return softmax_where(scores_BHLM, call.mask())

    def _forward(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, call: Call) -> Tensor:
        span_H, L, M = self.span(), call.queries, call.keys
        faded = add_bias(call.place_bias(_Fade(span_H.detach(), self.ramp)), call.bias, L, M)
        if not (span_H.requires_grad and torch.is_grad_enabled()):
            return attend(q_BLHK, k_BMHK, v_BMHV, call.pattern, bias=faded)
        out_BLHV, lse_BHL = attend(q_BLHK, k_BMHK, v_BMHV, call.pattern, bias=faded, with_lse=True)
        with torch.no_grad():
            # ∂m/∂z is 1/R on the slope and 0 elsewhere, so ∂o/∂z = (weight on the slope) / R · (average over the slope − o):
            # one more attention, over the ramp. Differentiating every tile of the fade takes 1.3 to 2.3 times as long (4,096 tokens; LOG.md)
            length = M if call.cache is None else call.cache.length
            ramp = call.pattern & call.place(self._near(length, slope_only=True))
            slope = add_bias(call.place_bias(_Slope(span_H.detach(), self.ramp)), call.bias, L, M)
            ramp_BLHV, ramp_BHL = attend(q_BLHK, k_BMHK, v_BMHV, ramp, bias=slope, with_lse=True)
            share_BLH = (ramp_BHL - lse_BHL.masked_fill(lse_BHL == -torch.inf, 0)).exp().transpose(1, 2)
            change_BLHV = (ramp_BLHV - out_BLHV) * (share_BLH / self.ramp).to(out_BLHV.dtype).unsqueeze(-1)
        return out_BLHV + change_BLHV * (span_H - span_H.detach()).to(out_BLHV.dtype)[:, None]  # adds zero, with that gradient

    def _start(self, batch: int, pattern: Pattern) -> Cache:
        reach, known = max(self._reaches()), pattern.reach()
        if known is not None and not known[1]:  # sinks are not kept: distant keys have no weight here
            reach = min(reach, known[0])
        return Cache(batch, (reach, 0))

    def _reaches(self) -> list[int]:
        """The largest distance at which each head has weight."""
        return [math.ceil(edge) - 1 for edge in (self.span().detach() + self.ramp).tolist()]

    def _near(self, keys: int, slope_only: bool = False) -> Pattern:
        """The keys where a head has weight, or only those on its ramp, and a few more, which the bias masks."""
        rules: list[Pattern] = []
        for z, reach in zip(self.span().tolist(), self._reaches(), strict=True):
            furthest, flat = _coarse(reach), _coarse(math.ceil(z) - 1, -1)
            rule: Pattern = window(furthest) if furthest < keys else full
            rules.append(rule & ~window(flat) if slope_only and flat > 0 else rule)
        return rules[0] if len(set(rules)) == 1 else per_head(*rules)


def _coarse(distance: int, sign: int = 1) -> int:
    """Round up (down for sign −1) by an eighth to a quarter, so that tiles change only when a span has moved that far."""
    step = max(64, 1 << max(distance.bit_length() - 3, 0))
    return sign * -(-sign * distance // step) * step


class _Fade(Bias):
    """log m_z(|i − j|) per head, −inf from z + R on."""

    by_distance = True

    def __init__(self, span_H: Tensor, ramp: float):
        self.tensors, self.ramp = (span_H,), ramp

    def tile(self, i: Tensor, j: Tensor, *tensors: Tensor) -> Tensor:
        height_HLM = _ramp_height(i, j, tensors[0], self.ramp)
        tiny = torch.finfo(height_HLM.dtype).tiny
        return height_HLM.clamp(tiny, 1).log().masked_fill(height_HLM <= 0, -torch.inf)


class _Slope(_Fade):
    """0 on the ramp, z ≤ δ < z + R, where the weight changes with z; −inf elsewhere."""

    def tile(self, i: Tensor, j: Tensor, *tensors: Tensor) -> Tensor:
        height_HLM = _ramp_height(i, j, tensors[0], self.ramp)
        return torch.zeros_like(height_HLM).masked_fill((height_HLM <= 0) | (height_HLM > 1), -torch.inf)


def _ramp_height(i: Tensor, j: Tensor, span_H: Tensor, ramp: float) -> Tensor:
    """(R + z − δ) / R"""
    return (span_H[:, None, None] + ramp - (i[:, None] - j).abs()) / ramp
