r"""The Image Transformer: an image is written pixel by pixel, in raster order, with attention to a neighbourhood of earlier pixels.

$$p(x) = \prod_t p(x_t \mid x_{<t}) \qquad h_t = E[x_{t-1}] + P_t \qquad h \leftarrow \mathrm{block}_n(h) \qquad p(x_t \mid x_{<t}) = \mathrm{output}(N(h_t))$$

With an encoder over an image of low resolution, to which every block of the decoder attends, it is a model for super-resolution.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..attention import State
from ..errors import BadConfig, DtypeError, ShapeError
from ..layers import Block, FeedForward, LayerNorm, MultiHead, States, init_xavier, relu
from ..patterns import causal
from .model import Depth, Model, ModelConfig, ModelFacts, Probability, Size, Sizes, attention_lines, build_heads
from .pixels import KINDS, LogisticOutput, Output, Values


@dataclass(frozen=True, kw_only=True)
class ImageTransformerConfig(ModelConfig):
    image_size: tuple[Size, Size] = (8, 8)  # height and width in pixels
    channels: Size = 1  # 1: grey, 3: red, green and blue
    levels: Size = 256  # values of a channel
    output: str = "categorical"  # a softmax over the values; or "logistics", a mixture of discretised logistic distributions
    mixtures: Size = 10  # components of the mixture
    source_size: tuple[Size, Size] | None = None  # height and width of an image of low resolution for an encoder; none: no encoder
    width: Size = 128  # width of the model: features per position between layers
    heads: Size = 4  # attention heads per layer
    depth: Depth = 4  # number of layers of the decoder
    encoder_depth: Depth = 2  # number of layers of the encoder, if there is one
    hidden: Size = 512  # width inside the feed-forward layers
    dropout: Probability = 0.1  # dropout rate
    positions: bool = True  # sinusoids of row and column; False is the ablation
    attention: str | tuple[str, ...] = "image_1d"  # mechanism of the decoder's layers, or several for the layers in turn: image_1d,image_2d

    def __post_init__(self) -> None:
        object.__setattr__(self, "attention", attention_lines(type(self).__name__, self.attention))
        super().__post_init__()
        self._one_of("output", KINDS)
        name = type(self).__name__
        if self.channels not in (1, 3) or self.levels < 2:
            raise BadConfig(f"{name}: channels={self.channels}, levels={self.levels}; expected 1 or 3 channels and 2 levels or more")
        if self.width % self.heads or self.width % 4:
            raise BadConfig(f"{name}: width={self.width}; expected a multiple of heads={self.heads}, and of 4 for positions on a grid")
        if self.source_size is not None and self.factor * self.source_size[0] != self.image_size[0]:
            raise BadConfig(
                f"{name}: source_size={self.source_size} of image_size={self.image_size}; expected both sides divided by one whole number"
            )

    @property
    def factor(self) -> int:
        """Pixels of the image per pixel of the source, along a side; 0 if the width is not a multiple."""
        assert self.source_size is not None
        return 0 if self.image_size[1] % self.source_size[1] else self.image_size[1] // self.source_size[1]


# CIFAR-10 of the paper: 12 layers, width 512, blocks of 256 and memories of 512
BASE = ImageTransformerConfig(
    image_size=(32, 32), channels=3, width=512, heads=4, depth=12, hidden=2048, dropout=0.3, attention="image_1d(block=256, memory=512)"
)


class ImageTransformer(Model):
    """Pixels in raster order, each predicted from those before it; any causal mechanism, local attention by default.

    Cost:    time O(L·((c + m)·D + D·F)) per layer for L = height · width · channels positions (without channels for logistics), blocks of c
             and memories of m positions; a sampling step reads a KV cache.
    Use it:  for densities of images (bits per dimension), completion of images, and super-resolution.
    Avoid it: for large images: sampling takes a step per position. Discrete codes (DALL·E) are shorter.
    Limits:  one image size per model. The mechanism must be causal and decode step by step.
    Shape:   pixels_BHWC, source_BHWC → nats_BL.
    Paper:   Parmar et al. 2018, "Image transformer", arXiv:1802.05751.
    We differ: 2-D local attention goes with plain raster order, where the paper writes the image block by block. Norms come before the
             sublayers. Positions are sinusoids, one of the paper's two kinds.
    """

    facts = ModelFacts(name="image_transformer", year=2018, title="Image transformer", paper="arXiv:1802.05751")
    Config = ImageTransformerConfig
    config: ImageTransformerConfig
    sizes: ClassVar[Sizes] = {"image-transformer-base": BASE}
    causal_parts: ClassVar[tuple[str, ...]] = ("decoder.",)
    length_setting: ClassVar[str] = "image_size"
    values: Values
    output: Output
    source: Values | None

    def _build(self) -> None:
        c = self.config
        embedding, output = KINDS[c.output]
        self.values = embedding(c.width, c.channels, c.levels, c.image_size[1], dropout=c.dropout, positions=c.positions)
        self.start_D = nn.Parameter(torch.randn(c.width))  # stands for the pixel before the first

        def block(attention: str, cross: MultiHead | None = None, columns: int | None = None) -> Block:
            mixer = build_heads(attention, c.width, c.heads, self.max_length, columns=columns)
            return Block(c.width, mixer, FeedForward(c.width, c.hidden, relu), cross=cross, dropout=c.dropout)

        def cross() -> MultiHead | None:
            return None if c.source_size is None else MultiHead(c.width, c.heads)

        lines = [c.attention[layer % len(c.attention)] for layer in range(c.depth)]
        self.decoder = nn.ModuleList(block(line, cross(), self.grid_columns) for line in lines)
        self.norm = LayerNorm(c.width)
        self.source, self.encoder, self.encoder_norm = None, None, None
        if c.source_size is not None:
            self.source = embedding(
                c.width, c.channels, c.levels, c.source_size[1], step=c.factor, dropout=c.dropout, positions=c.positions
            )
            self.encoder = nn.ModuleList(block("softmax") for _ in range(c.encoder_depth))
            self.encoder_norm = LayerNorm(c.width)
        self.output = output(c.width, c.channels, c.levels, c.mixtures)
        init_xavier(self)
        if isinstance(self.output, LogisticOutput):
            self.output.spread()

    @property
    def max_length(self) -> int:
        """Positions per image."""
        height, width = self.config.image_size
        return height * width * self.config.channels // self.values.per_position

    @property
    def grid_columns(self) -> int:
        """Positions per row of the image."""
        return self.values.columns

    def head(self) -> tuple[Tensor, Tensor | None]:
        return self.output.linear.weight, self.output.linear.bias

    # -- likelihood ------------------------------------------------------------------------------------------------------

    def forward(self, pixels_BHWC: Tensor, source_BHWC: Tensor | None = None) -> Tensor:
        """nats_BL: −ln p of each position given those before it (and the source); their sum is −ln p of the image."""
        self._check(pixels_BHWC, self.config.image_size)
        values_BLE = self.values.split(pixels_BHWC)
        return -self.output.log_probs(self.features(values_BLE[:, :-1], self.encode(source_BHWC)), values_BLE)

    def encode(self, source_BHWC: Tensor | None) -> Tensor | None:
        """memory_BMD of the image of low resolution; None for a model without an encoder."""
        if self.source is None or self.encoder is None or self.encoder_norm is None or self.config.source_size is None:
            if source_BHWC is not None:
                raise ShapeError("a source for an ImageTransformer without an encoder; build it with source_size=(height, width)")
            return None
        if source_BHWC is None:
            raise ShapeError(f"this ImageTransformer needs a source, an image of {self.config.source_size} pixels")
        self._check(source_BHWC, self.config.source_size)
        values_BME = self.source.split(source_BHWC)
        x_BMD = self.source(values_BME, 0, self.source.place(torch.arange(values_BME.shape[1], device=values_BME.device)))
        for block in self.encoder:
            x_BMD = block(x_BMD)
        return self.encoder_norm(x_BMD)

    def features(self, values_BNE: Tensor, memory_BMD: Tensor | None = None, state: State | None = None) -> Tensor:
        """Features that each position is predicted from: x_BLD of positions 0 … N for the first N values.

        With a state that has read n values, of positions n + 1 … n + N; a fresh one begins with position 0, too. The state advances.

        Args:
            values_BNE: first N values of each image, E per position.
            memory_BMD: encoded image of low resolution; None: none.
            state: sampling state, which advances; None: whole images.
        """
        B, N, _ = values_BNE.shape
        first = 0 if state is None else state.length  # position of the first value, plus one
        device = values_BNE.device
        x_BLD = self.values(values_BNE, max(0, first - 1), torch.arange(max(1, first), max(1, first) + N, device=device))
        if first == 0:
            start_B1D = self.values.positioned(self.start_D.expand(B, 1, -1), torch.zeros(1, dtype=torch.long, device=device))
            x_BLD = torch.cat([start_B1D, x_BLD], 1)
        for i, block in enumerate(self.decoder):
            part = state[f"block {i}"] if isinstance(state, States) else None
            x_BLD = block(x_BLD, causal, memory_BMD, state=part)
        if state is not None:
            state.length += x_BLD.shape[1]
        return self.norm(x_BLD)

    # -- sampling --------------------------------------------------------------------------------------------------------

    def start(self, batch: int, source_BHWC: Tensor | None = None) -> States:
        """A sampling state that has read nothing yet; the source is encoded once."""
        memory_BMD = self.encode(source_BHWC)
        blocks: list[Block] = list(self.decoder)  # type: ignore[arg-type]  # nn.ModuleList does not know the type of its items
        return States(batch, {f"block {i}": block.start(batch, causal, memory_BMD) for i, block in enumerate(blocks)})

    @torch.no_grad()
    def complete(
        self,
        pixels_BHWC: Tensor,
        keep: int = 0,
        source_BHWC: Tensor | None = None,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
        progress: Callable[[int, int], object] = lambda done, of: None,
    ) -> Tensor:
        """pixels_BHWC with the first `keep` rows as given and all others sampled, a position per step.

        Args:
            pixels_BHWC: images whose first rows are given.
            keep: number of rows that stay as they are.
            source_BHWC: images of low resolution; None for a model without an encoder.
            temperature: sampling temperature; 0 takes the most likely.
            generator: random number generator; None: PyTorch's global one.
            progress: called with the number of positions done and of all.
        """
        self._check(pixels_BHWC, self.config.image_size)
        known = keep * self.grid_columns
        values_BLE, state = self.values.split(pixels_BHWC).clone(), self.start(len(pixels_BHWC), source_BHWC)
        x_BD = self.features(values_BLE[:, :known], state=state)[:, -1]
        for at in range(known, self.max_length):
            values_BLE[:, at] = self.output.sample(x_BD, temperature, generator)
            progress(at + 1 - known, self.max_length - known)
            if at + 1 < self.max_length:
                x_BD = self.features(values_BLE[:, at : at + 1], state=state)[:, -1]
        return self.values.join(values_BLE)

    def _check(self, pixels_BHWC: Tensor, size: tuple[int, int]) -> None:
        c = self.config
        if pixels_BHWC.dim() != 4 or pixels_BHWC.shape[1:] != (*size, c.channels):
            raise ShapeError(f"ImageTransformer takes pixels (batch, {size[0]}, {size[1]}, {c.channels}), got {tuple(pixels_BHWC.shape)}")
        if pixels_BHWC.dtype.is_floating_point or pixels_BHWC.dtype == torch.bool:
            raise DtypeError(
                f"ImageTransformer takes values 0 to {c.levels - 1} as integers, not {pixels_BHWC.dtype}; convert with .long()"
            )
