"""Hard attention: each query attends to a single key, sampled from the softmax."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..kernels import Bias
from ..patterns import Pattern, full
from ._base import Attention, Call, Facts, Paper
from .helpers import by_rows, float32_or_wider, no_autocast, share_heads


class Choice(NamedTuple):
    """The key each query attends to, and what REINFORCE needs: gradients flow through the last two."""

    index_BHL: Tensor  # −1 where no key is allowed
    log_prob_BHL: Tensor  # log-probability of the chosen key; 0 where there is none
    entropy_BHL: Tensor  # entropy of the probabilities, in nats


class HardAttention(Attention):
    r"""Each query attends to exactly one key, sampled with the probabilities of softmax attention.

    $$o_i = v_{s_i}, \qquad s_i \sim \mathrm{Categorical}_j\big(\mathrm{softmax}_j(q_i^\top k_j / \sqrt{K} + b_{ij})\big)$$

    Cost:    time O(L·M·K) for the probabilities, memory one chunk of rows; values are gathered, not averaged: O(L·V).
    Use it:  where a decision must be discrete: a glimpse, a pointer, an explanation that hides nothing.
    Avoid it: where soft attention will do: sampling has no gradient. Queries and keys learn only by REINFORCE,
             through `choose`, whose gradients are noisy; `forward` alone trains the values only.
    Limits:  `sample=False` always takes the most likely key. Training and evaluation mode do not differ; set `attention.sample`
             yourself. Samples come from `generator`, or from PyTorch's global one: seed it to reproduce them.
    Args:
        sample: sample the key; False: take the most likely one.
        generator: random number generator of the samples; None: PyTorch's global one.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Xu et al. 2015, "Show, attend and tell", arXiv:1502.03044, section 4.1.
    We differ: the score is the scaled dot product, not the paper's additive one. The baseline, the weight of the
             entropy and the half of the steps that use the soft average belong to the training loop around `choose`:

        choice = attention.choose(q, k, pattern)
        out = attention.read(v, choice)                       # what forward returns for this choice
        loss = -(log_p + (log_p - baseline).detach() * choice.log_prob_BHL + 0.01 * choice.entropy_BHL).mean()
    """

    facts = Facts(
        name="hard",
        paper=Paper("Show, attend and tell: neural image caption generation with visual attention", 2015, "arXiv:1502.03044"),
        formula="v_s,  s ~ softmax(q·k / √K)",
        time="L·M·K",
        memory="L",
    )

    def __init__(self, *, sample: bool = True, generator: torch.Generator | None = None):
        super().__init__()
        self.sample, self.generator = sample, generator

    def choose(self, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None) -> Choice:
        """One key per query, its log-probability, and the entropy of the distribution.

        Args:
            q_BLHK: queries.
            k_BMHK: keys.
            pattern: pairs that are allowed.
            bias: added to scores, a tensor that broadcasts to (B, H, L, M) or a `Bias`; None: none.
        """
        self._check(q_BLHK, k_BMHK, None, pattern, bias, None)
        call = Call(pattern, bias, None, q_BLHK.shape[1], k_BMHK.shape[1], q_BLHK.device)
        return _choose(q_BLHK, k_BMHK, call, self._draw(q_BLHK))

    def read(self, v_BMHV: Tensor, choice: Choice) -> Tensor:
        """The chosen values, out_BLHV."""
        return _gather_values(v_BMHV, choice.index_BHL)

    def _weights(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        index_BHL = _choose(q_BLHK, k_BMHK, call, self._draw(q_BLHK)).index_BHL
        return (index_BHL.unsqueeze(-1) == torch.arange(call.keys, device=call.device)).to(q_BLHK.dtype)

    def _forward(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, call: Call) -> Tensor:
        draw_BHL, index_BL1H = self._draw(q_BLHK), q_BLHK.new_empty(*q_BLHK.shape[:2], 1, 1, dtype=torch.long)

        def choose_rows(rows: Tensor) -> Tensor:
            draw = None if draw_BHL is None else draw_BHL[:, :, rows]
            return _choose(q_BLHK[:, rows], k_BMHK, call.of_rows(rows), draw).index_BHL.transpose(1, 2).unsqueeze(-1)

        with torch.no_grad():
            index_BLH1 = by_rows(choose_rows, q_BLHK, index_BL1H, q_BLHK.shape[2] * call.keys)
        return _gather_values(v_BMHV, index_BLH1.squeeze(-1).transpose(1, 2))

    def _draw(self, q_BLHK: Tensor) -> Tensor | None:
        """A uniform number in [0, 1) per query. The query axis comes first, so that a stream draws the same as one pass."""
        if not self.sample:
            return None
        (B, L, H), device = q_BLHK.shape[:3], q_BLHK.device if self.generator is None else self.generator.device
        draw_LBH = torch.rand(L, B, H, generator=self.generator, dtype=torch.float64, device=device)
        return draw_LBH.permute(1, 2, 0).to(q_BLHK.device)


@no_autocast
def _choose(q_BLHK: Tensor, k_BMHK: Tensor, call: Call, draw_BHL: Tensor | None) -> Choice:
    H, K = q_BLHK.shape[2:]
    q_BLHK, k_BMHK = float32_or_wider(q_BLHK), float32_or_wider(share_heads(k_BMHK, H))  # rounded scores would choose other keys
    scores_BHLM = torch.einsum("blhk,bmhk->bhlm", q_BLHK, k_BMHK) * K**-0.5 + call.scores_bias()
    allowed_BHLM = call.mask() & (scores_BHLM > -torch.inf)
    some_BHL = allowed_BHLM.any(-1)
    if not call.keys:
        zeros = scores_BHLM.sum(-1)
        return Choice(torch.full_like(zeros, -1, dtype=torch.long), zeros, zeros)
    # a row without allowed keys gets equal scores, so that its softmax and gradient are finite; it is cleared below
    log_p_BHLM = scores_BHLM.masked_fill(~allowed_BHLM, -torch.inf).masked_fill(~some_BHL.unsqueeze(-1), 0).log_softmax(-1)
    p_BHLM = log_p_BHLM.exp()
    log_p_BHLM = log_p_BHLM.masked_fill(~allowed_BHLM, 0)
    if draw_BHL is None:
        index_BHL = p_BHLM.masked_fill(~allowed_BHLM, -1).argmax(-1)
    else:  # the key whose share of [0, 1) contains the draw; masked keys have no share
        sums_BHLM = p_BHLM.detach().double().cumsum(-1)
        total_BHL1 = sums_BHLM[..., -1:]
        index_BHL = ((sums_BHLM <= draw_BHL.unsqueeze(-1) * total_BHL1) & (sums_BHLM < total_BHL1)).sum(-1)
    log_prob_BHL = log_p_BHLM.gather(-1, index_BHL.unsqueeze(-1)).squeeze(-1)
    entropy_BHL = -(p_BHLM * log_p_BHLM).sum(-1)
    return Choice(index_BHL.masked_fill(~some_BHL, -1), log_prob_BHL.masked_fill(~some_BHL, 0), entropy_BHL.masked_fill(~some_BHL, 0))


def _gather_values(v_BMHV: Tensor, index_BHL: Tensor) -> Tensor:
    """The value at each index, out_BLHV; zeros at −1."""
    (B, M, G, V), H, device = v_BMHV.shape, index_BHL.shape[1], index_BHL.device
    if not M:
        return v_BMHV.new_zeros(B, index_BHL.shape[2], H, V)
    row_B11, head_H1 = torch.arange(B, device=device)[:, None, None], torch.arange(H, device=device)[:, None] * G // max(H, 1)
    out_BHLV = v_BMHV[row_B11, index_BHL.clamp(min=0), head_H1]
    return out_BHLV.masked_fill((index_BHL < 0).unsqueeze(-1), 0).transpose(1, 2)
