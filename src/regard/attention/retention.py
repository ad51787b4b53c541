"""Retention: dot products of queries and keys that decay with distance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from msgspec import Meta
from torch import Tensor

from ._base import Paper
from ._recurrent import RecurrentAttention, RecurrentFacts, Terms

Decays = Annotated[Sequence[Annotated[float, Meta(gt=0, le=1)]], Meta(min_length=1)]  # one per head


class Retention(RecurrentAttention):
    r"""Each head forgets at its own fixed rate, over some 30 tokens or more, and nothing is normalised.

    $$o_i = \sum_{j \le i} \gamma_h^{\,i-j}\; \frac{q_i^\top k_j}{\sqrt K}\; v_j, \qquad \gamma_h = 1 - 2^{-5-h}, \quad h = 0, 1, \dots$$

    Cost:    time O(L·(C + K)·V) in chunks of C = 64; memory O(L·(C + K)). A decoding step costs O(K·V) at any length.
    Use it:  for language, where recent words matter most; trains in parallel and decodes in constant time and memory.
    Avoid it: where a distant token must be recalled: what has decayed is gone, and the rate does not depend on content.
    Limits:  `causal` and key masks (`lengths`, `since`) only; no bias; weights may be negative and do not sum to
             one, so outputs need a norm per head: `layers.GatedHeads`.
    Args:
        decay: γ of each head, which fixes the number of heads; None: the paper's, for any number.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Sun et al. 2023, "Retentive network", arXiv:2307.08621, eq. 5–8.
    We differ: the rotation of q and k (xPos) is a positional encoding of MultiHead; the norm and the gate after it are GatedHeads.
             The paper's normalisation of scores is omitted: the norm per head undoes it. Padding does not count as distance.
    Beyond it: `decay` sets γ per head; γ = exp(−2^(−8h/H)) gives Lightning attention (Qin et al. 2024, arXiv:2401.04658).
    """

    facts = RecurrentFacts(
        name="retention",
        paper=Paper("Retentive network: a successor to transformer for large language models", 2023, "arXiv:2307.08621"),
        formula="γ^(i−j) q·k / √K v",
        time="L·(C + K)·V",
        memory="L·(C + K)",
    )

    def __init__(self, *, decay: Decays | None = None):
        super().__init__()
        self.decay = None if decay is None else tuple(decay)
        self.heads = None if decay is None else len(decay)

    def terms(self, q_BLHK: Tensor, k_BMHK: Tensor, gates_BMHE: Tensor) -> Terms:
        B, M, H, K = k_BMHK.shape
        if self.decay is None:
            log_H = torch.log1p(-torch.exp2(-5.0 - torch.arange(H, dtype=q_BLHK.dtype, device=q_BLHK.device)))
        else:
            log_H = torch.tensor(self.decay, dtype=q_BLHK.dtype, device=q_BLHK.device).log()
        return Terms(q_BLHK * K**-0.5, k_BMHK, log_H.expand(B, M, H))
