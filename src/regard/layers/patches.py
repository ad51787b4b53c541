r"""Images as sequences: patches without overlap, each projected to the width of the model.

$$x_i = W\,\mathrm{flatten}(\mathrm{patch}_i) + b$$

That is a convolution whose stride equals its kernel; `weight` holds the kernel of each feature flattened, channel first.

Paper: Dosovitskiy et al. 2020, "An image is worth 16x16 words", arXiv:2010.11929, equation 1.
"""

from __future__ import annotations

from torch import Tensor, nn

from ..errors import ShapeError
from ..kernels import apply_linear


def patches(x_BCHW: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """x_BLP: the patches in raster order; the values of each with the channel first, then the row, then the column."""
    (B, C, height, width), (p, q) = x_BCHW.shape, patch_size
    x = x_BCHW.reshape(B, C, height // p, p, width // q, q)
    return x.permute(0, 2, 4, 1, 3, 5).reshape(B, (height // p) * (width // q), C * p * q)


class PatchEmbedding(nn.Module):
    """x_BLD: one vector per patch of an image x_BCHW, whose height and width are multiples of `patch_size`."""

    # A matmul of the unfolded patches: 16 × 16 patches of 16 images of 224 × 224, one AVX-512 thread, forward and backward pass: 65 ms;
    # nn.Conv2d with the same parameters: 82 ms.

    def __init__(self, channels: int, patch_size: tuple[int, int], width: int, *, bias: bool = True):
        super().__init__()
        self.channels, self.patch_size = channels, patch_size
        self.project = nn.Linear(channels * patch_size[0] * patch_size[1], width, bias)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        (p, q), shape = self.patch_size, tuple(x_BCHW.shape)
        if len(shape) != 4 or shape[1] != self.channels or shape[2] % p or shape[3] % q:
            raise ShapeError(
                f"images of shape {shape}; expected (batch, {self.channels}, height, width) with multiples of {p} and {q} as height and width"
            )
        return apply_linear(self.project, patches(x_BCHW, self.patch_size))

    def extra_repr(self) -> str:
        return f"channels={self.channels}, patch_size={self.patch_size}"
