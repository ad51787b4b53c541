"""Attention that forgets at a fixed pace: products of queries and keys, decayed by distance."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import BadConfig, ShapeError
from ._base import Facts
from ._recurrence import PATTERNS, Recurrence, Terms


class Retention(Recurrence):
    r"""Each head forgets at a pace of its own, from some 30 tokens upwards, and nothing is divided by.

    $$o_i = \sum_{j \le i} \gamma_h^{\,i-j}\; \frac{q_i^\top k_j}{\sqrt K}\; v_j, \qquad \gamma_h = 1 - 2^{-5-h}, \quad h = 0, 1, \dots$$

    Cost:    time O(L·(C + K)·V) in chunks of C = 64; memory O(L·(C + K)). A step of decoding costs O(K·V), however long the past.
    Use it:  for language where recent words matter most, trained in parallel and decoded in constant time and memory.
    Avoid it: where one far token must be recalled: what decays is gone, and the pace does not depend on what is said.
    Limits:  `causal`, and which keys are real (`lengths`, `since`); no bias; weights may be negative and do not sum to one. So
             outputs want a norm a head after them: `layers.GatedHeads`.
    Paper:   Sun et al. 2023, "Retentive network", arXiv:2307.08621, eq. 5-8.
    We differ: the rotation of q and k (xPos) is a position, given to MultiHead; the norm and the gate after it are GatedHeads. The
             paper's normalisation of scores is left out: the norm a head undoes it. Padding does not count as distance.
    Beyond it: `decay` sets γ a head; with γ = exp(−2^(−8h/H)) it is Lightning attention (Qin et al. 2024, arXiv:2401.04658).
    """

    facts = Facts(
        name="retention",
        year=2023,
        title="Retentive network: a successor to transformer for large language models",
        paper="arXiv:2307.08621",
        formula="γ^(i−j) q·k / √K v",
        time="L·(C + K)·V",
        memory="L·(C + K)",
        patterns=PATTERNS,
        normalised=False,
        positional=True,
        bias=False,
    )

    def __init__(self, decay: Sequence[float] | None = None):
        super().__init__()
        if decay is not None and not all(0 < gamma <= 1 for gamma in decay):
            raise BadConfig(f"decay={decay}: what is left after a token is above 0 and at most 1, a number a head")
        self.decay = None if decay is None else tuple(decay)

    def terms(self, q_BLHK: Tensor, k_BMHK: Tensor, extra_BMHE: Tensor) -> Terms:
        B, M, H, K = k_BMHK.shape
        if self.decay is None:
            log_H = torch.log1p(-torch.exp2(-5.0 - torch.arange(H, dtype=q_BLHK.dtype, device=q_BLHK.device)))
        elif len(self.decay) == H:
            log_H = torch.tensor(self.decay, dtype=q_BLHK.dtype, device=q_BLHK.device).log()
        else:
            raise ShapeError(f"Retention was made with the decays of {len(self.decay)} heads, and is given {H}")
        return Terms(q_BLHK * K**-0.5, k_BMHK, log_H.expand(B, M, H))

    def extra_repr(self) -> str:
        return "" if self.decay is None else f"decay={self.decay}"
