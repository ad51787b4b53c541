"""A matrix that each token decays and writes to, and each query reads: what gated linear attentions and delta rules share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, softplus

from ..errors import ShapeError
from ..kernels import delta_scan, scan
from ._base import Attention, Call, Facts
from ._feature_map import recurrent
from ._recurrent_state import RecurrentState
from ._state import State
from .helpers import float32_or_wider, hide_keys, share_heads

CAUSAL_PATTERNS = ("causal", "lengths", "since")


@dataclass(frozen=True, kw_only=True)
class RecurrentFacts(Facts):
    """Facts of mechanisms whose weights are what a recurrence makes of them."""

    patterns: Literal["any"] | tuple[str, ...] = CAUSAL_PATTERNS
    state: type[State] | None = RecurrentState
    normalised: bool = False
    positional: bool = True
    bias: bool = False


class Terms(NamedTuple):
    """Terms of the recurrence: a token reads with q, writes to k, keeps a share of the past, and removes a share β of the old value."""

    q_BLHF: Tensor  # features of queries
    k_BMHF: Tensor  # features of keys
    log_decay: Tensor | None = None  # (B, M, H), or (B, M, H, F) per feature; ≤ 0
    beta_BMH: Tensor | None = None  # None: nothing is removed, values add up


class RecurrentAttention(Attention):
    r"""A state of fixed size is carried along the sequence; the weight of a pair is what the recurrence makes of it.

    $$S_t = \gamma_t \circ S_{t-1} + k_t\, u_t^\top, \qquad o_t = S_t^\top q_t, \qquad
      u_t = v_t \;\text{ or }\; \beta_t\big(v_t - (\gamma_t \circ S_{t-1})^\top k_t\big)$$

    Write `terms`, and `facts` as `RecurrentFacts`. Tokens that are not allowed (padding, another document) write nothing and decay nothing.

    Shape: q_BLHK, k_BMHK, v_BMHV, gates_BMHE → out_BLHV; weights_BHLM.
    """

    def terms(self, q_BLHK: Tensor, k_BMHK: Tensor, gates_BMHE: Tensor) -> Terms:
        """From queries, keys and gates (E = `self.gates`) in float32 or wider, with the same number of heads.

        Args:
            q_BLHK: queries.
            k_BMHK: keys.
            gates_BMHE: gates per key token and head.
        """
        raise NotImplementedError

    def _weights(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        """Without a recurrence: (q kᵀ ∘ D), times (I + β (k kᵀ ∘ D) below the diagonal)⁻¹ β where values are removed."""
        q, k, log_decay, beta = self._allowed_terms(q_BLHK, k_BMHK, call)
        run = None if log_decay is None else log_decay.cumsum(1)
        run_of_rows = None if run is None else pad(run, (0, 0, 0, 0, 1, 0))[:, call.query_index().clamp(min=-1) + 1]
        weights_BHLM = _decayed_products(q, k, run_of_rows, run, call.mask())
        if beta is not None:
            beta_BHM = beta.transpose(1, 2)
            earlier_MM = torch.ones(call.keys, call.keys, dtype=torch.bool, device=call.device).tril(-1)
            removed_BHMM = beta_BHM.unsqueeze(-1) * _decayed_products(k, k, run, run, earlier_MM)
            weights_BHLM = torch.linalg.solve_triangular(removed_BHMM, weights_BHLM, upper=False, left=False, unitriangular=True)
            weights_BHLM = weights_BHLM * beta_BHM.unsqueeze(-2)
        return weights_BHLM.to(q_BLHK.dtype)

    def _forward(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, call: Call) -> Tensor:
        L, M, past = call.queries, call.keys, recurrent(call)
        if past is not None and L > M:
            raise ShapeError(f"in a stream each query comes with its own key, got {L} queries and {M} keys")
        q, k, log_decay, beta = self._allowed_terms(q_BLHK, k_BMHK, call)
        v = share_heads(v_BMHV, q_BLHK.shape[2])
        before = None if past is None else past.sum("kv", (v.shape[2], k.shape[-1], v.shape[-1]), k)
        # positions are aligned at the end: queries before the first key read nothing, keys before the first query need no output
        q = q[:, L - M :] if L > M else pad(q, (0, 0, 0, 0, M - L, 0))
        if log_decay is not None and log_decay.shape[-1] == 1:
            log_decay = log_decay.squeeze(-1)
        out, after = scan(q, k, v, log_decay, before) if beta is None else delta_scan(q, k, v, beta, log_decay, before)
        if past is not None:
            past.move(k_BMHK, call.gates_BMHE, kv=after)
        return pad(out, (0, 0, 0, 0, L - M, 0)) if L > M else out[:, M - L :]

    def _allowed_terms(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Terms:
        """`terms` under the pattern; decay is (B, M, H, 1 or F)."""
        gates_BMHE = k_BMHK[..., :0] if call.gates_BMHE is None else call.gates_BMHE
        k, gates = (float32_or_wider(share_heads(x, q_BLHK.shape[2])) for x in (k_BMHK, gates_BMHE))
        terms = self.terms(float32_or_wider(q_BLHK), k, gates)
        allowed_BM, log_decay = call.keys_allowed(), terms.log_decay
        if log_decay is not None:
            log_decay = hide_keys(log_decay if log_decay.dim() == 4 else log_decay.unsqueeze(-1), allowed_BM)
        return Terms(terms.q_BLHF, hide_keys(terms.k_BMHF, allowed_BM), log_decay, terms.beta_BMH)


class Clock(nn.Module):
    """The time step of a token, Δ = softplus(x + b), and the resulting decay of a head's state, log γ = −a Δ.

    Initially a is between 1 and 16 and Δ between 0.001 and 0.1, as in Mamba: some heads remember a few tokens, others a thousand.
    """

    def __init__(self, heads: int):
        super().__init__()
        self.log_rate_H = nn.Parameter(initial_log_rates(heads))
        self.bias_H = nn.Parameter(initial_step_biases(heads))

    def forward(self, x_BMH: Tensor) -> tuple[Tensor, Tensor]:
        """Δ and log γ."""
        step_BMH = softplus(x_BMH + self.bias_H.to(x_BMH.dtype))
        return step_BMH, -self.log_rate_H.to(x_BMH.dtype).exp() * step_BMH


def initial_log_rates(*shape: int) -> Tensor:
    """log a of a `Clock`: a is drawn uniformly from 1 to 16."""
    return torch.empty(shape).uniform_(1, 16).log_()


def initial_step_biases(*shape: int) -> Tensor:
    """b of a `Clock`: softplus(b), the step of a gate of zero, is between 0.001 and 0.1, uniform in its logarithm."""
    step = 10 ** torch.empty(shape).uniform_(-3, -1)
    return step + torch.log(-torch.expm1(-step))


def _decayed_products(q_BLHF: Tensor, k_BMHF: Tensor, run_q: Tensor | None, run_k: Tensor | None, mask: Tensor) -> Tensor:
    """Dot products with each feature decayed from key to query: Σ_f q_if k_jf exp(run_if − run_jf), zero outside the mask."""
    if run_q is None or run_k is None:
        return torch.einsum("blhf,bmhf->bhlm", q_BLHF, k_BMHF) * mask
    total, groups = torch.zeros((), dtype=q_BLHF.dtype, device=q_BLHF.device), run_k.shape[-1]
    for q, k, run_i, run_j in zip(*(x.chunk(groups, -1) for x in (q_BLHF, k_BMHF, run_q, run_k)), strict=True):
        between = run_i.permute(0, 2, 1, 3) - run_j.permute(0, 2, 3, 1)
        decay_BHLM = between.masked_fill(~mask, -torch.inf).exp()  # masked before exp, which would overflow for later keys
        total = total + decay_BHLM * torch.einsum("blhf,bmhf->bhlm", q, k)
    return total
