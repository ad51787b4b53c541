r"""Layers whose inputs follow from their outputs, so that training need not keep them; and layers done a slice at a time.

$$y_1 = x_1 + f(x_2) \qquad y_2 = x_2 + g(y_1) \qquad\Longleftrightarrow\qquad x_2 = y_2 - g(y_1) \qquad x_1 = y_1 - f(x_2)$$

f mixes positions, g thinks at each. On the way back every block computes its input again from its output: the memory of
activations is that of one block, whatever the depth, for about a third more time.

Paper: Gomez et al. 2017, "The reversible residual network", arXiv:1707.04585; Kitaev, Kaiser & Levskaya 2020, "Reformer",
       arXiv:2001.04451, section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from ..errors import ShapeError
from ..patterns import Pattern, full
from .dropout import Dropout
from .norms import LayerNorm, Norm

Tensors = tuple[Tensor, Tensor]


class ReversibleBlock(nn.Module):
    """The two parts of a `Block` on two streams: each adds to one what it makes of the other, normed first.

    The mixer is a `MultiHead` or anything called as `mixer(x_BLD, pattern=…)`. Neither part may change anything but its
    output: it is run again on the way back.
    """

    def __init__(self, width: int, mixer: nn.Module, feedforward: nn.Module, *, norm: Norm = LayerNorm, dropout: float = 0.0):
        super().__init__()
        self.mixer, self.feedforward = mixer, feedforward
        self.before_mixer, self.before_feedforward = norm(width), norm(width)
        self.dropout = Dropout(dropout)

    def mix(self, x_BLD: Tensor, pattern: Pattern = full) -> Tensor:
        """f: what is added to the first stream."""
        return self.dropout(self.mixer(self.before_mixer(x_BLD), pattern=pattern))  # type: ignore[no-any-return]

    def think(self, x_BLD: Tensor) -> Tensor:
        """g: what is added to the second stream."""
        return self.dropout(self.feedforward(self.before_feedforward(x_BLD)))  # type: ignore[no-any-return]

    def forward(self, x1_BLD: Tensor, x2_BLD: Tensor, pattern: Pattern = full) -> Tensors:
        """The plain way, which keeps what it computes."""
        y1_BLD = x1_BLD + self.mix(x2_BLD, pattern)
        return y1_BLD, x2_BLD + self.think(y1_BLD)


class Reversible(nn.Module):
    """Reversible blocks one after the other; only the last output is kept for the way back.

        y1, y2 = Reversible(blocks)(x, x, pattern)      # Reformer: both streams begin as x, and end as norm(cat([y1, y2], -1))

    Random numbers that a block drew (dropout, hash functions) are drawn again the same on the way back. Gradients are those of
    the plain blocks up to the rounding of x = y − f(x); they have no gradients themselves. The pattern must not need any.
    """

    def __init__(self, blocks: Iterable[ReversibleBlock]):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x1_BLD: Tensor, x2_BLD: Tensor, pattern: Pattern = full) -> Tensors:
        if x1_BLD.shape != x2_BLD.shape:
            raise ShapeError(f"Reversible takes two streams of one shape, got {tuple(x1_BLD.shape)} and {tuple(x2_BLD.shape)}")
        parameters = tuple(parameter for parameter in self.parameters() if parameter.requires_grad)
        return _Stack.apply(list(self.blocks), pattern, parameters, x1_BLD, x2_BLD, *parameters)  # type: ignore[no-any-return,no-untyped-call]


class Chunked(nn.Module):
    """A layer that treats every position alone, done for `size` positions at a time: the same result, less memory.

    While training each slice is computed again on the way back, so that the wide features of one slice exist at a time.
    """

    def __init__(self, layer: nn.Module, size: int):
        super().__init__()
        if size < 1:
            raise ShapeError(f"Chunked takes at least one position at a time, got size={size}")
        self.layer, self.size = layer, size

    def forward(self, x_BLD: Tensor) -> Tensor:
        if x_BLD.shape[1] <= self.size:
            return self.layer(x_BLD)  # type: ignore[no-any-return]
        slices = x_BLD.split(self.size, 1)
        if not torch.is_grad_enabled():
            return torch.cat([self.layer(x) for x in slices], 1)
        return torch.cat([checkpoint(self.layer, x, use_reentrant=False) for x in slices], 1)

    def extra_repr(self) -> str:
        return f"size={self.size}"


class _Stack(torch.autograd.Function):
    """The parameters are arguments so that autograd asks for their gradients; the blocks find them by themselves."""

    @staticmethod
    def forward(
        ctx: Any, blocks: list[ReversibleBlock], pattern: Pattern, parameters: tuple[Tensor, ...], x1: Tensor, x2: Tensor, *_: Tensor
    ) -> Tensors:
        ctx.blocks, ctx.pattern, ctx.parameters, ctx.dice = blocks, pattern, parameters, []
        ctx.autocast = torch.is_autocast_enabled(x1.device.type), torch.get_autocast_dtype(x1.device.type)
        y1, y2 = x1, x2
        for block in blocks:
            dice = _Dice(block, x1.device)
            y1 = y1 + block.mix(y2, pattern)
            between = _Dice(block, x1.device)
            y2 = y2 + block.think(y1)
            ctx.dice.append((dice, between))
        y1, y2 = (y.clone() if y is x else y for y, x in ((y1, x1), (y2, x2)))  # an empty stack gives no view of its input
        ctx.save_for_backward(y1, y2)
        return y1, y2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d1: Tensor, d2: Tensor) -> tuple[Tensor | None, ...]:
        y1, y2 = (y.detach() for y in ctx.saved_tensors)
        sums: dict[Tensor, Tensor] = {}  # blocks may share parameters

        def back(block: nn.Module, part: Callable[..., Tensor], x: Tensor, given: tuple[Pattern, ...], dice: _Dice, d: Tensor) -> Tensors:
            """What the part added to its stream, and the gradient of x; those of the parameters are summed up."""
            enabled, dtype = ctx.autocast
            with torch.enable_grad(), dice.again(), torch.autocast(x.device.type, dtype=dtype, enabled=enabled):
                x = x.detach().requires_grad_()
                added = part(x, *given)
            own = [parameter for parameter in block.parameters() if parameter.requires_grad]
            d_x, *d_own = torch.autograd.grad(added, [x, *own], d.to(added.dtype), allow_unused=True)
            for parameter, more in zip(own, d_own, strict=True):
                if more is not None:
                    sums[parameter] = sums[parameter] + more if parameter in sums else more
            return added.detach(), torch.zeros_like(x) if d_x is None else d_x

        for block, (before, between) in zip(reversed(ctx.blocks), reversed(ctx.dice), strict=True):
            added, d = back(block, block.think, y1, (), between, d2)
            y2, d1 = y2 - added, d1 + d
            added, d = back(block, block.mix, y2, (ctx.pattern,), before, d1)
            y1, d2 = y1 - added, d2 + d
        return None, None, None, d1, d2, *map(sums.get, ctx.parameters)


class _Dice:
    """The random numbers a block may draw, as they stood before it: PyTorch's, and those of generators its parts hold."""

    def __init__(self, block: nn.Module, device: torch.device):
        own = {id(x): x for part in block.modules() for x in vars(part).values() if isinstance(x, torch.Generator)}
        on_gpu = [torch.cuda.default_generators[torch.cuda.current_device()]] if device.type == "cuda" else []
        self.generators = [torch.default_generator, *on_gpu, *own.values()]
        self.states = [generator.get_state() for generator in self.generators]

    @contextmanager
    def again(self) -> Iterator[None]:
        """Draw the same once more; afterwards they stand where they stood."""
        now = [generator.get_state() for generator in self.generators]
        try:
            for generator, state in zip(self.generators, self.states, strict=True):
                generator.set_state(state)
            yield
        finally:
            for generator, state in zip(self.generators, now, strict=True):
                generator.set_state(state)
