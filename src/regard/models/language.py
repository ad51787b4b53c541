"""Language models, which predict the next token, and what decoder-only transformers share.

    model.features(ids)                   features of all tokens; those at t depend on tokens 0 … t and predict token t + 1
    state = model.start(batch)            a decoding state that has read nothing yet
    model.features(ids, state=state)      continue from there: with a whole prompt, or a single token
    model.step(token, state)              the same for one token per row: logits of the next token

All of them agree: `forward` gives at position t what the t-th `step` gives, and a prompt may be split anywhere. With `document_BL`, the
document number of every token, documents packed into one row do not attend to each other, and positions start at 0 in each.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from .. import _bound
from ..attention import Position, State
from ..errors import BadConfig, StateNotSupported
from ..layers import Embedding, MultiHead, Packing, States
from ..layers.packing import Documents
from ..patterns import Full, Pattern, causal, segments
from .model import Depth, Model, ModelConfig, Size, Step, attention_lines, build_heads

PADDED = 2.0  # if one row per document would make the batch larger than this factor, documents stay packed, separated by a pattern


@dataclass(frozen=True, kw_only=True)
class LanguageModelConfig(ModelConfig):
    vocab_size: Size  # number of tokens in the vocabulary
    context_length: Size = 1024  # longest text, for positional embeddings and mechanisms that need it; recurrent and rotary models read on


class LanguageModel(Model):
    """Predicts the next token. A model implements `features`, `head` and `start`; the rest is here.

    Shape: ids_BL → logits_BLN.
    """

    config: LanguageModelConfig
    causal_parts: ClassVar[tuple[str, ...]] = ("",)  # all of it
    length_setting: ClassVar[str] = "context_length"

    def features(self, ids_BL: Tensor, document_BL: Tensor | None = None, state: State | None = None) -> Tensor:
        """x_BLD: position t depends on tokens 0 … t and on what the state has read before; the state advances.

        Args:
            ids_BL: token ids.
            document_BL: document of each token, where several are packed in a row; None: one per row.
            state: decoding state, which advances; None: whole sequences.
        """
        raise NotImplementedError

    def start(self, batch: int) -> State:
        """A decoding state for `batch` texts. Its rows can be reordered, reset and joined (`State.join`) for batches that change."""
        raise NotImplementedError

    def forward(self, ids_BL: Tensor, document_BL: Tensor | None = None, state: State | None = None) -> Tensor:
        """logits_BLN

        Args:
            ids_BL: token ids.
            document_BL: document of each token, where several are packed in a row; None: one per row.
            state: decoding state, which advances; None: whole sequences.
        """
        return self.logits(self.features(ids_BL, document_BL, state))

    def step(self, token_B: Tensor, state: State, want_weights: bool = False) -> Step:
        """One token per row; the state advances. There is no source to have weights over; `regard.capture` shows the weights of all layers.

        Args:
            token_B: last token of each row.
            state: decoding state, which advances.
            want_weights: no effect: there is no source.
        """
        return Step(self.logits(self.features(token_B[:, None], state=state)[:, 0]), None)

    def generate(
        self, ids: Tensor | Sequence[int] | Sequence[Sequence[int]], *, eos_ids: Collection[int] = (), **options: Any
    ) -> list[list[int]]:
        """The new token ids of each row of ids; the options are those of `decode.GenerationOptions`, such as `max_tokens=100, temperature=0.8`.

        Args:
            ids: token ids of a prompt, or of several.
            eos_ids: tokens that end a completion.
            **options: fields of `decode.GenerationOptions`.
        """
        return _bound.generate_ids(self, ids, eos_ids, options)


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(LanguageModelConfig):
    width: Size = 256  # width of the model: features per token between layers
    heads: Size = 4  # attention heads per layer
    depth: Depth = 4  # number of layers
    attention: str | tuple[str, ...] = "softmax"  # mechanism of all layers, or several for the layers in turn: softmax,local

    def __post_init__(self) -> None:
        object.__setattr__(self, "attention", attention_lines(type(self).__name__, self.attention))
        super().__post_init__()

    def _check_heads(self) -> None:
        if self.width % self.heads:
            raise BadConfig(f"{type(self).__name__}: width={self.width}; expected a multiple of heads={self.heads}")


class Decoder(LanguageModel):
    r"""A stack of causal blocks: a model creates the four parts named below, and running them is here.

    $$x_t = E[\mathrm{id}_t] + P_t \qquad x \leftarrow \mathrm{block}_n(x) \qquad p(\mathrm{id}_{t+1}) = \mathrm{softmax}(W N(x_t))$$
    """

    config: DecoderConfig
    embedding: Embedding
    blocks: nn.ModuleList
    norm: nn.Module
    output: nn.Linear | None  # None: tied to the token embedding

    def features(self, ids_BL: Tensor, document_BL: Tensor | None = None, state: State | None = None) -> Tensor:
        self._check_ids(ids_BL, document_BL)
        if document_BL is None:
            return self._read(ids_BL, 0 if state is None else state.position(), causal, state)
        if state is not None:
            raise StateNotSupported("document_BL is for whole rows, not for decoding with a state; state.reset(rows) starts a new document")
        documents = Documents.of(document_BL)
        alike = all(block.mixer.attention.documents_stand_alone() and isinstance(block.mixer.within, Full) for block in self._blocks())
        if alike and documents.padding > PADDED:
            return self._read(ids_BL, documents.position_BL, causal & segments(document_BL))
        x_1TD = self._read(ids_BL.reshape(1, -1), documents.position_BL.reshape(1, -1), causal, packing=documents.rows)
        return x_1TD.view(*ids_BL.shape, -1)

    def head(self) -> tuple[Tensor, Tensor | None]:
        return (self.embedding.token if self.output is None else self.output).weight, None

    def start(self, batch: int) -> State:
        return States(batch, {f"block {i}": block.start(batch, causal) for i, block in enumerate(self._blocks())})

    def _read(
        self, ids_BL: Tensor, at: Position | Tensor, pattern: Pattern, state: State | None = None, packing: Packing | None = None
    ) -> Tensor:
        x_BLD: Tensor = self.embedding(ids_BL, at)
        for i, block in enumerate(self._blocks()):
            x_BLD = block(x_BLD, pattern, state=None if state is None else _parts(state)[f"block {i}"], packing=packing)
        if state is not None:
            state.length += ids_BL.shape[1]
        return self.norm(x_BLD)

    def _blocks(self) -> list[Any]:
        return list(self.blocks)  # nn.ModuleList does not know the type of its items


def layer_heads(config: DecoderConfig, layer: int, **options: Any) -> MultiHead:
    """The MultiHead of a layer, with the mechanism that the config names for it; the options are those of MultiHead.

    Args:
        config: config of the decoder.
        layer: index of the layer; mechanisms of the config take turns.
        **options: options of `MultiHead`.
    """
    c = config
    return build_heads(c.attention[layer % len(c.attention)], c.width, c.heads, c.context_length, **options)


def _parts(state: State) -> States:
    if not isinstance(state, States):
        raise StateNotSupported(f"a language model takes the state of its start(batch), not a {type(state).__name__}")
    return state
