r"""Reversible layers, whose inputs are recomputed from their outputs instead of stored; and layers applied in slices.

$$y_1 = x_1 + f(x_2) \qquad y_2 = x_2 + g(y_1) \qquad\Longleftrightarrow\qquad x_2 = y_2 - g(y_1) \qquad x_1 = y_1 - f(x_2)$$

f mixes positions, g is a feed-forward layer. In the backward pass every block recomputes its input from its output: activation
memory is that of one block, whatever the depth, for about a third more time.

Paper: Gomez et al. 2017, "The reversible residual network", arXiv:1707.04585; Kitaev, Kaiser & Levskaya 2020, "Reformer",
       arXiv:2001.04451, section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..errors import ShapeError
from ..kernels import first_derivatives_only
from ..patterns import Pattern, full
from .positionwise import Dropout, LayerNorm, Norm

Tensors = tuple[Tensor, Tensor]


class ReversibleBlock(nn.Module):
    """The sublayers of a `Block` on two streams: each reads one stream, normed, and adds to the other.

    Sublayers must have no side effects: they run
    again in the backward pass.

    Args:
        width: model width D of each stream.
        mixer: a `MultiHead`, or anything called as `mixer(x_BLD, pattern=…)`.
        feedforward: position-wise layer.
        norm: factory of the norms, `width -> module`.
        dropout: dropout rate after each sublayer.

    Shape: x1_BLD, x2_BLD → y1_BLD, y2_BLD.
    """

    def __init__(self, width: int, mixer: nn.Module, feedforward: nn.Module, *, norm: Norm = LayerNorm, dropout: float = 0.0):
        super().__init__()
        self.mixer, self.feedforward = mixer, feedforward
        self.before_mixer, self.before_feedforward = norm(width), norm(width)
        self.dropout = Dropout(dropout)

    def apply_mixer(self, x_BLD: Tensor, pattern: Pattern = full) -> Tensor:
        """f: the update of the first stream."""
        return self.dropout(self.mixer(self.before_mixer(x_BLD), pattern=pattern))

    def apply_feedforward(self, x_BLD: Tensor) -> Tensor:
        """g: the update of the second stream."""
        return self.dropout(self.feedforward(self.before_feedforward(x_BLD)))

    def forward(self, x1_BLD: Tensor, x2_BLD: Tensor, pattern: Pattern = full) -> Tensors:
        """The plain computation, which stores activations.

        Args:
            x1_BLD: first stream.
            x2_BLD: second stream.
            pattern: pairs that are allowed.
        """
        y1_BLD = x1_BLD + self.apply_mixer(x2_BLD, pattern)
        return y1_BLD, x2_BLD + self.apply_feedforward(y1_BLD)


class Reversible(nn.Module):
    """A stack of reversible blocks; only the last output is stored for the backward pass.

        y1, y2 = Reversible(blocks)(x, x, pattern)      # Reformer: both streams start as x, and end as norm(cat([y1, y2], -1))

    Random numbers of a block (dropout, hash functions) are replayed in the backward pass. Gradients are those of the plain blocks
    up to the rounding of x = y − f(x). There are no second derivatives, and none with respect to the pattern.

    Args:
        blocks: blocks in order.

    Shape: x1_BLD, x2_BLD → y1_BLD, y2_BLD.
    """

    def __init__(self, blocks: Iterable[ReversibleBlock]):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x1_BLD: Tensor, x2_BLD: Tensor, pattern: Pattern = full) -> Tensors:
        if x1_BLD.shape != x2_BLD.shape:
            raise ShapeError(f"Reversible takes two streams of one shape, got {tuple(x1_BLD.shape)} and {tuple(x2_BLD.shape)}")
        parameters = tuple(parameter for parameter in self.parameters() if parameter.requires_grad)
        return _Stack.apply(list(self.blocks), pattern, parameters, x1_BLD, x2_BLD, *parameters)  # type: ignore[no-untyped-call]


class Chunked(nn.Module):
    """Applies a position-wise layer to `size` positions at a time: the same result with less memory.

    In training each slice is recomputed in the backward pass, so that hidden features of only one slice exist at a time.

    Args:
        layer: position-wise layer.
        size: positions per slice.

    Shape: x_BLD → out_BLD.
    """

    def __init__(self, layer: nn.Module, size: int):
        super().__init__()
        if size < 1:
            raise ShapeError(f"Chunked: size={size}; expected at least 1")
        self.layer, self.size = layer, size

    def forward(self, x_BLD: Tensor) -> Tensor:
        if x_BLD.shape[1] <= self.size:
            return self.layer(x_BLD)
        slices = x_BLD.split(self.size, 1)
        if not torch.is_grad_enabled():
            return torch.cat([self.layer(x) for x in slices], 1)
        return torch.cat([checkpoint(self.layer, x, use_reentrant=False) for x in slices], 1)

    def extra_repr(self) -> str:
        return f"size={self.size}"


class _Stack(torch.autograd.Function):
    """Parameters are arguments so that autograd requests their gradients; the blocks use their own references."""

    @staticmethod
    def forward(
        ctx: Any, blocks: list[ReversibleBlock], pattern: Pattern, parameters: tuple[Tensor, ...], x1: Tensor, x2: Tensor, *_: Tensor
    ) -> Tensors:
        ctx.blocks, ctx.pattern, ctx.parameters, ctx.rng = blocks, pattern, parameters, []
        ctx.autocast = torch.is_autocast_enabled(x1.device.type), torch.get_autocast_dtype(x1.device.type)
        y1, y2 = x1, x2
        for block in blocks:
            rng = RngSnapshot(block)
            y1 = y1 + block.apply_mixer(y2, pattern)
            between = RngSnapshot(block)
            y2 = y2 + block.apply_feedforward(y1)
            ctx.rng.append((rng, between))
        y1, y2 = (y.clone() if y is x else y for y, x in ((y1, x1), (y2, x2)))  # an empty stack must not return its input
        ctx.save_for_backward(y1, y2)
        return y1, y2

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, d1: Tensor, d2: Tensor) -> tuple[Tensor | None, ...]:
        y1, y2 = (y.detach() for y in ctx.saved_tensors)
        sums: dict[Tensor, Tensor] = {}  # blocks may share parameters

        def back(
            block: nn.Module, part: Callable[..., Tensor], x: Tensor, given: tuple[Pattern, ...], rng: RngSnapshot, d: Tensor
        ) -> Tensors:
            """The update a sublayer added, and the gradient of x; gradients of parameters are accumulated in `sums`."""
            enabled, dtype = ctx.autocast
            with torch.enable_grad(), rng.replayed(), torch.autocast(x.device.type, dtype=dtype, enabled=enabled):
                x = x.detach().requires_grad_()
                added = part(x, *given)
            own = [parameter for parameter in block.parameters() if parameter.requires_grad]
            d_x, *d_own = torch.autograd.grad(added, [x, *own], d.to(added.dtype), allow_unused=True)
            for parameter, more in zip(own, d_own, strict=True):
                if more is not None:
                    sums[parameter] = sums[parameter] + more if parameter in sums else more
            return added.detach(), torch.zeros_like(x) if d_x is None else d_x

        for block, (before, between) in zip(reversed(ctx.blocks), reversed(ctx.rng), strict=True):
            added, d = back(block, block.apply_feedforward, y1, (), between, d2)
            y2, d1 = y2 - added, d1 + d
            added, d = back(block, block.apply_mixer, y2, (ctx.pattern,), before, d1)
            y1, d2 = y1 - added, d2 + d
        return None, None, None, d1, d2, *map(sums.get, ctx.parameters)


class RngSnapshot:
    """The state of every generator a module may draw from: PyTorch's own and those that its parts hold."""

    def __init__(self, module: nn.Module):
        own = {id(x): x for part in module.modules() for x in vars(part).values() if isinstance(x, torch.Generator)}
        on_gpu = torch.cuda.default_generators if torch.cuda.is_available() and torch.cuda.is_initialized() else ()
        self._generators: list[Any] = [torch.default_generator, *on_gpu, *_other_device(), *own.values()]
        self._states = self._now()

    def restore(self) -> None:
        """Set all generators back to the snapshot."""
        self._set(self._states)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Afterwards all generators are where they were on entry, whatever is drawn inside."""
        now = self._now()
        try:
            yield
        finally:
            self._set(now)

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Draw the numbers after the snapshot once more inside the `with`; afterwards all generators are where they were on entry."""
        with self.kept():
            self.restore()
            yield

    def _now(self) -> list[torch.Tensor]:
        return [generator.get_state() for generator in self._generators]

    def _set(self, states: list[torch.Tensor]) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)


class _DeviceGenerator:
    """The generator of an accelerator, by the functions of its module: not all offer it as an object."""

    def __init__(self, module: Any):
        self._module = module

    def get_state(self) -> Tensor:
        return self._module.get_rng_state()

    def set_state(self, state: Tensor) -> None:
        self._module.set_rng_state(state)


def _other_device() -> list[_DeviceGenerator]:
    """The generator of this machine's accelerator, unless that is CUDA."""
    device = torch.accelerator.current_accelerator()
    if device is None or device.type == "cuda" or not torch.accelerator.is_available():
        return []
    return [_DeviceGenerator(torch.get_device_module(device))]
