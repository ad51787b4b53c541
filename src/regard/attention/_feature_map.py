"""Weights that are dot products of features: the base of linear attention mechanisms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..errors import ShapeError
from ..kernels import scan
from ._base import Attention, Call, Facts
from ._recurrent_state import RecurrentState
from ._state import State
from .helpers import hide_keys, is_causal, last_tokens, no_autocast, share_heads

KEY_PATTERNS = ("full", "causal", "lengths", "since")  # a key is allowed for all queries or for none, except by causal


@dataclass(frozen=True, kw_only=True)
class FeatureMapFacts(Facts):
    """Facts of mechanisms whose weights are dot products of features."""

    patterns: Literal["any"] | tuple[str, ...] = KEY_PATTERNS
    state: type[State] | None = RecurrentState
    bias: bool = False


class FeatureMapAttention(Attention):
    r"""A map φ turns queries and keys into features, whose dot products weight the values.

    $$o_i = \frac{\sum_j \big(\phi(q_i)^\top \phi(k_j)\big)\, v_j}{\sum_j \phi(q_i)^\top \phi(k_j)}
          = \frac{\big(\sum_j v_j\, \phi(k_j)^\top\big)\, \phi(q_i)}{\big(\sum_j \phi(k_j)\big)^\top \phi(q_i)}$$

    The sums over j are computed once for all queries, or, causally, along the sequence; they are all that a state holds. Write
    `features`, which is φ, and `facts` as `FeatureMapFacts`. Optional: `divide`.

    Shape: q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    """

    def features(self, x_BLHK: Tensor, positions_BL: Tensor) -> Tensor:
        """φ(x) of queries or of keys at these positions, x_BLHF, in float32 or wider."""
        raise NotImplementedError

    def divide(self, numerator: Tensor, denominator: Tensor) -> Tensor:
        """The quotient; zero where no key is allowed and the denominator is zero. Positive features never give zero elsewhere."""
        return numerator / denominator.masked_fill(denominator == 0, 1)

    def _weights(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        q_BLHF = self.features(q_BLHK, call.query_positions())
        k_BMHF = self.features(share_heads(k_BMHK, q_BLHK.shape[2]), call.key_positions())
        products_BHLM = torch.einsum("blhf,bmhf->bhlm", q_BLHF, k_BMHF) * call.mask()
        return self.divide(products_BHLM, products_BHLM.sum(-1, keepdim=True)).to(q_BLHK.dtype)

    @no_autocast
    def _forward(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, call: Call) -> Tensor:
        past = recurrent(call)
        q_BLHF = self.features(q_BLHK, call.query_positions())
        k_BMHF = self.features(share_heads(k_BMHK, q_BLHK.shape[2]), call.key_positions())
        k_BMHF = hide_keys(k_BMHF, call.keys_allowed())
        out_BLHV, after = self.average(q_BLHF, k_BMHF, v_BMHV, is_causal(call.pattern), past)
        if past is not None:
            past.move(k_BMHK, kv=after)
        return out_BLHV

    def average(
        self, q_BLHF: Tensor, k_BMHF: Tensor, v_BMHV: Tensor, causal: bool, past: RecurrentState | None, log_decay: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """out_BLHV, and the sums after the last key; `log_decay` per head or feature: how much of the sums each key keeps.

        Args:
            q_BLHF: features of queries.
            k_BMHF: features of keys.
            v_BMHV: values.
            causal: sums along the sequence; False: over all keys.
            past: state whose sums come before; None: none do.
            log_decay: logarithm of the share that each key keeps; None: all of it.
        """
        H, F = q_BLHF.shape[2:]
        v_BMHV1 = pad(share_heads(v_BMHV, H).to(k_BMHF.dtype), (0, 1), value=1.0)  # the column of ones sums the features alone
        before = None if past is None else past.sum("kv", (H, F, v_BMHV1.shape[-1]), k_BMHF)
        out_BLHV1, after = weighted_sums(q_BLHF, k_BMHF, v_BMHV1, causal, before, log_decay)
        return self.divide(out_BLHV1[..., :-1], out_BLHV1[..., -1:]).to(v_BMHV.dtype), after


def recurrent(call: Call) -> RecurrentState | None:
    """The state of the call, which the base class has checked to be of this kind."""
    assert call.state is None or isinstance(call.state, RecurrentState)
    return call.state


def weighted_sums(
    q_BLHF: Tensor, k_BMHF: Tensor, v_BMHV: Tensor, causal: bool, state_BHFV: Tensor | None, log_decay: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Σ_j (q_i·k_j) v_j over all keys, or those up to the query, and the sum of all k_j v_jᵀ; on top of what `state_BHFV` holds."""
    L, M = q_BLHF.shape[1], k_BMHF.shape[1]
    if not causal:
        state = torch.einsum("bmhf,bmhv->bhfv", k_BMHF, v_BMHV)
        state = state if state_BHFV is None else state_BHFV + state
        return torch.einsum("blhf,bhfv->blhv", q_BLHF, state), state
    if state_BHFV is not None and L > M:
        raise ShapeError(f"in a causal stream each query comes with its own key, got {L} queries and {M} keys")
    # queries before the first key have nothing to attend to, and keys before the first query need no output
    out_BMHV, state = scan(last_tokens(q_BLHF, M), k_BMHF, v_BMHV, log_decay, state_BHFV)
    return last_tokens(out_BMHV, L), state
