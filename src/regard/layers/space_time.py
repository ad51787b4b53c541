r"""Attention over the tokens of a clip in two parts: in space, within a frame, and in time, along one place of the image.

Tokens are those of frame 1 in raster order, then those of frame 2, …: x_BLD with L = n_t · n_s. Attention in space reads them as n_t
sequences of n_s tokens, in time as n_s sequences of n_t.

Cost: n_t·n_s·(n_s + n_t) pairs instead of (n_t·n_s)².

Paper: Arnab et al. 2021, "ViViT: a video vision transformer", arXiv:2103.15691, section 3.3, models 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from ..attention import State
from ..errors import PatternNotSupported, StateNotSupported
from ..patterns import Full, Pattern, full
from .block import Block
from .multihead import MultiHead


def in_space(f: Callable[[Tensor], Tensor], x_BLD: Tensor, frames: int) -> Tensor:
    """f of each frame."""
    B, L, D = x_BLD.shape
    return f(x_BLD.reshape(B * frames, L // frames, D)).reshape(B, L, D)


def in_time(f: Callable[[Tensor], Tensor], x_BLD: Tensor, frames: int) -> Tensor:
    """f of each place through the frames."""
    B, L, D = x_BLD.shape
    x = x_BLD.view(B, frames, L // frames, D).transpose(1, 2)
    return f(x.reshape(B * (L // frames), frames, D)).view(B, L // frames, frames, D).transpose(1, 2).reshape(B, L, D)


class SpaceTimeBlock(nn.Module):
    """Factorised self-attention: attention in space, then in time, then a feed-forward layer, each with a residual connection.

    `space` is a block without a feed-forward layer, `time` one with it.
    """

    def __init__(self, space: Block, time: Block, frames: int):
        super().__init__()
        self.space, self.time, self.frames = space, time, frames

    def forward(self, x_BLD: Tensor) -> Tensor:
        x_BLD = in_space(self.space.apply_mixer, x_BLD, self.frames)
        return self.time.apply_feedforward(in_time(self.time.apply_mixer, x_BLD, self.frames))


class SpaceTimeHeads(nn.Module):
    """Factorised dot-product attention: some heads attend in space, the others in time.

    The output projection of all heads is the sum of those of the two parts: W [y_space; y_time] = W_space y_space + W_time y_time.
    """

    def __init__(self, space: MultiHead, time: MultiHead, frames: int):
        super().__init__()
        self.space, self.time, self.frames = space, time, frames

    def forward(self, x_BLD: Tensor, pattern: Pattern = full, state: State | None = None) -> Tensor:
        if state is not None:
            raise StateNotSupported("SpaceTimeHeads reads whole clips; it does not decode step by step")
        if not isinstance(pattern, Full):
            raise PatternNotSupported(f"SpaceTimeHeads under `{pattern}`: it attends to all of a frame and to all frames of a place")
        return in_space(self.space, x_BLD, self.frames) + in_time(self.time, x_BLD, self.frames)
