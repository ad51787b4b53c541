r"""Nyströmformer: BERT whose attention is rebuilt from some landmarks, linear in the length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..attention import NystromAttention
from ..layers import MultiHead
from ._encoder import Encoder, HeadsConfig
from ._model import ModelFacts


@dataclass(frozen=True, kw_only=True)
class NystromformerConfig(HeadsConfig):
    landmarks: int = 64
    segmented: int = 512  # transformers takes texts of exactly so many tokens; here it is kept for it, and texts have any length
    kernel: int = 65  # of the convolution of the values
    activation: str = "gelu_tanh"
    eps: float = 1e-5
    pooler: bool = False
    sentences: bool = False


class Nystromformer(Encoder):
    """BERT's blocks, looking by `NystromAttention`; exactly up to as many tokens as there are landmarks.

    Cost:    time O(L·m·D + m³·H + L·D·F) a layer for m landmarks, memory O(L·(m + D)).
    Use it:  for texts of some thousand tokens.
    Avoid it: where single tokens matter: a landmark is the mean of L/m neighbours.
    Limits:  at most `length` tokens.
    Paper:   Xiong et al. 2021, "Nyströmformer: a Nyström-based algorithm for approximating self-attention", arXiv:2102.03902.
    We differ: as in transformers the pseudo-inverse begins at one scale for the whole batch, so a row depends, in the digits that six
             iterations leave open, on its neighbours; `NystromAttention` by itself does not. Segments are those of each row's own length; the
             published code counts padding in.
    """

    facts = ModelFacts(
        name="nystromformer",
        year=2021,
        title="Nyströmformer: a Nyström-based algorithm for approximating self-attention",
        paper="arXiv:2102.03902",
    )
    Config = NystromformerConfig
    config: NystromformerConfig
    offset: ClassVar[int] = 2

    def _mixer(self, layer: int) -> MultiHead:
        c = self.config
        return MultiHead(c.width, c.heads, OneScale(heads=c.heads, landmarks=c.landmarks, kernel=c.kernel))


class OneScale(NystromAttention):
    """The pseudo-inverse begins at Aᵀ over the largest ‖A‖₁ of all rows and heads."""

    def _scale(self, norm_BH11: Tensor) -> Tensor:
        return norm_BH11.amax((0, 1), keepdim=True)
