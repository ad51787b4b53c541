"""Nyström attention: the matrix of all pairs approximated through a few landmarks."""

from __future__ import annotations

from math import sqrt
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from ..bounds import Count, Heads, Size
from ..errors import BadConfig
from ..kernels import attend
from ..patterns import Full, Pattern, full, lengths
from ._base import Attention, Call, Facts, Paper
from .helpers import float32_or_wider, no_autocast, share_heads, softmax_where, uniform_parameter

ScaleOver = Literal["matrix", "batch"]


class NystromAttention(Attention):
    r"""Segment means stand for all queries and keys; three thin matrices approximate the large one.

    $$o = \mathrm{softmax}(q\tilde k^\top)\; \mathrm{softmax}(\tilde q\tilde k^\top)^{+}\; \mathrm{softmax}(\tilde q k^\top)\, v
      \;+\; \sum_t c_t\, v_{i+t} \qquad \text{dot products divided by } \sqrt{K}$$

    Cost:    time O(L·m·(K + V) + m³) for m landmarks, memory O(L·(m + K)): linear in the length.
    Use it:  in encoders over a few thousand tokens, also to replace the softmax of a trained one.
    Avoid it: in decoders, and where single tokens matter: a landmark is the mean of L/m neighbours.
    Limits:  self-attention only. Not causal: landmarks are means over the whole sequence. Exact for up to m tokens.
    Weights: the product of the three plus the band of c; signed, because a pseudo-inverse is, so rows need not sum to one.
    Args:
        heads: number of heads of the convolution; None without one.
        landmarks: number m of segment means.
        kernel: taps of the convolution c over values, odd; 0: no convolution.
        iterations: iterations of the pseudo-inverse.
        scale_over: the norm that its first iterate is divided by: of each "matrix", or the largest of the "batch".
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Xiong et al. 2021, "Nyströmformer: a Nyström-based algorithm for approximating self-attention",
             arXiv:2102.03902, section 3. The pseudo-inverse Z of A: ¼ Z (13 − AZ (15 − AZ (7 − AZ))), 6 iterations,
             in float32 or wider: it diverges in bfloat16.
    We differ: each batch row has its own segments, for its own length, whose sizes differ by at most one; padding is in none. Z
             is initialised to Aᵀ/‖A‖₁ per matrix, so that a row does not depend on the rest of the batch; `scale_over="batch"`
             divides by the largest norm of the batch, as in checkpoints of transformers. `kernel=0` omits the convolution.
    """

    facts = Facts(
        name="nystrom",
        paper=Paper("Nyströmformer: a Nyström-based algorithm for approximating self-attention", 2021, "arXiv:2102.03902"),
        formula="softmax(q·k̃) softmax(q̃·k̃)⁺ softmax(q̃·k) v + conv(v)",
        time="L·m·(K + V) + m³",
        memory="L·(m + K)",
        patterns=("full", "lengths"),
        rows="joint",
        cross=False,
        state=None,
        normalised=False,
        positional=True,
        bias=False,
    )

    def __init__(
        self,
        *,
        heads: Heads | None = None,
        landmarks: Size = 64,
        kernel: Count = 33,
        iterations: Count = 6,
        scale_over: ScaleOver = "matrix",
    ):
        super().__init__()
        if (kernel and kernel % 2 == 0) or (kernel > 0) != (heads is not None):
            raise BadConfig(f"NystromAttention: kernel={kernel}, heads={heads}; expected an odd kernel with heads, or kernel=0 without")
        self.heads, self.landmarks, self.kernel = heads, landmarks, kernel
        self.iterations, self.scale_over = iterations, scale_over
        self.c_HT = uniform_parameter(heads, kernel, fan=kernel) if heads else None

    @classmethod
    def sized(cls, *, heads: int, head_dim: int, length: int) -> Self:
        return cls(heads=heads, landmarks=min(64, max(1, length // 8)))

    def _weights(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        return self._weights_of(torch.arange(call.queries, device=call.device), q_BLHK, k_BMHK, call)

    def _rows_cheap(self) -> bool:
        return True

    def _weights_of(self, rows: Tensor, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        dtype, M, device = q_BLHK.dtype, k_BMHK.shape[1], q_BLHK.device
        q_BLHK, k_BMHK = float32_or_wider(q_BLHK), float32_or_wider(share_heads(k_BMHK, q_BLHK.shape[2]))
        j_M, c_C1 = torch.arange(M, device=device), torch.arange(self.landmarks, device=device)[:, None]
        kept_BM = call.pattern.mask(1, M, device)[:, 0, 0]
        mean_BCM, used_B = _segments(kept_BM, self.landmarks, q_BLHK.dtype)
        q_BCHK, k_BCHK = _mean(mean_BCM, q_BLHK), _mean(mean_BCM, k_BMHK)
        row_B1C1, column_B11C = c_C1 < used_B[:, None, None, None], c_C1[:, 0] < used_B[:, None, None, None]
        left_BHLC = softmax_where(_scores(q_BLHK[:, rows], k_BCHK), column_B11C)
        middle_BHCC = softmax_where(_scores(q_BCHK, k_BCHK), row_B1C1 & column_B11C)
        right_BHCM = softmax_where(_scores(q_BCHK, k_BMHK), row_B1C1 & kept_BM[:, None, None])
        rebuilt_BHCM = pseudo_inverse(middle_BHCC, self.iterations, self._scale(norms(middle_BHCC))) @ right_BHCM
        # as many landmarks as keys: each key is its own landmark, and the result is exact
        alone_B1CM = ((c_C1 == j_M) & kept_BM[:, None])[:, None].to(q_BLHK.dtype)
        rebuilt_BHCM = torch.where((kept_BM.sum(-1) <= self.landmarks)[:, None, None, None], alone_B1CM, rebuilt_BHCM)
        weights_BHLM = left_BHLC @ rebuilt_BHCM
        if self.c_HT is not None:
            away_LM = j_M - rows[:, None] + self.kernel // 2
            inside_BHLM = ((away_LM >= 0) & (away_LM < self.kernel)) & kept_BM[:, None, None]
            weights_BHLM = weights_BHLM + self.c_HT[:, away_LM.clamp(0, self.kernel - 1)] * inside_BHLM
        return weights_BHLM.to(dtype)

    @no_autocast  # the pseudo-inverse diverges in bfloat16
    def _forward(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, call: Call) -> Tensor:
        pattern = call.pattern
        dtype, (M, H), m = q_BLHK.dtype, q_BLHK.shape[1:3], self.landmarks
        q_BLHK, k_BMHK, v_BMHV = (float32_or_wider(share_heads(x, H)) for x in (q_BLHK, k_BMHK, v_BMHV))
        kept_BM = pattern.mask(1, M, q_BLHK.device)[:, 0, 0]
        if not isinstance(pattern, Full):
            k_BMHK, v_BMHV = (x.masked_fill(~kept_BM[..., None, None], 0) for x in (k_BMHK, v_BMHV))
        short_B111 = (kept_BM.sum(-1) <= m)[:, None, None, None]
        if bool(short_B111.all()):  # each key is its own landmark
            return (attend(q_BLHK, k_BMHK, v_BMHV, pattern) + self._convolve(v_BMHV)).to(dtype)
        mean_BCM, used_B = _segments(kept_BM, m, q_BLHK.dtype)
        q_BCHK, k_BCHK = _mean(mean_BCM, q_BLHK), _mean(mean_BCM, k_BMHK)
        used_BC = torch.arange(m, device=q_BLHK.device) < used_B[:, None]
        middle_BHCC = softmax_where(_scores(q_BCHK, k_BCHK), used_BC[:, None, :, None] & used_BC[:, None, None])
        # unused landmarks have a row in `right`, but the pseudo-inverse has zeros in their columns
        right_BCHV = attend(q_BCHK, k_BMHK, v_BMHV, pattern)
        inverse_BHCC = pseudo_inverse(middle_BHCC, self.iterations, self._scale(norms(middle_BHCC)))
        values_BCHV = torch.einsum("bhcd,bdhv->bchv", inverse_BHCC, right_BCHV)
        over: Pattern = full
        if short_B111.any():
            over = lengths(used_B)
            values_BCHV = torch.where(short_B111, F.pad(v_BMHV[:, :m], (0, 0, 0, 0, 0, max(m - M, 0))), values_BCHV)
        return (attend(q_BLHK, k_BCHK, values_BCHV, over) + self._convolve(v_BMHV)).to(dtype)

    def _convolve(self, v_BMHV: Tensor) -> Tensor | float:
        """The depthwise convolution of the values."""
        if self.c_HT is None:
            return 0.0
        c_H1T1 = float32_or_wider(self.c_HT)[:, None, :, None]
        return F.conv2d(v_BMHV.transpose(1, 2), c_H1T1, padding=(self.kernel // 2, 0), groups=v_BMHV.shape[2]).transpose(1, 2)

    def _scale(self, norm_BH11: Tensor) -> Tensor:
        """The divisor of Aᵀ, the initial pseudo-inverse."""
        return norm_BH11 if self.scale_over == "matrix" else norm_BH11.amax((0, 1), keepdim=True)


def _segments(kept_BM: Tensor, landmarks: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """mean_BCM, the matrix that averages each row's segments, and the number of segments per row."""
    n_B1, p_M = kept_BM.sum(-1, keepdim=True), torch.arange(kept_BM.shape[1], device=kept_BM.device)
    used_B1 = n_B1.clamp(max=landmarks)
    segment_BM = p_M * used_B1 // n_B1.clamp(min=1)
    inside_BCM = (segment_BM[:, None] == torch.arange(landmarks, device=kept_BM.device)[:, None]) & kept_BM[:, None]
    return inside_BCM.to(dtype) / inside_BCM.sum(-1, keepdim=True).clamp(min=1), used_B1[:, 0]


def norms(a_BHCC: Tensor) -> Tensor:
    """‖A‖₁ of non-negative matrices, norm_BH11."""
    return a_BHCC.sum(-2).amax(-1)[..., None, None]


def pseudo_inverse(a_BHCC: Tensor, iterations: int, norm_BH11: Tensor | None = None) -> Tensor:
    """Invert matrices whose rows sum to one (or are zero, and stay so) by a third-order iteration from Aᵀ / (‖A‖₁ ‖A‖∞).

    ‖A‖∞ is one; anything larger than ‖A‖₁ converges too, more slowly.
    """
    norm_BH11 = norms(a_BHCC) if norm_BH11 is None else norm_BH11
    z_BHCC = a_BHCC.mT / norm_BH11.masked_fill(norm_BH11 == 0, 1)
    one_CC = torch.eye(a_BHCC.shape[-1], dtype=a_BHCC.dtype, device=a_BHCC.device)
    for _ in range(iterations):
        az_BHCC = a_BHCC @ z_BHCC
        z_BHCC = z_BHCC @ (13 * one_CC - az_BHCC @ (15 * one_CC - az_BHCC @ (7 * one_CC - az_BHCC))) / 4
    return z_BHCC


def _scores(q_BLHK: Tensor, k_BMHK: Tensor) -> Tensor:
    return torch.einsum("blhk,bmhk->bhlm", q_BLHK, k_BMHK) / sqrt(q_BLHK.shape[-1])


def _mean(mean_BCM: Tensor, x_BMHK: Tensor) -> Tensor:
    return (mean_BCM @ x_BMHK.flatten(2)).unflatten(-1, x_BMHK.shape[2:])
