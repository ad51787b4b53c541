r"""DALL·E: a text and the codes of an image are one sequence, which a transformer continues.

$$\text{image} \to z_1 \dots z_M \text{ (`discrete\_vae`)} \qquad
  p(t_1 \dots t_T, z_1 \dots z_M) = \prod_i p(t_i \mid t_{<i}) \prod_j p(z_j \mid t, z_{<j})$$

All tokens attend to the text. Among image tokens layers are sparse: a row layer attends to the last `grid` tokens, a column layer to the tokens
above, a convolutional layer to those within `radius` rows and columns. They are patterns (`DALLE.layer_pattern`), so any mechanism takes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import State
from ..errors import BadConfig, ShapeError
from ..kernels import choose
from ..layers import Block, Dropout, FeedForward, LayerNorm, States, gelu, init_gpt
from ..layers.spec import Spec
from ..patterns import Pattern, behind, causal, grid_window, local_causal, same_column, to_tokens
from .discrete_vae import DiscreteVAE
from .model import Depth, Model, ModelConfig, ModelFacts, Probability, Size, attention_lines, build_heads

Kind = Literal["row", "column", "conv"]
PADDING = -1  # in a text: no token


@dataclass(frozen=True, kw_only=True)
class DALLEConfig(ModelConfig):
    vocab_size: Size  # number of tokens of the texts
    max_length: Size = 32  # tokens per text, its begin and end included
    image_size: Size = 32  # pixels per side
    channels: Size = 3  # channels of the images
    stride: Size = 4  # pixels per code, a power of two
    codes: Size = 64  # size of the codebook
    features: Size = 64  # features of the codebook and the convolutions
    width: Size = 128  # width of the transformer
    heads: Size = 4  # attention heads per layer
    depth: Depth = 4  # number of layers
    sparse: bool = True  # row, column and convolutional layers; False: all layers attend to all earlier tokens
    radius: Size = 2  # radius of the convolutional layer, in cells
    attention: tuple[str, ...] = ("softmax",)  # mechanisms of the layers in turn
    dropout: Probability = 0.0  # dropout rate

    def __post_init__(self) -> None:
        object.__setattr__(self, "attention", attention_lines(type(self).__name__, self.attention))
        super().__post_init__()
        if self.stride & (self.stride - 1) or self.image_size % self.stride:
            raise BadConfig(f"image_size={self.image_size} and stride={self.stride}; expected a power of two that divides the size")
        if self.width % self.heads:
            raise BadConfig(f"DALLEConfig: width={self.width}; expected a multiple of heads={self.heads}")

    @property
    def grid(self) -> int:
        """Codes per side."""
        return self.image_size // self.stride


class TextImageLoss(NamedTuple):
    """Cross-entropies in nats, summed per row."""

    text_B: Tensor
    image_B: Tensor


class DALLE(Model):
    """A discrete VAE, and a causal transformer over text tokens followed by its codes in raster order.

    Cost:    time O((T + M)·(T + grid)·D) per sparse layer for T text and M image tokens; one decoding step per code.
    Use it:  to generate small images from texts, and to see how far sparse layers carry.
    Avoid it: for high resolution: the codes grow with the square of the side.
    Limits:  texts of at most `max_length` tokens, images of one size. Padding of each text position has an embedding of its own and is predicted
             too, as in the paper.
    Shape:   text_BT, codes_BM → the cross-entropy of both.
    Paper:   Ramesh et al. 2021, "Zero-shot text-to-image generation", arXiv:2102.12092, section 2 and appendices A and B.
    We differ: the layers of the VAE are few and plain, and its pixels normal, not logit-Laplace.
    """

    facts = ModelFacts(name="dalle", year=2021, title="Zero-shot text-to-image generation", paper="arXiv:2102.12092")
    Config = DALLEConfig
    config: DALLEConfig
    causal_parts: ClassVar[tuple[str, ...]] = ("blocks.",)

    def _build(self) -> None:
        c = self.config
        self.vae = DiscreteVAE(c.channels, c.features, c.stride, c.codes)
        # ids: text tokens, then one padding per text position, then codes
        self.token = nn.Embedding(c.vocab_size + c.max_length + c.codes, c.width)
        self.text_position = nn.Embedding(c.max_length, c.width)
        self.row, self.column = nn.Embedding(c.grid, c.width), nn.Embedding(c.grid, c.width)
        self.blocks = nn.ModuleList(self._block(layer) for layer in range(c.depth))
        self.norm, self.output = LayerNorm(c.width), nn.Linear(c.width, c.vocab_size + c.max_length + c.codes)
        self.dropout = Dropout(c.dropout)
        for part in (self.token, self.text_position, self.row, self.column, self.blocks, self.norm, self.output):
            init_gpt(part, c.depth)

    def _block(self, layer: int) -> Block:
        c = self.config
        spec = Spec.read(c.attention[layer % len(c.attention)])
        spec = spec._replace(pattern=spec.pattern & self.layer_pattern(layer)) if c.sparse else spec
        heads = build_heads(str(spec), c.width, c.heads, self.length)
        return Block(c.width, heads, FeedForward(c.width, 4 * c.width, gelu), dropout=c.dropout)

    @property
    def length(self) -> int:
        """Tokens of text and image."""
        return self.config.max_length + self.config.grid**2

    def layer_kind(self, layer: int) -> Kind:
        """The last layer is convolutional; of the others every fourth is a column layer, from the third on."""
        return "conv" if layer == self.config.depth - 1 else "column" if layer % 4 == 2 else "row"

    def layer_pattern(self, layer: int) -> Pattern:
        """The earlier tokens that this layer attends to: all of the text, and a part of the image."""
        c, kind = self.config, self.layer_kind(layer)
        within = {"row": local_causal(c.grid), "column": same_column(c.grid), "conv": grid_window(c.radius, c.grid)}[kind]
        return behind(within, c.max_length) | to_tokens(*range(c.max_length))

    # -- the sequence --------------------------------------------------------------------------------------------------

    def text_ids(self, text_BT: Tensor) -> Tensor:
        """Text in max_length tokens, with the padding of each position in place of −1 and after the end."""
        c = self.config
        if text_BT.shape[1] > c.max_length:
            raise ShapeError(f"texts of {text_BT.shape[1]} tokens, and this DALLE reads {c.max_length}; shorten them")
        text_BT = F.pad(text_BT, (0, c.max_length - text_BT.shape[1]), value=PADDING)
        return torch.where(text_BT == PADDING, c.vocab_size + torch.arange(c.max_length, device=text_BT.device), text_BT)

    def sequence(self, text_BT: Tensor, codes_BM: Tensor) -> Tensor:
        """ids_BL of text and image."""
        return torch.cat([self.text_ids(text_BT), codes_BM + self.config.vocab_size + self.config.max_length], 1)

    def features(self, ids_BL: Tensor, state: State | None = None) -> Tensor:
        """x_BLD: position t depends on tokens 0 … t, and on what the state has read before; the state advances."""
        self._check_ids(ids_BL, None)
        at, L = 0 if state is None else state.length, ids_BL.shape[1]
        x_BLD = self.dropout(self.token(ids_BL) + self._positions()[at : at + L])
        for n, block in enumerate(self.blocks):
            x_BLD = block(x_BLD, causal, state=None if state is None else _parts(state)[f"block {n}"])
        if state is not None:
            state.length += L
        return self.norm(x_BLD)

    def _positions(self) -> Tensor:
        """One vector per position: of the text, and the sum of row and column in the image."""
        image_MD = (self.row.weight[:, None] + self.column.weight).flatten(0, 1)
        return torch.cat([self.text_position.weight, image_MD])

    def _split(self) -> int:
        return self.config.vocab_size + self.config.max_length

    def text_logits(self, x_BLD: Tensor) -> Tensor:
        """Logits of the next text token or padding."""
        return F.linear(x_BLD, self.output.weight[: self._split()], self.output.bias[: self._split()])

    def code_logits(self, x_BLD: Tensor) -> Tensor:
        """Logits of the next code."""
        return F.linear(x_BLD, self.output.weight[self._split() :], self.output.bias[self._split() :])

    def forward(self, text_BT: Tensor, codes_BM: Tensor) -> TextImageLoss:
        """Cross-entropy of the text after its first token, and of all codes."""
        ids_BL, T = self.sequence(text_BT, codes_BM), self.config.max_length
        x_BLD = self.features(ids_BL[:, :-1])
        text_BL = F.cross_entropy(self.text_logits(x_BLD[:, : T - 1]).float().mT, ids_BL[:, 1:T], reduction="none")
        image_BL = F.cross_entropy(self.code_logits(x_BLD[:, T - 1 :]).float().mT, codes_BM, reduction="none")
        return TextImageLoss(text_BL.sum(1), image_BL.sum(1))

    # -- generation ----------------------------------------------------------------------------------------------------

    def start(self, batch: int) -> State:
        """A decoding state that has read nothing yet."""
        return States(batch, {f"block {n}": _block(block).start(batch, causal) for n, block in enumerate(self.blocks)})

    @torch.no_grad()
    def sample(self, text_BT: Tensor, *, temperature: float = 1.0, generator: torch.Generator | None = None) -> Tensor:
        """codes_BM drawn one by one; temperature 0 takes the most likely code.

        Args:
            text_BT: token ids of the texts; −1 after the end.
            temperature: sampling temperature; 0 takes the most likely.
            generator: random number generator; None: PyTorch's global one.
        """
        state = self.start(len(text_BT))
        x_BD, found = self.features(self.text_ids(text_BT), state)[:, -1], list[Tensor]()
        for number in range(self.config.grid**2):
            logits_BN = self.code_logits(x_BD).float()
            if temperature:
                p_BN = (logits_BN / temperature).softmax(-1)
                code_B = choose(p_BN, generator)
            else:
                code_B = logits_BN.argmax(-1)
            found.append(code_B)
            if number + 1 < self.config.grid**2:
                x_BD = self.features(code_B[:, None] + self._split(), state)[:, 0]
        return torch.stack(found, 1)


def _parts(state: State) -> States:
    assert isinstance(state, States)
    return state


def _block(block: Any) -> Block:
    assert isinstance(block, Block)
    return block
