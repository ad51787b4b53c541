r"""A block: mix positions, perhaps look at another sequence, then think at each position; each step is added to x.

$$\text{post: } x \leftarrow N(x + f(x)) \qquad \text{pre: } x \leftarrow x + f(N(x)) \qquad
  \text{sandwich: } x \leftarrow x + N_2(f(N_1(x)))$$

Post is the 2017 order; pre trains deep stacks without warm-up, and wants one more norm after the last block; sandwich also
bounds what a layer may add. Dropout acts on f(x), before it is added (in a sandwich after the second norm).

Paper: Vaswani et al. 2017, arXiv:1706.03762, section 3.1; Xiong et al. 2020 (pre), arXiv:2002.04745; Ding et al. 2021
       (sandwich), arXiv:2105.13290.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from ..attention import State
from ..errors import ShapeError, StateNotSupported, UnknownName
from ..patterns import Pattern, causal, full
from ._states import Memory, States
from .dropout import Dropout
from .multihead import MultiHead
from .norms import LayerNorm, Norm
from .packing import Packing

Placement = Literal["pre", "post", "sandwich"]


class Residual(nn.Module):
    """x and what a sublayer makes of it, added and normed in the order of `placement`."""

    def __init__(self, width: int, placement: Placement = "pre", norm: Norm = LayerNorm, dropout: float = 0.0):
        super().__init__()
        if placement not in ("pre", "post", "sandwich"):
            raise UnknownName("placement of norms", placement, ("pre", "post", "sandwich"))
        self.before = None if placement == "post" else norm(width)
        self.after = norm(width) if placement == "sandwich" else None
        self.over = norm(width) if placement == "post" else None
        self.dropout = Dropout(dropout)

    def forward(self, x_BLD: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        change_BLD = sublayer(x_BLD if self.before is None else self.before(x_BLD))
        if self.after is not None:
            change_BLD = self.after(change_BLD)
        x_BLD = x_BLD + self.dropout(change_BLD)
        return x_BLD if self.over is None else self.over(x_BLD)


class Block(nn.Module):
    """One layer of a transformer: a mixer, for decoders `cross` (which looks at a memory), and a feed-forward part.

    The mixer is a `MultiHead` or anything called as `mixer(x_BLD, pattern=…, state=…)`; for going step by step it also has
    `start(batch, pattern)`. `norm` is a factory, `width -> module`.
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
    ):
        super().__init__()
        self.mixer, self.cross, self.feedforward = mixer, cross, feedforward
        self.around_mixer = Residual(width, placement, norm, dropout)
        self.around_cross = None if cross is None else Residual(width, placement, norm, dropout)
        self.around_feedforward = None if feedforward is None else Residual(width, placement, norm, dropout)

    def forward(
        self,
        x_BLD: Tensor,
        pattern: Pattern = full,
        memory_BMD: Tensor | Memory | None = None,
        memory_pattern: Pattern = full,
        state: State | None = None,
        packing: Packing | None = None,
        memory_packing: Packing | None = None,
    ) -> Tensor:
        """`pattern` rules x looking at itself, `memory_pattern` x looking at the memory. A state may hold the memory.

        With `packing` x and the result have no padding, x_1TD (the mixer must know that argument; `MultiHead` does).
        """
        x_BLD = self.mix(x_BLD, pattern, state, packing)
        return self.think(self.look(x_BLD, memory_BMD, memory_pattern, state, packing, memory_packing))

    def mix(self, x_BLD: Tensor, pattern: Pattern = full, state: State | None = None, packing: Packing | None = None) -> Tensor:
        """The first third of forward: x looks at itself."""
        parts = self._parts(state)
        mixing = None if parts is None else parts["mixer"]
        packed = {} if packing is None else {"packing": packing}
        x_BLD = self.around_mixer(x_BLD, lambda x: self.mixer(x, pattern=pattern, state=mixing, **packed))
        if parts is not None:
            parts.length += x_BLD.shape[1]
        return x_BLD

    def look(
        self,
        x_BLD: Tensor,
        memory_BMD: Tensor | Memory | None = None,
        memory_pattern: Pattern = full,
        state: State | None = None,
        packing: Packing | None = None,
        memory_packing: Packing | None = None,
    ) -> Tensor:
        """The second third: x looks at the memory, if this block does."""
        memory_BMD = self._memory(memory_BMD, state)
        if self.cross is None or self.around_cross is None:
            return x_BLD
        cross, counting = self.cross, self._counting(state)
        return self.around_cross(  # type: ignore[no-any-return]
            x_BLD, lambda x: cross(x, memory_BMD, memory_pattern, counting, packing, memory_packing)
        )

    def looks(
        self,
        x_BLD: Tensor,
        memory_BMD: Tensor | Memory | None = None,
        memory_pattern: Pattern = full,
        state: State | None = None,
    ) -> Tensor:
        """Where in the memory `look`, called with the same, will look: weights_BHLM. The state is not moved."""
        memory_BMD = self._memory(memory_BMD, state)
        if self.cross is None or self.around_cross is None or memory_BMD is None:
            raise ShapeError("this block has no part that looks at a memory; make it with cross=MultiHead(…)")
        before = self.around_cross.before
        return self.cross.weights(x_BLD if before is None else before(x_BLD), memory_BMD, memory_pattern, self._counting(state))

    def think(self, x_BLD: Tensor) -> Tensor:
        """The last third: each position for itself."""
        if self.feedforward is None or self.around_feedforward is None:
            return x_BLD
        return self.around_feedforward(x_BLD, self.feedforward)  # type: ignore[no-any-return]

    def start(self, batch: int, pattern: Pattern = causal, memory_BMD: Tensor | None = None, memory_n_B: Tensor | None = None) -> States:
        """A fresh state for going step by step. A memory given here (n_B tokens of it real) is projected once, and follows beams."""
        begin = getattr(self.mixer, "start", None)
        if begin is None:
            raise StateNotSupported(f"{type(self.mixer).__name__} cannot go step by step: it has no start(batch, pattern); MultiHead has")
        parts: dict[str, State] = {"mixer": begin(batch, pattern)}
        if memory_BMD is not None:
            if self.cross is None:
                raise ShapeError("this block has no part that looks at a memory; make it with cross=MultiHead(…)")
            parts["memory"] = self.cross.remember(memory_BMD, n_B=memory_n_B)
            counting = self.cross.attention.start_over_memory(batch)
            if counting is not None:
                parts["looking"] = counting
        return States(batch, parts)

    def _memory(self, memory_BMD: Tensor | Memory | None, state: State | None) -> Tensor | Memory | None:
        parts = self._parts(state)
        if memory_BMD is None and parts is not None:
            held = parts.get("memory")
            memory_BMD = held if isinstance(held, Memory) else None
        if (memory_BMD is None) != (self.cross is None):
            raise ShapeError(
                "this block looks at a memory, and none was given: pass memory_BMD, or start the state with it"
                if self.cross is not None
                else "this block was given a memory and has no part that looks at it; make it with cross=MultiHead(…)"
            )
        return memory_BMD

    def _counting(self, state: State | None) -> State | None:
        parts = self._parts(state)
        return None if parts is None else parts.get("looking")

    @staticmethod
    def _parts(state: State | None) -> States | None:
        if state is None or isinstance(state, States):
            return state
        raise StateNotSupported(f"a Block goes on from the States of block.start(batch, pattern), not from a {type(state).__name__}")
