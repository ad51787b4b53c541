r"""What decoder-only transformers share: an embedding, causal blocks, a last norm, and an output matrix.

$$x_t = E[\mathrm{id}_t] + P_t \qquad x \leftarrow \mathrm{block}_n(x) \qquad p(\mathrm{id}_{t+1}) = \mathrm{softmax}(W N(x_t))$$

A model builds the parts; going through them, whole or step by step, documents apart or not, is here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..attention import Position, State
from ..errors import BadConfig, StateNotSupported
from ..layers import Embedding, MultiHead, Packing, States
from ..patterns import Full, Pattern, causal, segments
from ._documents import Documents
from ._language import LanguageModel, LanguageModelConfig
from ._model import Spec, looking

PADDED = 2.0  # beyond this many times as many tokens, documents stay in their rows, and a pattern keeps them apart


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(LanguageModelConfig):
    width: int = 256
    heads: int = 4
    depth: int = 4
    attention: tuple[str, ...] = ("softmax",)  # of the layers in turn, and again from the first: see `Spec`

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.attention) is not tuple or not self.attention:
            raise BadConfig(
                f"{type(self).__name__}: attention={self.attention!r}; expected names of mechanisms, for the layers in turn: ('softmax',)"
            )
        for line in self.attention:
            Spec.read(line)

    def _divided(self) -> None:
        if self.width % self.heads:
            raise BadConfig(f"{type(self).__name__}: width={self.width}; expected a multiple of heads={self.heads}")


class Decoder(LanguageModel):
    """A stack that reads from the left. A model gives the four parts named below."""

    config: DecoderConfig
    embedding: Embedding
    blocks: nn.ModuleList
    norm: nn.Module
    output: nn.Linear | None  # None: the table of the embedding, once more

    def features(self, ids_BL: Tensor, document_BL: Tensor | None = None, state: State | None = None) -> Tensor:
        self.check(ids_BL, document_BL)
        if document_BL is None:
            return self._read(ids_BL, 0 if state is None else state.position(), causal, state)
        if state is not None:
            raise StateNotSupported("documents are told apart in whole rows; step by step let a row begin anew, with state.reset(rows)")
        documents = Documents.of(document_BL)
        alike = all(block.mixer.attention.reads_apart and isinstance(block.mixer.own, Full) for block in self._blocks())
        if alike and documents.padding > PADDED:
            return self._read(ids_BL, documents.place_BL, causal & segments(document_BL))
        x_1TD = self._read(ids_BL.reshape(1, -1), documents.place_BL.reshape(1, -1), causal, packing=documents.rows)
        return x_1TD.view(*ids_BL.shape, -1)

    def head(self) -> tuple[Tensor, Tensor | None]:
        return (self.embedding.token if self.output is None else self.output).weight, None

    def begin(self, batch: int) -> State:
        return States(batch, {f"block {i}": block.start(batch, causal) for i, block in enumerate(self._blocks())})

    def _read(
        self, ids_BL: Tensor, at: Position | Tensor, pattern: Pattern, state: State | None = None, packing: Packing | None = None
    ) -> Tensor:
        x_BLD: Tensor = self.embedding(ids_BL, at)
        for i, block in enumerate(self._blocks()):
            x_BLD = block(x_BLD, pattern, state=None if state is None else _parts(state)[f"block {i}"], packing=packing)
        if state is not None:
            state.length += ids_BL.shape[1]
        return self.norm(x_BLD)  # type: ignore[no-any-return]

    def _blocks(self) -> list[Any]:
        return list(self.blocks)  # PyTorch's list forgets what is in it


def looking_in(config: DecoderConfig, layer: int, **options: Any) -> MultiHead:
    """The heads of a layer, looking as the config says for it; the options are those of MultiHead."""
    c = config
    return looking(c.attention[layer % len(c.attention)], c.width, c.heads, c.length, **options)


def _parts(state: State) -> States:
    if not isinstance(state, States):
        raise StateNotSupported(f"a language model goes on from what model.begin(batch) gave, not from a {type(state).__name__}")
    return state
