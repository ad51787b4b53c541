"""Attention by landmarks or by pooled keys is as good as neighbours are alike: on smooth sequences a few do, on rough ones nearly all are needed.

Paper: Xiong et al. 2021, "Nyströmformer", arXiv:2102.03902, section 3; Wang et al. 2020, "Linformer", arXiv:2006.04768, sections 3 and 4.
Run:   regard run lowrank2021        Takes: seconds; nothing is trained.

256 tokens, one head of 32. Rough: queries and keys independent, of deviation 1. Smooth: the same passed through a mean over 32
neighbours, and scaled back to deviation 1. Linformer's projections are means of neighbours, the paper's fixed choice, since nothing is
trained. The error is that of the matrix of weights, relative, in the Frobenius norm; no matrix of that rank is nearer than the singular vectors'.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..attention import LinformerAttention, NystromAttention, SoftmaxAttention
from ._base import Claim, Figures, Recipe, RecipeFacts
from ._pictures import lines, series

TOKENS, WIDTH, RANKS, NEIGHBOURS = 256, 32, (8, 16, 32, 64, 128, 256), 32
KINDS: tuple[Literal["smooth", "rough"], ...] = ("smooth", "rough")
WAYS: tuple[Literal["landmarks", "pooled", "best"], ...] = ("landmarks", "pooled", "best")


@dataclass(frozen=True)
class Rebuilt:
    """The error by rank."""

    kind: Literal["smooth", "rough"]
    way: Literal["landmarks", "pooled", "best"]

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        q, k = (sequence(self.kind) for _ in range(2))
        exact_LM = SoftmaxAttention().weights(q, k)[0, 0]
        return {f"error, rank {rank}": self._away(q, k, exact_LM, rank) / float(exact_LM.norm()) for rank in RANKS}

    def _away(self, q: Tensor, k: Tensor, exact_LM: Tensor, rank: int) -> float:
        if self.way == "best":
            return float(torch.linalg.svdvals(exact_LM)[rank:].norm())
        attention = NystromAttention(landmarks=rank, kernel=0) if self.way == "landmarks" else pooled(rank)
        with torch.no_grad():
            return float((attention.weights(q, k)[0, 0] - exact_LM).norm())


def sequence(kind: str) -> Tensor:
    """x_BLHK"""
    x_KL = torch.randn(WIDTH, TOKENS + NEIGHBOURS - 1, dtype=torch.float64)
    x_KL = F.avg_pool1d(x_KL, NEIGHBOURS, 1) * NEIGHBOURS**0.5 if kind == "smooth" else x_KL[:, :TOKENS]
    return x_KL.T[None, :, None]


def pooled(rank: int) -> LinformerAttention:
    attention = LinformerAttention(length=TOKENS, rank=rank, sharing="key-value").double()
    each = TOKENS // rank
    with torch.no_grad():
        attention.e_HRN.copy_(torch.eye(rank).repeat_interleave(each, 1) / each)
    return attention


def curves(figures: Figures, out: Path) -> Path:
    return lines(out / "error.png", series(figures, "error"), x="rank", y="relative error", title="Attention, rebuilt", logarithmic="x")


def error(way: str, kind: str, rank: int) -> tuple[str, str]:
    return f"{kind}, {way}", f"error, rank {rank}"


recipe = Recipe(
    facts=RecipeFacts(
        name="lowrank2021",
        year=2021,
        title="Nyströmformer: a Nyström-based algorithm for approximating self-attention",
        paper="arXiv:2102.03902",
        takes="seconds",
    ),
    question="How many landmarks, or pooled keys, rebuild the matrix of attention?",
    variants={f"{kind}, {way}": Rebuilt(kind, way) for kind in KINDS for way in WAYS},
    claims=(
        Claim(
            "with as many landmarks or pools as tokens both are exact, to 1 in 10,000",
            lambda f: all(f[error(way, kind, TOKENS)].high <= 1e-4 for way in ("landmarks", "pooled") for kind in KINDS),
            lambda f: "; ".join(str(f[error(way, kind, TOKENS)]) for way in ("landmarks", "pooled") for kind in KINDS),
        ),
        Claim(
            "smooth: 64 landmarks of 256 leave at most 10 %",
            lambda f: f[error("landmarks", "smooth", 64)].high <= 0.1,
            lambda f: str(f[error("landmarks", "smooth", 64)]),
        ),
        Claim(
            "smooth: landmarks are nearer than pools of as many keys, at every rank from 16 to 128",
            lambda f: all((f[error("pooled", "smooth", r)] - f[error("landmarks", "smooth", r)]).mean > 0 for r in RANKS[1:-1]),
            lambda f: "; ".join(f"{f[error('landmarks', 'smooth', r)]} against {f[error('pooled', 'smooth', r)]}" for r in RANKS[1:-1]),
        ),
        Claim(
            "rough: 64 of either leave at least 40 %",
            lambda f: min(f[error(way, "rough", 64)].low for way in ("landmarks", "pooled")) >= 0.4,
            lambda f: f"{f[error('landmarks', 'rough', 64)]}; {f[error('pooled', 'rough', 64)]}",
        ),
    ),
    pictures=(curves,),
)
