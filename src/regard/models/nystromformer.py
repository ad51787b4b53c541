r"""Nyströmformer: BERT with attention approximated from landmarks, linear in the length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..attention import NystromAttention
from ..layers import MultiHead
from .encoder import Encoder, HeadsConfig
from .model import ModelFacts, Positive, Size


@dataclass(frozen=True, kw_only=True)
class NystromformerConfig(HeadsConfig):
    landmarks: Size = 64  # number of landmarks
    segmented: Size = 512  # kept for export: transformers takes texts of exactly this length, here they have any length
    kernel: Size = 65  # width of the convolution over the values
    activation: str = "gelu_tanh"
    eps: Positive = 1e-5
    pooler: bool = False
    nsp_head: bool = False


class Nystromformer(Encoder):
    """BERT with `NystromAttention`; exact up to as many tokens as there are landmarks.

    Cost:    time O(L·m·D + m³·H + L·D·F) per layer for m landmarks, memory O(L·(m + D)).
    Use it:  for texts of a few thousand tokens.
    Avoid it: where single tokens matter: a landmark is the mean of L/m neighbours.
    Limits:  at most `max_length` tokens.
    Paper:   Xiong et al. 2021, "Nyströmformer: a Nyström-based algorithm for approximating self-attention", arXiv:2102.03902.
    We differ: as in transformers the pseudo-inverse starts at one scale for the whole batch, so a row depends, in the digits that six
             iterations leave open, on the other rows; `NystromAttention` does not. Landmark segments cover each row's real tokens; the
             published code includes padding.
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
        return MultiHead(c.width, c.heads, NystromAttention(heads=c.heads, landmarks=c.landmarks, kernel=c.kernel, scale_over="batch"))
