"""Hard attention: look at one key only, drawn from the softmax."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..kernels import Bias
from ..patterns import Pattern, causal, full
from ._base import Attention, Facts, bias_of, bias_rows, pattern_rows, share_heads
from ._scored import by_rows
from ._state import Cache, State, remembered


class Choice(NamedTuple):
    """Which key each query looks at, and what REINFORCE needs: gradients flow through the last two."""

    index_BHL: Tensor  # −1 where a query may look nowhere
    log_prob_BHL: Tensor  # of the key that was chosen; 0 where there is none
    entropy_BHL: Tensor


class HardAttention(Attention):
    r"""Each query looks at exactly one key, drawn with the probabilities that softmax attention would average by.

    $$o_i = v_{s_i}, \qquad s_i \sim \mathrm{Categorical}_j\big(\mathrm{softmax}_j(q_i^\top k_j / \sqrt{K} + b_{ij})\big)$$

    Cost:    time O(L·M·K) for the probabilities, memory a chunk of rows; the values are fetched, not averaged: O(L·V).
    Use it:  where a decision must be one thing: a glimpse, a pointer, an explanation that hides nothing.
    Avoid it: where soft attention will do: the draw has no gradient. Queries and keys learn by REINFORCE only, from
             `choose`, whose gradients are noisy; `forward` alone trains the values alone.
    Limits:  under `sample=False` the likeliest key is taken, always. Training and evaluation make no difference; set
             `attention.sample` yourself. Draws come from `generator`, or from PyTorch's own: seed it to repeat them.
    Paper:   Xu et al. 2015, "Show, attend and tell", arXiv:1502.03044, section 4.1.
    We differ: the score is the scaled dot product, not the paper's additive one. The baseline, the entropy's share and the
             half of steps that use the soft average belong to the training that uses `choose`:

        choice = attention.choose(q, k, pattern)
        out = attention.read(v, choice)                       # what forward gives for this choice
        loss = -(log_p + (log_p - baseline).detach() * choice.log_prob_BHL + 0.01 * choice.entropy_BHL).mean()
    """

    facts = Facts(
        name="hard",
        year=2015,
        title="Show, attend and tell: neural image caption generation with visual attention",
        paper="arXiv:1502.03044",
        formula="v_s,  s ~ softmax(q·k / √K)",
        time="L·M·K",
        memory="L",
        random=True,
    )

    def __init__(self, *, sample: bool = True, generator: torch.Generator | None = None):
        super().__init__()
        self.sample, self.generator = sample, generator

    def choose(self, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None) -> Choice:
        """One key for each query, its log-probability, and the entropy of the choice."""
        self.check(q_BLHK, k_BMHK, None, pattern, bias)
        return _choose(q_BLHK, k_BMHK, pattern, bias, self._draw(q_BLHK))

    def read(self, v_BMHV: Tensor, choice: Choice) -> Tensor:
        """The values that were chosen, out_BLHV."""
        return _fetch(v_BMHV, choice.index_BHL)

    def weights(self, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None) -> Tensor:
        index_BHL = self.choose(q_BLHK, k_BMHK, pattern, bias).index_BHL
        return (index_BHL.unsqueeze(-1) == torch.arange(k_BMHK.shape[1], device=q_BLHK.device)).to(q_BLHK.dtype)

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
        if state is not None:
            k_BMHK, v_BMHV, pattern, bias = remembered(state, q_BLHK, k_BMHK, v_BMHV, pattern, bias)
        (B, L, H), M = q_BLHK.shape[:3], k_BMHK.shape[1]
        draw_BHL = self._draw(q_BLHK)

        def look(rows: Tensor) -> Tensor:
            here, added = pattern_rows(pattern, rows, L, M), bias_rows(bias, rows, L, M)
            draw = None if draw_BHL is None else draw_BHL[:, :, rows]
            return _choose(q_BLHK[:, rows], k_BMHK, here, added, draw).index_BHL.transpose(1, 2)

        with torch.no_grad():
            index_BLH = by_rows(look, L, B * H * M, q_BLHK.device)
        return _fetch(v_BMHV, index_BLH.transpose(1, 2))

    def start(self, batch: int, pattern: Pattern = causal) -> Cache:
        return Cache(batch, pattern.reach())

    def _draw(self, q_BLHK: Tensor) -> Tensor | None:
        """A number in [0, 1) for each query. Queries come first, so that steps draw what one pass would."""
        if not self.sample:
            return None
        (B, L, H), device = q_BLHK.shape[:3], q_BLHK.device if self.generator is None else self.generator.device
        draw_LBH = torch.rand(L, B, H, generator=self.generator, dtype=torch.float64, device=device)
        return draw_LBH.permute(1, 2, 0).to(q_BLHK.device)

    def extra_repr(self) -> str:
        return f"sample={self.sample}"


def _choose(q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern, bias: Tensor | Bias | None, draw_BHL: Tensor | None) -> Choice:
    (L, H, K), M, device = q_BLHK.shape[1:], k_BMHK.shape[1], q_BLHK.device
    scores_BHLM = torch.einsum("blhk,bmhk->bhlm", q_BLHK, share_heads(k_BMHK, H)) * K**-0.5 + bias_of(bias, L, M, device)
    scores_BHLM = scores_BHLM.to(torch.promote_types(q_BLHK.dtype, torch.float32))
    seen_BHLM = pattern.mask(L, M, device) & (scores_BHLM > -torch.inf)
    some_BHL = seen_BHLM.any(-1)
    if not M:
        zeros = scores_BHLM.sum(-1)
        return Choice(torch.full_like(zeros, -1, dtype=torch.long), zeros, zeros)
    # a row that may look nowhere gets equal scores, so that its softmax and its gradient are finite, and is emptied below
    log_p_BHLM = scores_BHLM.masked_fill(~seen_BHLM, -torch.inf).masked_fill(~some_BHL.unsqueeze(-1), 0).log_softmax(-1)
    p_BHLM = log_p_BHLM.exp()
    log_p_BHLM = log_p_BHLM.masked_fill(~seen_BHLM, 0)
    if draw_BHL is None:
        index_BHL = p_BHLM.masked_fill(~seen_BHLM, -1).argmax(-1)
    else:  # the key in whose share of [0, 1) the draw falls; keys that may not be seen have no share
        sums_BHLM = p_BHLM.detach().double().cumsum(-1)
        total_BHL1 = sums_BHLM[..., -1:]
        index_BHL = ((sums_BHLM <= draw_BHL.unsqueeze(-1) * total_BHL1) & (sums_BHLM < total_BHL1)).sum(-1)
    log_prob_BHL = log_p_BHLM.gather(-1, index_BHL.unsqueeze(-1)).squeeze(-1)
    entropy_BHL = -(p_BHLM * log_p_BHLM).sum(-1)
    return Choice(index_BHL.masked_fill(~some_BHL, -1), log_prob_BHL.masked_fill(~some_BHL, 0), entropy_BHL.masked_fill(~some_BHL, 0))


def _fetch(v_BMHV: Tensor, index_BHL: Tensor) -> Tensor:
    """The value at each index, out_BLHV; zeros at −1."""
    (B, M, G, V), H, device = v_BMHV.shape, index_BHL.shape[1], index_BHL.device
    if not M:
        return v_BMHV.new_zeros(B, index_BHL.shape[2], H, V)
    row_B11, head_H1 = torch.arange(B, device=device)[:, None, None], torch.arange(H, device=device)[:, None] * G // max(H, 1)
    out_BHLV = v_BMHV[row_B11, index_BHL.clamp(min=0), head_H1]
    return out_BHLV.masked_fill((index_BHL < 0).unsqueeze(-1), 0).transpose(1, 2)
