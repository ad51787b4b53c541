r"""A transformer block: token mixing, optional cross-attention, and a feed-forward layer, each with a residual connection.

$$\text{post: } x \leftarrow N(x + f(x)) \qquad \text{pre: } x \leftarrow x + f(N(x)) \qquad
  \text{sandwich: } x \leftarrow x + N_2(f(N_1(x)))$$

Post is the order of 2017; pre trains deep stacks without warm-up, and needs a final norm after the last block; sandwich also
bounds the output of each sublayer. Dropout acts on f(x) before the addition (in a sandwich after the second norm). Stochastic depth
(`drop_path`) leaves out f(x) of a whole example with that probability while training, and scales that of the others up.

Paper: Vaswani et al. 2017, arXiv:1706.03762, section 3.1; Xiong et al. 2020 (pre), arXiv:2002.04745; Ding et al. 2021
       (sandwich), arXiv:2105.13290; Huang et al. 2016 (stochastic depth), arXiv:1603.09382.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Self

from torch import Tensor, nn

from ..attention import State
from ..errors import ShapeError, StateNotSupported, UnknownArgument, UnknownName
from ..kernels import dropout
from ..patterns import PatternLike, as_pattern, causal, full
from .multihead import CrossCache, CrossInput, MultiHead
from .packing import Packing
from .positionwise import Dropout, LayerNorm, Norm

Placement = Literal["pre", "post", "sandwich"]


class Residual(nn.Module):
    """The residual connection around a sublayer, with norms in the order of `placement`.

    Args:
        width: model width D.
        placement: norms before the sublayer ("pre"), after the sum ("post"), or on both sides of the sublayer ("sandwich").
        norm: factory of the norms, `width -> module`.
        dropout: dropout rate of the sublayer's output.
        drop_path: rate at which the sublayer is skipped for an example, in training.

    Shape: x_BLD → out_BLD.
    """

    def __init__(self, width: int, placement: Placement = "pre", norm: Norm = LayerNorm, dropout: float = 0.0, drop_path: float = 0.0):
        super().__init__()
        if placement not in ("pre", "post", "sandwich"):
            raise UnknownName("placement of norms", placement, ("pre", "post", "sandwich"))
        self.before = None if placement == "post" else norm(width)
        self.after = norm(width) if placement == "sandwich" else None
        self.over = norm(width) if placement == "post" else None
        self.dropout, self.drop_path = Dropout(dropout), drop_path

    def forward(self, x_BLD: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return self.add(x_BLD, sublayer(x_BLD if self.before is None else self.before(x_BLD)))

    def add(self, x_BLD: Tensor, change_BLD: Tensor) -> Tensor:
        """x and the output of its sublayer, f(x) or f(N(x)): what follows the sublayer."""
        if self.after is not None:
            change_BLD = self.after(change_BLD)
        change_BLD = self.dropout(change_BLD)
        if self.drop_path and self.training:
            change_BLD = change_BLD * dropout(change_BLD.new_ones(len(x_BLD), 1, 1), self.drop_path)
        x_BLD = x_BLD + change_BLD
        return x_BLD if self.over is None else self.over(x_BLD)


class Block(nn.Module):
    """One layer of a transformer: a mixer, cross-attention to a memory in decoders (`cross`), and a feed-forward layer.

    Args:
        width: model width D.
        mixer: a `MultiHead`, or anything called as `mixer(x_BLD, pattern=…, state=…)`; to decode step by step it also needs `start(batch,
            pattern)`.
        feedforward: position-wise layer, such as `FeedForward`; None: none.
        cross: cross-attention to a memory, between mixer and feed-forward layer; None: none.
        placement: norms before each sublayer ("pre"), after each residual sum ("post"), or on both sides of each sublayer ("sandwich").
        norm: factory of the norms, `width -> module`.
        dropout: dropout rate after each sublayer.
        mixer_dropout: dropout rate after the mixer, where it differs from `dropout`.
        drop_path: rate of stochastic depth; examples are rows of the batch, so not with packing.

    Shape: x_BLD (and memory_BMD) → out_BLD; with `packing`, x_1TD → out_1TD.
    """

    def __init__(
        self,
        width: int,
        mixer: nn.Module,
        feedforward: nn.Module | None,
        *,
        cross: MultiHead | None = None,
        placement: Placement = "pre",
        norm: Norm = LayerNorm,
        dropout: float = 0.0,
        mixer_dropout: float | None = None,
        drop_path: float = 0.0,
    ):
        super().__init__()
        self.mixer, self.cross, self.feedforward = mixer, cross, feedforward
        self.around_mixer = Residual(width, placement, norm, dropout if mixer_dropout is None else mixer_dropout, drop_path)
        self.around_cross = None if cross is None else Residual(width, placement, norm, dropout, drop_path)
        self.around_feedforward = None if feedforward is None else Residual(width, placement, norm, dropout, drop_path)

    def forward(
        self,
        x_BLD: Tensor,
        pattern: PatternLike = full,
        memory_BMD: CrossInput = None,
        memory_pattern: PatternLike = full,
        state: State | None = None,
        packing: Packing | None = None,
        memory_packing: Packing | None = None,
        **unknown: Any,
    ) -> Tensor:
        """Apply the mixer, cross-attention if there is any, and the feed-forward layer. A state may hold the memory.

        Args:
            x_BLD: activations.
            pattern: pairs that the mixer may use.
            memory_BMD: memory of cross-attention, or `remember(memory)`; None: it is in the state, or there is none.
            memory_pattern: pairs of x and memory that cross-attention may use.
            state: state of earlier calls, which advances; None: a whole sequence.
            packing: positions of the real tokens of x, which then has no padding, x_1TD; the mixer must take that argument, as `MultiHead`
                does.
            memory_packing: positions of the real tokens of the memory, which then has no padding.
            **unknown: refused: arguments of PyTorch's modules, with what to write instead.
        """
        if unknown:
            raise UnknownArgument(self, unknown)
        if self.cross is not None and memory_packing is not None:
            assert isinstance(memory_BMD, Tensor)
            memory_BMD = self.cross.remember(memory_BMD, memory_packing)
        x_BLD = self.apply_mixer(x_BLD, pattern, state, packing)
        return self.apply_feedforward(self.apply_cross_attention(x_BLD, memory_BMD, memory_pattern, state, packing))

    def apply_mixer(self, x_BLD: Tensor, pattern: PatternLike = full, state: State | None = None, packing: Packing | None = None) -> Tensor:
        """The first part of forward: the mixer with its residual connection.

        Args:
            x_BLD: activations.
            pattern: pairs that are allowed.
            state: state of earlier calls, which advances; None: a whole sequence.
            packing: positions of the real tokens; x and the result then have no padding, x_1TD.
        """
        parts, pattern = self._parts(state), as_pattern(pattern)
        mixer_state = None if parts is None else parts["mixer"]
        packed = {} if packing is None else {"packing": packing}
        x_BLD = self.around_mixer(x_BLD, lambda x: self.mixer(x, pattern=pattern, state=mixer_state, **packed))
        if parts is not None:
            parts.length += x_BLD.shape[1]
        return x_BLD

    def apply_cross_attention(
        self,
        x_BLD: Tensor,
        memory: CrossInput = None,
        pattern: PatternLike = full,
        state: State | None = None,
        packing: Packing | None = None,
    ) -> Tensor:
        """The second part: cross-attention to the memory, if the block has it.

        Args:
            x_BLD: activations.
            memory: the other sequence, memory_BMD, or `remember(memory)`; None: it is in the state.
            pattern: pairs of x and memory that are allowed.
            state: state of earlier calls, which advances; None: a whole sequence.
            packing: positions of the real tokens; x and the result then have no padding, x_1TD.
        """
        memory = self._memory(memory, state)
        if self.cross is None or self.around_cross is None:
            return x_BLD
        cross, cross_state = self.cross, self._cross_state(state)
        return self.around_cross(x_BLD, lambda x: cross(x, memory, pattern, cross_state, packing))

    def cross_attention_weights(
        self, x_BLD: Tensor, memory: CrossInput = None, pattern: PatternLike = full, state: State | None = None
    ) -> Tensor:
        """The attention weights of `apply_cross_attention` for the same arguments, weights_BHLM. The state does not advance.

        Args:
            x_BLD: activations.
            memory: the other sequence, memory_BMD, or `remember(memory)`; None: it is in the state.
            pattern: pairs of x and memory that are allowed.
            state: state of earlier calls, which does not advance.
        """
        memory = self._memory(memory, state)
        if self.cross is None or self.around_cross is None or memory is None:
            raise ShapeError("this block has no cross-attention; build it with cross=MultiHead(…)")
        before = self.around_cross.before
        return self.cross.weights(x_BLD if before is None else before(x_BLD), memory, pattern, self._cross_state(state))

    def apply_feedforward(self, x_BLD: Tensor) -> Tensor:
        """The last part: the feed-forward layer with its residual connection."""
        if self.feedforward is None or self.around_feedforward is None:
            return x_BLD
        return self.around_feedforward(x_BLD, self.feedforward)

    def start(
        self, batch: int, pattern: PatternLike = causal, memory_BMD: Tensor | None = None, memory_n_B: Tensor | None = None
    ) -> States:
        """A new decoding state. A memory given here (its first n_B tokens are real) is projected once and reordered with the beams.

        Args:
            batch: number of batch rows.
            pattern: pattern that the mixer will be called with.
            memory_BMD: memory of cross-attention; None: it is passed at each step.
            memory_n_B: number of its real tokens per row; None: all.
        """
        start = getattr(self.mixer, "start", None)
        if start is None:
            raise StateNotSupported(f"{type(self.mixer).__name__} cannot decode step by step: it has no start(…); MultiHead has")
        parts: dict[str, State] = {"mixer": start(batch, as_pattern(pattern))}
        if memory_BMD is not None:
            if self.cross is None:
                raise ShapeError("this block has no cross-attention; build it with cross=MultiHead(…)")
            parts["memory"] = self.cross.remember(memory_BMD, n_B=memory_n_B)
            counting = self.cross.attention.start_cross(batch)
            if counting is not None:
                parts["cross"] = counting
        return States(batch, parts)

    def _memory(self, memory_BMD: CrossInput, state: State | None) -> CrossInput:
        parts = self._parts(state)
        if memory_BMD is None and parts is not None:
            held = parts.get("memory")
            memory_BMD = held if isinstance(held, CrossCache) else None
        if (memory_BMD is None) != (self.cross is None):
            raise ShapeError(
                "this block has cross-attention and was given no memory; pass memory_BMD, or give it to start(…)"
                if self.cross is not None
                else "this block was given a memory and has no cross-attention; build it with cross=MultiHead(…)"
            )
        return memory_BMD

    def _cross_state(self, state: State | None) -> State | None:
        parts = self._parts(state)
        return None if parts is None else parts.get("cross")

    @staticmethod
    def _parts(state: State | None) -> States | None:
        if state is None or isinstance(state, States):
            return state
        raise StateNotSupported(f"a Block takes the States of its start(batch, pattern), not a {type(state).__name__}")


class ParallelBlock(Block):
    """A block whose mixer and feed-forward layer both read the input of the block: x + f(N₁(x)) + g(N₂(x)); pre-norm, without memory.

    Paper: Wang & Komatsuzaki 2021, "GPT-J-6B"; Black et al. 2022, arXiv:2204.06745, section 2.1.

    Shape: x_BLD → out_BLD, as `Block`.
    """

    def forward(
        self,
        x_BLD: Tensor,
        pattern: PatternLike = full,
        memory_BMD: CrossInput = None,
        memory_pattern: PatternLike = full,
        state: State | None = None,
        packing: Packing | None = None,
        memory_packing: Packing | None = None,
        **unknown: Any,
    ) -> Tensor:
        if unknown:
            raise UnknownArgument(self, unknown)
        around = self.around_feedforward
        if self.cross is not None or self.feedforward is None or around is None or around.before is None or around.after is not None:
            raise ShapeError("a ParallelBlock is pre-norm with a feed-forward layer and without cross-attention; use Block for others")
        change_BLD = around.dropout(self.feedforward(around.before(x_BLD)))
        return self.apply_mixer(x_BLD, pattern, state, packing) + change_BLD


class States(State):
    """The states of several parts by name, changed together. The caller that steps the parts increases `length`.

    Args:
        batch: number of batch rows.
        parts: state of each part by its name.
    """

    def __init__(self, batch: int, parts: Mapping[str, State]):
        super().__init__(batch)
        self.parts = dict(parts)

    def __getitem__(self, name: str) -> State:
        return self.parts[name]

    def get(self, name: str) -> State | None:
        return self.parts.get(name)

    def reorder(self, rows: Tensor) -> Self:
        for part in self.parts.values():
            part.reorder(rows)
        return super().reorder(rows)

    def reset(self, rows: Tensor) -> Self:
        for part in self.parts.values():
            part.reset(rows)
        return super().reset(rows)

    def join(self, other: Self) -> Self:
        self._check_join(other)
        for name, part in self.parts.items():
            part.join(other.parts[name])
        return super().join(other)

    def _check_join(self, other: State) -> None:
        super()._check_join(other)
        assert isinstance(other, States)
        if self.parts.keys() != other.parts.keys():
            raise StateNotSupported(
                f"states of {', '.join(self.parts)} and of {', '.join(other.parts)} cannot be joined: they were started by different modules"
            )
        for name, part in self.parts.items():
            part._check_join(other.parts[name])

    def back(self, count: int) -> Self:
        for part in self.parts.values():
            part.back(count)
        self.length -= count
        return self

    def detach(self) -> Self:
        for part in self.parts.values():
            part.detach()
        return self
