r"""CLIP: an image tower and a text tower whose vectors agree where image and text belong together.

$$I = \frac{W_i f(x)}{|W_i f(x)|} \qquad T = \frac{W_t g(t)}{|W_t g(t)|} \qquad \mathrm{logits}_{bc} = e^{τ}\, I_b \cdot T_c$$
$$L = \tfrac12 \Big(\text{mean}_b\, \mathrm{CE}(\mathrm{logits}_{b\cdot},\, b) + \text{mean}_c\, \mathrm{CE}(\mathrm{logits}_{\cdot c},\, c)\Big)$$

f is a vision transformer, read at its class token; g a causal transformer, read at the end token. A classifier is made of texts:
the class whose prompt is nearest.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import BadConfig, ShapeError
from ..layers import ACTIVATIONS, Block, Embedding, FeedForward, LayerNorm, Learned, init_gpt
from ..patterns import causal
from .model import Count, Depth, Model, ModelConfig, ModelFacts, Size, Sizes, attention_lines, build_heads
from .vit import ViT, ViTConfig

MAX_SCALE = 100.0  # of the logits


@dataclass(frozen=True, kw_only=True)
class CLIPConfig(ModelConfig):
    vocab_size: Size  # number of tokens of the texts
    max_length: Size = 77  # longest text, its begin and end included
    end: Count | None = 2  # id of the end token, where a text is read; None: at the largest id, as in the first checkpoints
    width: Size = 128  # width of the text tower
    heads: Size = 4  # attention heads per layer of the text tower
    depth: Depth = 4  # layers of the text tower
    hidden: Size = 512  # width inside the feed-forward layers of the text tower
    image_size: Size = 32  # pixels per side
    patch_size: Size = 4  # pixels per side of a patch
    channels: Size = 3  # channels of the images
    image_width: Size = 128  # width of the image tower
    image_heads: Size = 4  # attention heads per layer of the image tower
    image_depth: Depth = 4  # layers of the image tower
    image_hidden: Size = 512  # width inside the feed-forward layers of the image tower
    embedding: Size = 128  # size of the vectors that images and texts share
    activation: str = "gelu_quick"  # activation of the feed-forward layers
    attention: tuple[str, ...] = ("softmax",)  # mechanisms of the layers of both towers in turn

    def __post_init__(self) -> None:
        object.__setattr__(self, "attention", attention_lines(type(self).__name__, self.attention))
        super().__post_init__()
        self._one_of("activation", ACTIVATIONS)
        for width, heads in (("width", "heads"), ("image_width", "image_heads")):
            if getattr(self, width) % getattr(self, heads):
                raise BadConfig(f"CLIPConfig: {width}={getattr(self, width)}; expected a multiple of {heads}={getattr(self, heads)}")

    def image_config(self) -> ViTConfig:
        """The image tower."""
        return ViTConfig(
            image_size=(self.image_size, self.image_size),
            patch_size=(self.patch_size, self.patch_size),
            channels=self.channels,
            width=self.image_width,
            heads=self.image_heads,
            depth=self.image_depth,
            hidden=self.image_hidden,
            attention=self.attention,
            activation=self.activation,
            patch_bias=False,
            embedding_norm=True,
            eps=1e-5,
        )


def _published(patch: int, image: tuple[int, int, int], text: int, embedding: int, size: int = 224) -> CLIPConfig:
    width, heads, depth = image
    return CLIPConfig(
        vocab_size=49_408, end=49_407, width=text, heads=text // 64, depth=12, hidden=4 * text, embedding=embedding,
        image_size=size, patch_size=patch, image_width=width, image_heads=heads, image_depth=depth, image_hidden=4 * width,
    )  # fmt: skip


class TextTower(nn.Module):
    """A causal pre-norm transformer: ids_BL to x_BLD."""

    def __init__(self, config: CLIPConfig):
        super().__init__()
        c = config
        self.embedding = Embedding(c.vocab_size, c.width, Learned(c.max_length, c.width))

        def block(layer: int) -> Block:
            heads = build_heads(c.attention[layer % len(c.attention)], c.width, c.heads, c.max_length)
            return Block(c.width, heads, FeedForward(c.width, c.hidden, ACTIVATIONS[c.activation]))

        self.blocks = nn.ModuleList(block(layer) for layer in range(c.depth))
        self.norm = LayerNorm(c.width)

    def forward(self, ids_BL: Tensor) -> Tensor:
        x_BLD: Tensor = self.embedding(ids_BL)
        for block in self.blocks:
            x_BLD = block(x_BLD, causal)
        normed: Tensor = self.norm(x_BLD)
        return normed


class CLIP(Model):
    """A vision transformer and a causal text transformer, trained to give an image and its caption the same direction.

    Cost:    time O(P²·D + P·D²) per image of P patches and O(L²·D + L·D²) per text; the loss O(B²·E) for B pairs.
    Use it:  to search images by text, to classify without examples of the classes, to rank generated images.
    Avoid it: for counting and for relations between objects: captions in a batch rarely differ in nothing else.
    Limits:  images of one size, texts of at most `max_length` tokens. Pairs of one batch are each other's negatives: batches should be large
             and hold no caption twice.
    Shape:   x_BCHW, ids_CL → logits_BC.
    Paper:   Radford et al. 2021, "Learning transferable visual models from natural language supervision", arXiv:2103.00020, section 2.
    """

    facts = ModelFacts(
        name="clip", year=2021, title="Learning transferable visual models from natural language supervision", paper="arXiv:2103.00020"
    )
    Config = CLIPConfig
    config: CLIPConfig
    causal_parts: ClassVar[tuple[str, ...]] = ("text.",)
    sizes: ClassVar[Sizes] = {
        "clip-vit-base-32": _published(32, (768, 12, 12), 512, 512),  # 151,277,313 parameters
        "clip-vit-base-16": _published(16, (768, 12, 12), 512, 512),  # 149,620,737
        "clip-vit-large-14": _published(14, (1024, 16, 24), 768, 768),  # 427,616,513
        "clip-vit-large-14-336": _published(14, (1024, 16, 24), 768, 768, 336),  # 427,944,193
    }

    def _build(self) -> None:
        c = self.config
        self.image, self.text = ViT(c.image_config()), TextTower(c)
        self.image_projection = nn.Linear(c.image_width, c.embedding, bias=False)  # W_i
        self.text_projection = nn.Linear(c.width, c.embedding, bias=False)  # W_t
        self.log_scale = nn.Parameter(torch.tensor(log(1 / 0.07)))  # τ
        init_gpt(self.text, c.depth)
        for projection in (self.image_projection, self.text_projection):
            nn.init.normal_(projection.weight, std=projection.in_features**-0.5)

    def encode_images(self, x_BCHW: Tensor) -> Tensor:
        """I: a vector of length one per image, i_BE."""
        return F.normalize(self.image_projection(self.image.pooled(self.image.features(x_BCHW))), dim=-1)

    def encode_texts(self, ids_BL: Tensor) -> Tensor:
        """T: a vector of length one per text, t_BE. What comes after the end token does not count."""
        self._check_ids(ids_BL, None)
        if ids_BL.shape[1] > self.config.max_length:
            raise ShapeError(f"texts of {ids_BL.shape[1]} tokens, and this CLIP reads {self.config.max_length}; shorten them")
        is_end_BL = ids_BL == self.config.end if self.config.end is not None else ids_BL
        end_B = is_end_BL.int().argmax(-1)  # the first of the largest
        x_BLD = self.text(ids_BL)
        return F.normalize(self.text_projection(x_BLD[torch.arange(len(ids_BL), device=ids_BL.device), end_B]), dim=-1)

    @property
    def scale(self) -> Tensor:
        """e^τ"""
        return self.log_scale.exp()

    def forward(self, x_BCHW: Tensor, ids_CL: Tensor) -> Tensor:
        """logits_BC of all images against all texts."""
        return self.scale * self.encode_images(x_BCHW) @ self.encode_texts(ids_CL).T


def contrastive_loss(logits_BB: Tensor) -> Tensor:
    """The mean of both directions: of texts for each image, and of images for each text; the right pairs are on the diagonal."""
    right_B = torch.arange(len(logits_BB), device=logits_BB.device)
    return (F.cross_entropy(logits_BB, right_B) + F.cross_entropy(logits_BB.T, right_B)) / 2
