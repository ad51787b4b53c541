"""Weights that are products of features: what linear attentions have in common."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..errors import ShapeError
from ..kernels import Bias, scan
from ..patterns import Causal, Full, Pattern, causal, full
from ._base import Attention, factors, pattern_rows, share_heads, unmixed
from ._scored import fits
from ._state import Running, State, places, running

PATTERNS = ("full", "causal", "lengths", "since")  # a key is seen by all queries or by none, but for those before it


class Kernel(Attention):
    r"""A map φ turns queries and keys into features, and their products weigh the values.

    $$o_i = \frac{\sum_j \big(\phi(q_i)^\top \phi(k_j)\big)\, v_j}{\sum_j \phi(q_i)^\top \phi(k_j)}
          = \frac{\big(\sum_j v_j\, \phi(k_j)^\top\big)\, \phi(q_i)}{\big(\sum_j \phi(k_j)\big)^\top \phi(q_i)}$$

    The sums over j are made once for all queries, or, causally, along the sequence; they are all that a state has to hold. The
    holes: `features` is φ, `divide` the quotient.
    """

    heads: int | None = None  # what the features were made for; None fits any
    width: int | None = None

    def features(self, x_BLHK: Tensor) -> Tensor:
        """φ(x), of queries and of keys, x_BLHF, in float32 or wider."""
        raise NotImplementedError

    def divide(self, over: Tensor, under: Tensor) -> Tensor:
        """The quotient; zero where nothing may be seen, and `under` is zero. Positive features never give zero elsewhere."""
        return over / under.masked_fill(under == 0, 1)

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
        return self.weights_of(torch.arange(q_BLHK.shape[1], device=q_BLHK.device), q_BLHK, k_BMHK, pattern, bias)

    def weights_of(
        self, rows: Tensor, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None
    ) -> Tensor:
        self.check(q_BLHK, k_BMHK, None, pattern, bias)
        (L, H), M, device = q_BLHK.shape[1:3], k_BMHK.shape[1], q_BLHK.device
        mask_BHLM = pattern_rows(pattern, rows, L, M).mask(len(rows), M, device)
        q_BLHF, k_BMHF = self.features(q_BLHK[:, rows]), self.features(share_heads(k_BMHK, H))
        products_BHLM = torch.einsum("blhf,bmhf->bhlm", q_BLHF, k_BMHF) * mask_BHLM
        return self.divide(products_BHLM, products_BHLM.sum(-1, keepdim=True)).to(q_BLHK.dtype)

    @unmixed
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
        past = None if state is None else running(state)
        q_BLHF, k_BMHF = self.features(q_BLHK), self.features(share_heads(k_BMHK, q_BLHK.shape[2]))
        k_BMHF = hide(k_BMHF, keys_seen(pattern, k_BMHK, past))
        out_BLHV, after = self.average(q_BLHF, k_BMHF, v_BMHV, is_causal(pattern), past)
        if past is not None:
            past.move(k_BMHK, kv=after)
        return out_BLHV

    def average(
        self, q_BLHF: Tensor, k_BMHF: Tensor, v_BMHV: Tensor, causal: bool, past: Running | None, log_decay: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """out_BLHV, and the sums after the last key; `log_decay` says how much of the sums a key leaves, a head or a feature."""
        H, F = q_BLHF.shape[2:]
        v_BMHV1 = pad(share_heads(v_BMHV, H).to(k_BMHF.dtype), (0, 1), value=1.0)  # a column of ones sums up the features alone
        before = None if past is None else past.sum("kv", (H, F, v_BMHV1.shape[-1]), k_BMHF)
        out_BLHV1, after = sums(q_BLHF, k_BMHF, v_BMHV1, causal, before, log_decay)
        return self.divide(out_BLHV1[..., :-1], out_BLHV1[..., -1:]).to(v_BMHV.dtype), after

    def start(self, batch: int, pattern: Pattern = causal) -> Running:
        return Running(batch)


def precise(x: Tensor) -> Tensor:
    """In float32 or wider: sums along a sequence lose too much below."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def generator_of(seed: int | None) -> torch.Generator:
    """From the seed, or from one that PyTorch's own generator gives."""
    return torch.Generator().manual_seed(int(torch.randint(2**31, ())) if seed is None else seed)


def is_causal(pattern: Pattern) -> bool:
    return any(isinstance(rule, Causal) for rule in factors(pattern))


def keys_seen(pattern: Pattern, k_BMHK: Tensor, past: Running | None = None) -> Tensor | None:
    """Which keys may be seen at all, (1 or B, M), whatever `causal` says of each query; None if all of them."""
    rules = [rule for rule in factors(pattern) if not isinstance(rule, Full | Causal)]
    if not rules:
        return None
    M, device = k_BMHK.shape[1], k_BMHK.device
    j, none = places(0 if past is None else past.position(), M, device), torch.zeros((), dtype=torch.long, device=device)
    each = (rule.allows(torch.arange(rule.batch, device=device)[:, None], none, none, j) for rule in rules)
    return reduce(torch.logical_and, each)


def hide(k_BMHF: Tensor, seen_BM: Tensor | None, value: float = 0.0) -> Tensor:
    """Features of keys that may not be seen are zero, or `value`."""
    return k_BMHF if seen_BM is None else k_BMHF.masked_fill(~seen_BM[..., None, None], value)


def ending(x_BLHF: Tensor, length: int) -> Tensor:
    """The last `length` tokens; zeros before the first where there are fewer. Positions are aligned at the end."""
    more = length - x_BLHF.shape[1]
    return pad(x_BLHF, (0, 0, 0, 0, more, 0)) if more else x_BLHF


def sums(
    q_BLHF: Tensor, k_BMHF: Tensor, v_BMHV: Tensor, causal: bool, state_BHFV: Tensor | None, log_decay: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Σ_j (q_i·k_j) v_j over all keys, or those up to the query, and the sum of all k_j v_jᵀ; on top of what `state_BHFV` sums up."""
    L, M = q_BLHF.shape[1], k_BMHF.shape[1]
    if not causal:
        state = torch.einsum("bmhf,bmhv->bhfv", k_BMHF, v_BMHV)
        state = state if state_BHFV is None else state_BHFV + state
        return torch.einsum("blhf,bhfv->blhv", q_BLHF, state), state
    if state_BHFV is not None and L > M:
        raise ShapeError(f"step by step and causal every query comes with a key of its own, got {L} queries and {M} keys")
    # queries before the first key see nothing, and keys before the first query need none
    out_BMHV, state = scan(ending(q_BLHF, M), k_BMHF, v_BMHV, log_decay, state_BHFV)
    return ending(out_BMHV, L), state
