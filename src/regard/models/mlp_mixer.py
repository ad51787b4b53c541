r"""MLP-Mixer: a vision transformer without attention. A feed-forward layer along the patches mixes them, the same for every feature.

$$x \leftarrow x + \big(W_2\,\mathrm{gelu}(W_1 N(x))\big) \text{ along patches},\qquad x \leftarrow x + W_4\,\mathrm{gelu}(W_3 N(x)) \text{ along features}$$
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..layers import Block, FeedForward, PatchEmbedding, TokenMixer, gelu
from .image import ImageEncoder, ImageEncoderConfig
from .model import ModelFacts, Size, Sizes


@dataclass(frozen=True, kw_only=True)
class MLPMixerConfig(ImageEncoderConfig):
    token_hidden: Size = 64  # width inside the feed-forward layers along patches


def _sized(width: int, depth: int, patch: int) -> MLPMixerConfig:
    return MLPMixerConfig(
        image_size=(224, 224), patch_size=(patch, patch), classes=1000, width=width, depth=depth, hidden=4 * width, token_hidden=width // 2
    )


class MLPMixer(ImageEncoder):
    """Pre-norm blocks that mix patches by a fixed feed-forward layer, classified by the mean of the patches.

    Cost:    time O(L·F·D + L·D·F) per layer: linear in the number of patches, if the width along them is fixed.
    Use it:  as the simplest image model of matmuls only; to see what attention adds.
    Avoid it: where images have several sizes, and where it is of interest what is attended to: nothing is.
    Limits:  images of one size. It needs no positions: each patch has weights of its own.
    Paper:   Tolstikhin et al. 2021, "MLP-Mixer: an all-MLP architecture for vision", arXiv:2105.01601.
    """

    facts = ModelFacts(name="mlp_mixer", year=2021, title="MLP-Mixer: an all-MLP architecture for vision", paper="arXiv:2105.01601")
    Config = MLPMixerConfig
    config: MLPMixerConfig
    sizes: ClassVar[Sizes] = {
        "mixer-small-32": _sized(512, 8, 32),  # 19.1 million parameters
        "mixer-small-16": _sized(512, 8, 16),  # 18.5 million
        "mixer-base-32": _sized(768, 12, 32),  # 60.3 million
        "mixer-base-16": _sized(768, 12, 16),  # 59.9 million
        "mixer-large-32": _sized(1024, 24, 32),  # 206.9 million
        "mixer-large-16": _sized(1024, 24, 16),  # 208.2 million
    }

    def _embedding(self) -> PatchEmbedding:
        c = self.config
        return PatchEmbedding(c.channels, c.patch_size, c.width, stem=c.stem)

    def _block(self, layer: int) -> Block:
        c = self.config
        mixer = TokenMixer(self.max_length, c.token_hidden, dropout=c.dropout)
        feedforward = FeedForward(c.width, c.hidden, gelu, dropout=c.dropout)
        return Block(c.width, mixer, feedforward, norm=self._norm, dropout=c.dropout, drop_path=self._drop_path(layer))
