"""Landmarks and pooled keys approximate attention as well as neighbours are alike: a few suffice for smooth sequences, not for rough ones.

Paper: Xiong et al. 2021, "Nyströmformer", arXiv:2102.03902, section 3; Wang et al. 2020, "Linformer", arXiv:2006.04768, sections 3 and 4.
Run:   regard run lowrank2021        Takes: seconds; nothing is trained.

256 tokens, one head of 32. Rough: independent queries and keys of standard deviation 1. Smooth: the same after a mean over 32
neighbours, rescaled to standard deviation 1. Linformer's projections are means of neighbours, the paper's fixed choice, since nothing is
trained. The error is that of the attention weights, relative, in the Frobenius norm; the truncated SVD is the best matrix of each rank.

With as many landmarks as tokens NystromAttention is softmax attention by construction, so that rank is the formula itself, A A⁺ A, with
the iteration for A⁺ run to convergence: twenty steps. After the paper's six, 7 to 10 % are left at full rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..attention import LinformerAttention, NystromAttention, SoftmaxAttention
from ..attention.nystrom import pseudo_inverse
from ._engine import Claim, Curves, Recipe, RecipeFacts, at_least, at_most, measured

TOKENS, HEAD_DIM, RANKS, NEIGHBOURS = 256, 32, (8, 16, 32, 64, 128, 256), 32
CONVERGED = 20  # iterations of the pseudo-inverse
Kind = Literal["smooth", "rough"]
Method = Literal["landmarks", "pooled", "best"]
KINDS: tuple[Kind, ...] = ("smooth", "rough")
METHODS: tuple[Method, ...] = ("landmarks", "pooled", "best")


@dataclass(frozen=True)
class Approximation:
    """The relative error by rank."""

    kind: Kind
    method: Method

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        q, k = (sequence(self.kind) for _ in range(2))
        exact_LM = SoftmaxAttention().weights(q, k)[0, 0]
        return {f"error, rank {rank}": self._error(q, k, exact_LM, rank) / float(exact_LM.norm()) for rank in RANKS}

    def _error(self, q: Tensor, k: Tensor, exact_LM: Tensor, rank: int) -> float:
        if self.method == "best":
            return float(torch.linalg.svdvals(exact_LM)[rank:].norm())
        if self.method == "landmarks" and rank == TOKENS:
            inverse_ML = pseudo_inverse(exact_LM[None, None], CONVERGED)[0, 0]
            return float((exact_LM @ inverse_ML @ exact_LM - exact_LM).norm())
        attention = NystromAttention(landmarks=rank, kernel=0) if self.method == "landmarks" else pooled(rank)
        with torch.no_grad():
            return float((attention.weights(q, k)[0, 0] - exact_LM).norm())


def sequence(kind: Kind) -> Tensor:
    """x_BLHK"""
    x_KL = torch.randn(HEAD_DIM, TOKENS + NEIGHBOURS - 1, dtype=torch.float64)
    x_KL = F.avg_pool1d(x_KL, NEIGHBOURS, 1) * NEIGHBOURS**0.5 if kind == "smooth" else x_KL[:, :TOKENS]
    return x_KL.T[None, :, None]


def pooled(rank: int) -> LinformerAttention:
    attention = LinformerAttention(max_length=TOKENS, rank=rank, sharing="key-value").double()
    size = TOKENS // rank
    with torch.no_grad():
        attention.e_HRN.copy_(torch.eye(rank).repeat_interleave(size, 1) / size)
    return attention


def error(method: Method, kind: Kind, rank: int) -> tuple[str, str]:
    return f"{kind}, {method}", f"error, rank {rank}"


recipe = Recipe(
    facts=RecipeFacts(
        "lowrank2021", 2021, "Nyströmformer: a Nyström-based algorithm for approximating self-attention", "arXiv:2102.03902", "seconds"
    ),
    question="How many landmarks, or pooled keys, does it take to approximate the attention weights?",
    variants={f"{kind}, {method}": Approximation(kind, method) for kind in KINDS for method in METHODS},
    claims=(
        at_most(
            "with as many landmarks or pools as tokens both are exact, to 1 in 10,000",
            1e-4,
            *(error(method, kind, TOKENS) for method in METHODS[:2] for kind in KINDS),
            kind="control",
        ),
        at_most("smooth: 64 landmarks of 256 leave an error of at most 10 %", 0.1, error("landmarks", "smooth", 64)),
        Claim(
            "smooth: landmarks have a lower error than pools of as many keys, at every rank from 16 to 128",
            *(measured(*error("landmarks", "smooth", n)) - measured(*error("pooled", "smooth", n)) <= 0 for n in RANKS[1:-1]),
        ),
        at_least("rough: 64 of either leave at least 40 %", 0.4, error("landmarks", "rough", 64), error("pooled", "rough", 64)),
    ),
    pictures=(Curves(metric="error", file="error", x="rank", y="relative error", title="Approximation of attention", log="x"),),
)
