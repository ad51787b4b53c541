"""A matrix that every token decays and writes to, and every query reads: what gated linear attentions and delta rules share."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, softplus

from ..errors import ShapeError
from ..kernels import Bias, delta, scan
from ..patterns import Pattern, causal, full
from ._base import Attention, pattern_rows, share_heads
from ._kernel import hide, keys_seen
from ._state import Running, State, running

PATTERNS = ("causal", "lengths", "since")


class Terms(NamedTuple):
    """What a token reads with, where it writes, what is left of all before it, and how much of the old answer it takes away."""

    q_BLHF: Tensor
    k_BMHF: Tensor
    log_decay: Tensor | None = None  # (B, M, H), or (B, M, H, F) a feature; ≤ 0
    beta_BMH: Tensor | None = None  # None: nothing is taken away, values add up


class Recurrence(Attention):
    r"""A state of fixed size goes along the sequence, and weights between tokens are what it does to them on the way.

    $$S_t = \gamma_t \circ S_{t-1} + k_t\, u_t^\top, \qquad o_t = S_t^\top q_t, \qquad
      u_t = v_t \;\text{ or }\; \beta_t\big(v_t - (\gamma_t \circ S_{t-1})^\top k_t\big)$$

    The hole is `terms`. A token that may not be seen (padding, another document) writes nothing and decays nothing.
    """

    def terms(self, q_BLHK: Tensor, k_BMHK: Tensor, extra_BMHE: Tensor) -> Terms:
        """From queries, keys and extra numbers in float32 or wider, with as many heads each."""
        raise NotImplementedError

    def weights(self, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None) -> Tensor:
        return self.weights_of(torch.arange(q_BLHK.shape[1], device=q_BLHK.device), q_BLHK, k_BMHK, pattern, bias)

    def weights_of(
        self, rows: Tensor, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None
    ) -> Tensor:
        self.check(q_BLHK, k_BMHK, None, pattern, bias)
        return self._weights(rows, q_BLHK, k_BMHK, k_BMHK[..., :0], pattern)

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
        return self._read(q_BLHK, k_BMHK, v_BMHV, k_BMHK[..., :0], pattern, state)

    def start(self, batch: int, pattern: Pattern = causal) -> Running:
        return Running(batch)

    def _weights(self, rows: Tensor, q_BLHK: Tensor, k_BMHK: Tensor, extra_BMHE: Tensor, pattern: Pattern) -> Tensor:
        """Without a recurrence: (q kᵀ ∘ D), where something is taken away times (I + β (k kᵀ ∘ D) below the diagonal)⁻¹ β."""
        L, M, device = q_BLHK.shape[1], k_BMHK.shape[1], q_BLHK.device
        q, k, log_decay, beta = self._terms(q_BLHK, k_BMHK, extra_BMHE, pattern)
        mask_BHLM = pattern_rows(pattern, rows, L, M).mask(len(rows), M, device)
        run = None if log_decay is None else log_decay.cumsum(1)
        run_of_rows = None if run is None else pad(run, (0, 0, 0, 0, 1, 0))[:, (rows + M - L).clamp(min=-1) + 1]
        weights_BHLM = _pairs(q[:, rows], k, run_of_rows, run, mask_BHLM)
        if beta is not None:
            beta_BHM = beta.transpose(1, 2)
            earlier = torch.ones(M, M, dtype=torch.bool, device=device).tril(-1)
            taken_BHMM = beta_BHM.unsqueeze(-1) * _pairs(k, k, run, run, earlier)
            weights_BHLM = torch.linalg.solve_triangular(taken_BHMM, weights_BHLM, upper=False, left=False, unitriangular=True)
            weights_BHLM = weights_BHLM * beta_BHM.unsqueeze(-2)
        return weights_BHLM.to(q_BLHK.dtype)

    def _read(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, extra_BMHE: Tensor, pattern: Pattern, state: State | None) -> Tensor:
        (L, H), M = q_BLHK.shape[1:3], k_BMHK.shape[1]
        past = None if state is None else running(state)
        if past is not None and L > M:
            raise ShapeError(f"step by step every query comes with a key of its own, got {L} queries and {M} keys")
        q, k, log_decay, beta = self._terms(q_BLHK, k_BMHK, extra_BMHE, pattern, past)
        v = share_heads(v_BMHV, H)
        before = None if past is None else past.sum("kv", (H, k.shape[-1], v.shape[-1]), k)
        # positions are aligned at the end: queries before the first key see nothing, keys before the first query need none
        q = q[:, L - M :] if L > M else pad(q, (0, 0, 0, 0, M - L, 0))
        if log_decay is not None and log_decay.shape[-1] == 1:
            log_decay = log_decay.squeeze(-1)
        out, after = scan(q, k, v, log_decay, before) if beta is None else delta(q, k, v, beta, log_decay, before)
        if past is not None:
            past.move(k_BMHK, extra_BMHE, kv=after)
        return pad(out, (0, 0, 0, 0, L - M, 0)) if L > M else out[:, M - L :]

    def _terms(
        self, q_BLHK: Tensor, k_BMHK: Tensor, extra_BMHE: Tensor, pattern: Pattern, past: Running | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """`terms` under a pattern; decay is (B, M, H, 1 or F)."""
        precise = torch.promote_types(q_BLHK.dtype, torch.float32)
        k_of_heads, extra = (share_heads(x, q_BLHK.shape[2]).to(precise) for x in (k_BMHK, extra_BMHE))
        q, k, log_decay, beta = self.terms(q_BLHK.to(precise), k_of_heads, extra)
        seen_BM = keys_seen(pattern, k_BMHK, past)
        if log_decay is not None:
            log_decay = hide(log_decay if log_decay.dim() == 4 else log_decay.unsqueeze(-1), seen_BM)
        return q, hide(k, seen_BM), log_decay, beta


class GatedRecurrence(Recurrence):
    """One whose tokens say by extra numbers how much is forgotten, or how much is written."""

    def weights(
        self,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        pattern: Pattern = full,
        bias: Tensor | Bias | None = None,
        *,
        extra_BMHE: Tensor | None = None,
    ) -> Tensor:
        rows = torch.arange(q_BLHK.shape[1], device=q_BLHK.device)
        return self.weights_of(rows, q_BLHK, k_BMHK, pattern, bias, extra_BMHE=extra_BMHE)

    def weights_of(
        self,
        rows: Tensor,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        pattern: Pattern = full,
        bias: Tensor | Bias | None = None,
        *,
        extra_BMHE: Tensor | None = None,
    ) -> Tensor:
        self.check(q_BLHK, k_BMHK, None, pattern, bias)
        return self._weights(rows, q_BLHK, k_BMHK, self.check_extra(k_BMHK, extra_BMHE), pattern)

    def forward(
        self,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        v_BMHV: Tensor,
        pattern: Pattern = full,
        bias: Tensor | Bias | None = None,
        state: State | None = None,
        *,
        extra_BMHE: Tensor | None = None,
    ) -> Tensor:
        self.check(q_BLHK, k_BMHK, v_BMHV, pattern, bias, state)
        return self._read(q_BLHK, k_BMHK, v_BMHV, self.check_extra(k_BMHK, extra_BMHE), pattern, state)


class Clock(nn.Module):
    """How much time passes at a token, Δ = softplus(x + b), and what it does to the state of a head: log γ = −a Δ.

    a begins between 1 and 16 and Δ between 0.001 and 0.1, as in Mamba: some heads remember a few tokens, others a thousand.
    """

    def __init__(self, heads: int):
        super().__init__()
        step = 10 ** torch.empty(heads).uniform_(-3, -1)
        self.log_rate_H = nn.Parameter(torch.empty(heads).uniform_(1, 16).log_())
        self.bias_H = nn.Parameter(step + torch.log(-torch.expm1(-step)))  # softplus of it is the step

    def forward(self, x_BMH: Tensor) -> tuple[Tensor, Tensor]:
        """Δ and log γ."""
        if x_BMH.shape[-1] != len(self.bias_H):
            raise ShapeError(
                f"this mechanism was made for {len(self.bias_H)} heads, each with a pace of its own, and is given {x_BMH.shape[-1]}; "
                "make it with as many as MultiHead has"
            )
        step_BMH = softplus(x_BMH + self.bias_H.to(x_BMH.dtype))
        return step_BMH, -self.log_rate_H.to(x_BMH.dtype).exp() * step_BMH


def _pairs(q_BLHF: Tensor, k_BMHF: Tensor, run_q: Tensor | None, run_k: Tensor | None, mask: Tensor) -> Tensor:
    """Products, each feature decayed on the way from key to query: Σ_f q_if k_jf exp(run_if − run_jf), zero outside the mask."""
    if run_q is None or run_k is None:
        return torch.einsum("blhf,bmhf->bhlm", q_BLHF, k_BMHF) * mask
    total, parts = torch.zeros((), dtype=q_BLHF.dtype, device=q_BLHF.device), run_k.shape[-1]
    for q, k, run_i, run_j in zip(*(x.chunk(parts, -1) for x in (q_BLHF, k_BMHF, run_q, run_k)), strict=True):
        between = run_i.permute(0, 2, 1, 3) - run_j.permute(0, 2, 3, 1)
        left_BHLM = between.masked_fill(~mask, -torch.inf).exp()  # before the exponential: against time it would overflow
        total = total + left_BHLM * torch.einsum("blhf,bmhf->bhlm", q, k)
    return total
