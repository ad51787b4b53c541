r"""The vision transformer: an image is a sequence of patches, read by a transformer encoder.

$$x_0 = [\,c;\; W p_1 + b;\; \dots;\; W p_L + b\,] + P \qquad
  x \leftarrow x + \mathrm{MHA}(N(x)),\; x \leftarrow x + \mathrm{FFN}(N(x)) \qquad
  \mathrm{logits} = W_o\,N(x)_0 + b_o$$

c is a learned class token, and P one learned vector per position. In the hybrid of section 3.1 (`stem`) the patches are those of a feature map.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import BadConfig
from ..layers import ACTIVATIONS, Block, Dropout, FeedForward, LayerNorm, MultiHead, PatchEmbedding
from ..patterns import Full
from .image import ImageEncoder, ImageEncoderConfig
from .model import ModelFacts, Size, Sizes, attention_lines, build_heads


@dataclass(frozen=True, kw_only=True)
class ViTConfig(ImageEncoderConfig):
    heads: Size = 4  # attention heads per layer
    attention: tuple[str, ...] = ("softmax",)  # mechanisms of the layers in turn
    pool: Literal["class", "mean"] = "class"  # vector that is classified: a class token, or the mean of the patches
    positions: bool = True  # learned position embeddings; False is the ablation: a bag of patches
    activation: str = "gelu"  # activation of the feed-forward layers
    qkv_bias: bool = True  # a bias of queries, keys and values
    patch_bias: bool = True  # a bias of the patch embedding; CLIP has none
    embedding_norm: bool = False  # a norm before the first layer, as in CLIP
    pooler: bool = False  # a linear layer and tanh before the head, as in the paper's pretraining

    def __post_init__(self) -> None:
        object.__setattr__(self, "attention", attention_lines(type(self).__name__, self.attention))
        super().__post_init__()
        self._one_of("activation", ACTIVATIONS)
        if self.width % self.heads:
            raise BadConfig(f"{type(self).__name__}: width={self.width}; expected a multiple of heads={self.heads}")


def _sized(width: int, depth: int, patch: int) -> ViTConfig:
    """Heads of 64 features and feed-forward layers four times as wide, for 1,000 classes; patches of 4 pixels are for small images."""
    size = 32 if patch == 4 else 224
    return ViTConfig(
        image_size=(size, size), patch_size=(patch, patch), classes=1000, width=width, heads=width // 64, depth=depth, hidden=4 * width
    )


WIDTHS = {"tiny": (192, 12), "small": (384, 12), "base": (768, 12), "large": (1024, 24), "huge": (1280, 32)}  # and depths


class ViTEmbedding(nn.Module):
    """Patches projected to the width of the model, after a class token if there is one, plus learned positions."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        c = config
        self.patch = PatchEmbedding(c.channels, c.patch_size, c.width, bias=c.patch_bias, stem=c.stem)
        self.class_token_D = nn.Parameter(torch.zeros(c.width)) if c.pool == "class" else None
        tokens = c.grid[0] * c.grid[1] + (c.pool == "class")
        self.position = nn.Embedding(tokens, c.width) if c.positions else None
        self.norm = LayerNorm(c.width, eps=c.eps) if c.embedding_norm else nn.Identity()
        self.dropout = Dropout(c.dropout)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x_BLD = self.patch(x_BCHW)
        if self.class_token_D is not None:
            x_BLD = torch.cat([self.class_token_D.to(x_BLD.dtype).expand(len(x_BLD), 1, -1), x_BLD], 1)
        if self.position is not None:
            x_BLD = x_BLD + self.position.weight
        return self.dropout(self.norm(x_BLD))


class ViT(ImageEncoder):
    """Pre-norm blocks over patches with learned positions, classified by a class token or by their mean; any mechanism.

    Cost:    time O(L²·D + L·D·F) per layer for L patches: halving the patch size costs more than four times as much.
    Use it:  to classify images with much data or a pretrained checkpoint; wherever attention maps over an image are wanted.
    Avoid it: where few thousand images must do: without augmentation it learns them by heart sooner than a convolutional net.
    Limits:  images of one size; `with_image_size` makes a model for another by interpolating the positions.
    Shape:   x_BCHW → logits_BN.
    Paper:   Dosovitskiy et al. 2020, "An image is worth 16x16 words", arXiv:2010.11929; tiny and small: Touvron et al. 2020,
             arXiv:2012.12877.
    """

    facts = ModelFacts(name="vit", year=2020, title="An image is worth 16x16 words", paper="arXiv:2010.11929")
    Config = ViTConfig
    config: ViTConfig
    embedding: ViTEmbedding
    sizes: ClassVar[Sizes] = {
        f"vit-{name}-{patch}": _sized(*WIDTHS[name], patch)
        for name, patches in {
            "tiny": (4, 8, 16),  # 5,717,416 parameters with patches of 16, head included
            "small": (4, 8, 16, 32),  # 22,050,664
            "base": (4, 8, 16, 32),  # 86,567,656
            "large": (14, 16, 32),  # 304,326,632
            "huge": (14,),  # 632,045,800
        }.items()
        for patch in patches
    }

    def _build(self) -> None:
        c = self.config
        self.pooler = nn.Linear(c.width, c.width) if c.pooler else None
        super()._build()

    def _embedding(self) -> ViTEmbedding:
        return ViTEmbedding(self.config)

    def _block(self, layer: int) -> Block:
        c = self.config
        heads = build_heads(c.attention[layer % len(c.attention)], c.width, c.heads, self.max_length, qkv_bias=c.qkv_bias)
        feedforward = FeedForward(c.width, c.hidden, ACTIVATIONS[c.activation], dropout=c.dropout)
        return Block(c.width, heads, feedforward, norm=self._norm, dropout=c.dropout, drop_path=self._drop_path(layer))

    @property
    def class_tokens(self) -> int:
        return int(self.config.pool == "class")

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """logits_BN of the classes."""
        # In training nothing reads the last layer's patches, so it is computed for the class token alone: 4 to 15 % less time for 12 to 4 layers.
        if not self.training or self.output is None or not self._last_is_separable():
            return super().forward(x_BCHW)
        self.check(x_BCHW)
        x_BLD = self.embedding(x_BCHW)
        for block in self.blocks[:-1]:
            x_BLD = block(x_BLD)
        last = self.blocks[-1]
        assert isinstance(last, Block) and last.around_mixer.before is not None
        y_BLD = last.around_mixer.before(x_BLD)
        x_B1D = last.around_mixer.add(x_BLD[:, :1], last.mixer(y_BLD[:, :1], y_BLD))
        return self.output(self.pooled(self.norm(last.apply_feedforward(x_B1D))))

    def _last_is_separable(self) -> bool:
        """Return whether the class token's attention in the last layer depends neither on the other queries nor on positions."""
        heads = self.blocks[-1].mixer
        assert isinstance(heads, MultiHead)
        return self.config.pool == "class" and heads.attention.queries_stand_alone() and isinstance(heads.within, Full)

    def with_classes(self, classes: int) -> Self:
        """A copy with a new head for this many classes, over the features themselves: a pooler belongs to pretraining."""
        model = super().with_classes(classes)
        model.pooler, model.config = None, replace(model.config, pooler=False)
        return model

    def pooled(self, x_BLD: Tensor) -> Tensor:
        y_BD = x_BLD[:, 0] if self.config.pool == "class" else x_BLD.mean(1)
        return y_BD if self.pooler is None else torch.tanh(self.pooler(y_BD))

    def with_image_size(self, image_size: tuple[int, int]) -> Self:
        """A copy for images of another height and width: the grid of positions is interpolated, the class token keeps its own."""
        config = replace(self.config, image_size=image_size)
        model = deepcopy(self)
        model.config, position = config, model.embedding.position
        if position is not None and config.grid != self.config.grid:
            old_LD, first = position.weight.detach(), self.class_tokens
            old_1DHW = old_LD[first:].T.unflatten(1, self.config.grid)[None]
            new_1DHW = F.interpolate(old_1DHW.float(), config.grid, mode="bicubic", align_corners=False).to(old_LD.dtype)
            model.embedding.position = nn.Embedding.from_pretrained(torch.cat([old_LD[:first], new_1DHW[0].flatten(1).T]), freeze=False)
        return model
