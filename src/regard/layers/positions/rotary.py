r"""Rotary positions (RoPE): queries and keys are rotated by their position, so that dot products depend on the distance.

$$q'_i = R(i)\,q_i \qquad k'_j = R(j)\,k_j \qquad q_i'^\top k'_j = q_i^\top R(j - i)\,k_j$$

R(t) rotates the c-th pair of features by the angle t·θ_c, θ_c = base^(−2c/K). Which features make a pair is the layout:
neighbours (interleaved: RoFormer, GPT-J) or one of each half (halves: GPT-NeoX, Llama). Both compute the same family of
functions, but parameters trained with one do not fit the other. Keys are rotated once, before they are cached.

With a mechanism that hashes or maps features, the rotation comes first and changes what is hashed or mapped.

A model trained on short texts can read longer ones if its angles are made smaller (`stretch`): see `positions.scaling`.

Paper: Su et al. 2021, "RoFormer", arXiv:2104.09864, eq. 12–16 and 34. On grids Heo et al. 2024, arXiv:2403.13298.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ...attention import positions
from ...kernels import Bias
from ._base import Layout, Offset, Position, angles, cells, divisible
from .scaling import Stretch, check_reach, frequencies, gain


def rotate(x_BLHK: Tensor, cos: Tensor, sin: Tensor, layout: Layout = "halves") -> Tensor:
    """Rotate the first 2·C features, pair c at position l by the angle with the given cosine and sine, (L, 1, C) or (B, L, 1, C)."""
    if torch.compiler.is_exporting():  # the same in plain operations: PyTorch does not export those that write into `out`
        a, b = _pairs(x_BLHK[..., : 2 * cos.shape[-1]].to(cos.dtype), layout)
        turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1 if layout == "interleaved" else -2).flatten(-2)
        return torch.cat([turned, x_BLHK[..., 2 * cos.shape[-1] :].to(cos.dtype)], -1).to(x_BLHK.dtype)
    return _Rotate.apply(x_BLHK, cos, sin, layout)  # type: ignore[no-untyped-call]


class _Rotate(torch.autograd.Function):
    """Gradients are rotated back. Four passes per direction, where autograd would need about twenty."""

    @staticmethod
    def forward(ctx: Any, x_BLHK: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.layout, size = layout, 2 * cos.shape[-1]
        part, out_BLHK = x_BLHK[..., :size].to(cos.dtype), x_BLHK.new_empty(x_BLHK.shape, dtype=cos.dtype)
        (a, b), (c, d) = (_pairs(x, layout) for x in (part, out_BLHK[..., :size]))
        torch.mul(a, cos, out=c).addcmul_(b, sin, value=-1)
        torch.mul(a, sin, out=d).addcmul_(b, cos)
        out_BLHK[..., size:] = x_BLHK[..., size:]
        return out_BLHK.to(x_BLHK.dtype)

    @staticmethod
    def backward(ctx: Any, d_BLHK: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        return rotate(d_BLHK, cos, -sin, ctx.layout), None, None, None


def _pairs(x: Tensor, layout: Layout) -> Sequence[Tensor]:
    return x.unflatten(-1, (-1, 2)).unbind(-1) if layout == "interleaved" else x.chunk(2, -1)


def cos_sin(at: Tensor, size: int, base: float, dtype: torch.dtype, stretch: Stretch = (), end: int = 0) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angles at positions (…, L) of a text with `end` tokens, as `rotate` takes them."""
    angle = angles(at, frequencies(size, base, stretch, end), dtype).unsqueeze(-2)
    return angle.cos() * gain(stretch), angle.sin() * gain(stretch)


@lru_cache(maxsize=8)
def _cached_cos_sin(
    start: Offset, count: int, size: int, base: float, stretch: Stretch, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Computed once for q and k of all layers of a step."""
    end = (start if isinstance(start, int) else max(start, default=0)) + count
    with torch.inference_mode(False):  # cached, and may be used in training later
        return cos_sin(positions(start, count, device), size, base, dtype, stretch, end)


class Rotary(Position):
    """Pairs of features rotated by angles proportional to the position; the first `part` features only, if given.

    Args:
        base: base of the wavelengths.
        part: number of features that are rotated, the first ones; None: all.
        layout: pairs of features: "halves" (i, i + n/2) or "interleaved" (2i, 2i + 1).
        stretch: how angles are scaled, as `positions.scaling` says; (): not at all.
    """

    def __init__(self, *, base: float = 10_000.0, part: int | None = None, layout: Layout = "halves", stretch: Stretch = ()):
        super().__init__()
        if part is not None:
            divisible("the part that rotary positions rotate", part, 2)
        self.base, self.part, self.layout, self.stretch = base, part, layout, tuple(stretch)

    def encode(self, q_BLHK: Tensor, k_BMHK: Tensor, q_from: Offset, k_from: Offset) -> tuple[Tensor, Tensor, Bias | None]:
        return self._at(q_BLHK, q_from), self._at(k_BMHK, k_from), None

    def _at(self, x_BLHK: Tensor, start: Offset) -> Tensor:
        size = x_BLHK.shape[-1] if self.part is None else min(self.part, x_BLHK.shape[-1])
        divisible("the head size for rotary positions", size, 2)
        check_reach(self.stretch, start, x_BLHK.shape[1])
        # an export's tensors are of no use after it
        known = _cached_cos_sin.__wrapped__ if torch.compiler.is_exporting() else _cached_cos_sin
        rotation = known(start, x_BLHK.shape[1], size, self.base, self.stretch, x_BLHK.dtype, x_BLHK.device)
        return rotate(x_BLHK, *rotation, self.layout)


class GridRotary(Position):
    """Rotary positions in an image: the first half of the features rotated by the row, the second by the column.

    The image is in row-major order with `columns` columns, after `prefix` tokens (a class token) that are not rotated.

    Args:
        columns: columns of the image.
        prefix: tokens before the image that are not rotated.
        base: base of the wavelengths.
        layout: pairs of features: "halves" (i, i + n/2) or "interleaved" (2i, 2i + 1).
    """

    def __init__(self, columns: int, *, prefix: int = 0, base: float = 10_000.0, layout: Layout = "halves"):
        super().__init__()
        self.columns, self.prefix, self.base, self.layout = columns, prefix, base, layout

    def encode(self, q_BLHK: Tensor, k_BMHK: Tensor, q_from: Offset, k_from: Offset) -> tuple[Tensor, Tensor, Bias | None]:
        return self._at(q_BLHK, q_from), self._at(k_BMHK, k_from), None

    def _at(self, x_BLHK: Tensor, start: Offset) -> Tensor:
        divisible("the head size for grid rotary positions", x_BLHK.shape[-1], 4)
        at = positions(start, x_BLHK.shape[1], x_BLHK.device)
        row, column, inside = cells(at, self.columns, self.prefix)
        halves = zip(x_BLHK.chunk(2, -1), (row * inside, column * inside), strict=True)
        size = x_BLHK.shape[-1] // 2
        return torch.cat([rotate(x, *cos_sin(axis, size, self.base, x.dtype), self.layout) for x, axis in halves], -1)
