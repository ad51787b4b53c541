r"""Clips as sequences: tubelets without overlap, patches over some frames, each projected to the width of the model.

$$x_i = W\,\mathrm{flatten}(\mathrm{tubelet}_i) + b$$

That is a 3-D convolution whose stride equals its kernel; `weight` holds the kernel of each feature flattened: channel, frame, row, column.

Paper: Arnab et al. 2021, "ViViT: a video vision transformer", arXiv:2103.15691, section 3.2.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from ..errors import ShapeError
from ..kernels import apply_linear
from .patches import PatchEmbedding

Inflation = Literal["central", "average"]


def tubelets(x_BTCHW: Tensor, size: tuple[int, int, int]) -> Tensor:
    """x_BLP: the tubelets frame by frame, each in raster order; the values of each with the channel first, then frame, row, column."""
    (B, T, C, height, width), (t, p, q) = x_BTCHW.shape, size
    x = x_BTCHW.reshape(B, T // t, t, C, height // p, p, width // q, q)
    return x.permute(0, 1, 4, 6, 3, 2, 5, 7).reshape(B, (T // t) * (height // p) * (width // q), C * t * p * q)


class TubeletEmbedding(nn.Module):
    """x_BLD: one vector per tubelet of a clip x_BTCHW, whose frames, height and width are multiples of `size`."""

    def __init__(self, channels: int, size: tuple[int, int, int], width: int, *, bias: bool = True):
        super().__init__()
        self.channels, self.size = channels, size
        self.project = nn.Linear(channels * size[0] * size[1] * size[2], width, bias)

    def forward(self, x_BTCHW: Tensor) -> Tensor:
        shape = tuple(x_BTCHW.shape)
        if len(shape) != 5 or shape[2] != self.channels or any(n % m for n, m in zip((shape[1], *shape[3:]), self.size, strict=True)):
            raise ShapeError(
                f"clips of shape {shape}; expected (batch, frames, {self.channels}, height, width) with multiples of {self.size} as frames, "
                "height and width"
            )
        return apply_linear(self.project, tubelets(x_BTCHW, self.size))

    @torch.no_grad()
    def inflate(self, patch: PatchEmbedding, how: Inflation = "central") -> None:
        """Begin as the embedding of patches does: of the frame in the middle of each tubelet, or of the mean of its frames."""
        t, p, q = self.size
        of_patch_DCPQ = patch.project.weight.unflatten(1, (self.channels, p, q))
        weight_DCTPQ = self.project.weight.view(len(of_patch_DCPQ), self.channels, t, p, q)
        if how == "average":
            weight_DCTPQ.copy_(of_patch_DCPQ.unsqueeze(2) / t)
        else:
            weight_DCTPQ.zero_()[:, :, t // 2] = of_patch_DCPQ
        if self.project.bias is not None and patch.project.bias is not None:
            self.project.bias.copy_(patch.project.bias)

    def extra_repr(self) -> str:
        return f"channels={self.channels}, size={self.size}"
