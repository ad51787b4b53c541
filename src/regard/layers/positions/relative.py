r"""Relative positions: a bias on the scores that depends on the distance between query and key.

$$\text{ALiBi: } s_{ij} - m_h |i - j| \qquad \text{T5: } s_{ij} + t_h[\mathrm{bucket}(j - i)] \qquad
  \text{XL: } \tfrac{1}{\sqrt K}\big((q_i + u)^\top k_j + (q_i + w)^\top r_{i-j}\big)$$

Each is a `Bias`: computed tile by tile in the forward and backward pass, so that nothing of size L × M is stored.

Paper: Press, Smith & Lewis 2021, "Train short, test long", arXiv:2108.12409; Raffel et al. 2019, arXiv:1910.10683,
       section 2.1; Dai et al. 2019, "Transformer-XL", arXiv:1901.02860, section 3.3.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ...errors import ShapeError
from ...kernels import Bias, accumulation_dtype
from ._base import Offset, Position, divisible
from .absolute import sinusoids


class ALiBi(Position):
    """A linear penalty on the distance with a slope per head, m_h = 2^(−8h/H) for h = 1 … H; no parameters.

    For H not a power of two: the slopes of the power below, then every other slope of the power above, as published.
    In bidirectional attention |i − j| does not distinguish before from after.

    Args:
        heads: number of heads H.
    """

    def __init__(self, heads: int):
        super().__init__()
        self.slopes = alibi_slopes(heads)

    def encode(self, q_BLHK: Tensor, k_BMHK: Tensor, q_from: Offset, k_from: Offset) -> tuple[Tensor, Tensor, Bias | None]:
        _heads(self, q_BLHK, len(self.slopes))
        precise = accumulation_dtype(q_BLHK)  # slope times distance, and distances exceed 256
        return q_BLHK, k_BMHK, _Slopes(torch.tensor(self.slopes, dtype=precise, device=q_BLHK.device))


def alibi_slopes(heads: int) -> list[float]:
    """The slope of each head."""
    below = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * h / below) for h in range(1, below + 1)]
    return slopes + [2 ** (-4 * h / below) for h in range(1, 2 * below, 2)][: heads - below]


class _Slopes(Bias):
    by_distance = True

    def __init__(self, slope_H: Tensor):
        self.tensors = (slope_H,)

    def tile(self, i: Tensor, j: Tensor, *tensors: Tensor) -> Tensor:
        (slope_H,) = tensors
        return -slope_H[:, None, None] * (i[:, None] - j).abs()

    def of(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, *tensors: Tensor) -> Tensor:
        return -tensors[0][h] * (i - j).abs()


class Buckets(Position):
    """T5: a learned bias per head for each range of distances, with ranges that grow with the distance.

    Half of the `buckets` hold one distance each, the rest grow in size up to `furthest`, and all beyond share the last. With
    `causal=False`, before and after have half of the buckets each. Layers of one model may share one `Buckets`.

    Args:
        heads: number of heads.
        buckets: number of ranges of distances.
        furthest: distance from which on all share the last bucket.
        causal: use all buckets for distances back; False: half of them for each direction.
    """

    def __init__(self, heads: int, *, buckets: int = 32, furthest: int = 128, causal: bool = False):
        super().__init__()
        divisible("the number of buckets", buckets, 2 if causal else 4)
        if furthest <= buckets // (2 if causal else 4):
            raise ShapeError(f"furthest={furthest} is among the distances that {buckets} buckets hold individually; choose a larger one")
        self.furthest = furthest
        self.table = nn.Embedding(buckets, heads)
        of = buckets_of(torch.arange(-furthest, furthest + 1), buckets, furthest, causal)
        self.register_buffer("bucket", of, persistent=False)  # of every distance j − i that is distinguished
        self.bucket: Tensor

    def encode(self, q_BLHK: Tensor, k_BMHK: Tensor, q_from: Offset, k_from: Offset) -> tuple[Tensor, Tensor, Bias | None]:
        _heads(self, q_BLHK, self.table.embedding_dim)
        return q_BLHK, k_BMHK, _Table(self.table.weight, self.bucket, self.furthest)


def buckets_of(distance: Tensor, buckets: int, furthest: int, causal: bool) -> Tensor:
    """The bucket of each distance j − i."""
    if causal:
        first, away = torch.zeros_like(distance), (-distance).clamp(min=0)
    else:
        buckets //= 2
        first, away = (distance > 0) * buckets, distance.abs()
    single = buckets // 2
    # float32, as in the published code: rounding decides at bucket boundaries, and checkpoints were trained with it
    growth = torch.log(away.clamp(min=1).float() / single) / math.log(furthest / single)
    far = (single + (growth * (buckets - single)).long()).clamp(max=buckets - 1)
    return first + torch.where(away < single, away, far)


class _Table(Bias):
    by_distance = True

    def __init__(self, table_NH: Tensor, bucket: Tensor, furthest: int):
        self.tensors, self.bucket, self.furthest = (table_NH,), bucket, furthest

    def tile(self, i: Tensor, j: Tensor, *tensors: Tensor) -> Tensor:
        (table_NH,) = tensors
        distance = (j - i[:, None]).clamp(-self.furthest, self.furthest)
        return table_NH.t()[:, self.bucket[distance + self.furthest]]

    def of(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, *tensors: Tensor) -> Tensor:
        (table_NH,) = tensors
        return table_NH[self.bucket[(j - i).clamp(-self.furthest, self.furthest) + self.furthest], h]


class RelativeXL(Position):
    """Transformer-XL: the query also attends to the distance itself, r_δ = W_r · sinusoid(δ); u and w are content-independent queries.

    `u` is added to the query before the scores; the second term is a bias that depends on content. `width` is that of the sinusoid.
    `scale` must be that of the mechanism (1/√K by default): the bias is added to scores that are already scaled.
    Cost: r takes O((L + M)·H·K); the term takes as much time as q·k, and memory for one tile.
    The paper's W_r and both vectors belong to each layer (its code shares u and w between layers: pass the same module to all).

    Args:
        width: size of the sinusoid.
        heads: number of heads.
        head_dim: size K per head; width / heads if not given.
        scale: scale of the mechanism's scores; 1/√K if not given.
    """

    def __init__(self, width: int, heads: int, head_dim: int | None = None, *, scale: float | None = None):
        super().__init__()
        divisible("the width of the sinusoid", width, 2)
        head_dim = width // heads if head_dim is None else head_dim
        self.width, self.scale = width, head_dim**-0.5 if scale is None else scale
        self.project = nn.Linear(width, heads * head_dim, bias=False)
        self.u_HK, self.w_HK = (nn.Parameter(torch.zeros(heads, head_dim)) for _ in range(2))

    def encode(self, q_BLHK: Tensor, k_BMHK: Tensor, q_from: Offset, k_from: Offset) -> tuple[Tensor, Tensor, Bias | None]:
        L, H, K = q_BLHK.shape[1:]
        if tuple(self.u_HK.shape) != (H, K):
            raise ShapeError(f"RelativeXL is for {len(self.u_HK)} heads of size {self.u_HK.shape[1]}, got q_BLHK {tuple(q_BLHK.shape)}")
        # distances do not depend on where rows started: rows are aligned at the end, and the longest one counts for all
        q_from, k_from = (at if isinstance(at, int) else max(at) for at in (q_from, k_from))
        nearest, furthest = q_from - (k_from + k_BMHK.shape[1] - 1), q_from + L - 1  # older keys, in a state, go back to 0
        distance = torch.arange(nearest, furthest + 1, device=q_BLHK.device)
        r_NHK = self.project(sinusoids(distance, self.width, layout="halves", dtype=q_BLHK.dtype)).unflatten(-1, (H, K))
        return q_BLHK + self.u_HK, k_BMHK, _Content((q_BLHK + self.w_HK) * self.scale, r_NHK, q_from, nearest)


class _Content(Bias):
    def __init__(self, q_BLHK: Tensor, r_NHK: Tensor, q_from: int, nearest: int):
        self.tensors, self.q_from, self.nearest = (q_BLHK, r_NHK), q_from, nearest

    def tile(self, i: Tensor, j: Tensor, *tensors: Tensor) -> Tensor:
        q_BLHK, r_NHK = tensors
        distance = i[:, None] - j
        low, high = int(distance.min()), int(distance.max())
        r_NHK = r_NHK[low - self.nearest : high - self.nearest + 1]
        every_BHLN = torch.einsum("blhk,nhk->bhln", q_BLHK[:, i - self.q_from], r_NHK)
        # each row selects its own range of distances: the "shift" of the paper's appendix B, inside one tile
        return every_BHLN.gather(-1, (distance - low).expand(*every_BHLN.shape[:2], *distance.shape))


def _heads(scheme: Position, q_BLHK: Tensor, heads: int) -> None:
    if q_BLHK.shape[2] != heads:
        raise ShapeError(
            f"{type(scheme).__name__} for {heads} heads was given {q_BLHK.shape[2]}, q_BLHK {tuple(q_BLHK.shape)}; build it with heads={q_BLHK.shape[2]}"
        )
