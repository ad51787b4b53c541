r"""FNet: BERT without attention. A Fourier transform mixes the tokens; it has no parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..attention import State
from ..layers import FourierMixer, Packing
from ..patterns import Pattern, full, lengths
from .encoder import Encoder, EncoderConfig
from .model import ModelFacts, Size


@dataclass(frozen=True, kw_only=True)
class FNetConfig(EncoderConfig):
    segments: Size = 4
    activation: str = "gelu_tanh"


class FNet(Encoder):
    """BERT with `FourierMixer` in place of attention.

    Cost:    time O(L·D·log(L·D) + L·D·F) per layer, memory O(L·D).
    Use it:  where speed matters more than the last points of accuracy: the paper keeps 92 to 97 % of BERT's.
    Avoid it: where tokens must be found by content.
    Limits:  at most `max_length` tokens. The transform depends on the length, so each row is transformed over its n_B real tokens.
             Without n_B padding counts as tokens, as in the published code.
    Paper:   Lee-Thorp et al. 2021, "FNet: mixing tokens with Fourier transforms", arXiv:2105.03824.
    """

    facts = ModelFacts(name="fnet", year=2021, title="FNet: mixing tokens with Fourier transforms", paper="arXiv:2105.03824")
    Config = FNetConfig
    config: FNetConfig
    projected: ClassVar[bool] = True
    mixer_dropout: ClassVar[float | None] = 0.0  # the published blocks have no dropout after the transform

    def _mixer(self, layer: int) -> FourierMixer:
        return _EachLength()


class _EachLength(FourierMixer):
    """One transform per length in the batch."""

    def forward(self, x_BLD: Tensor, pattern: Pattern = full, state: State | None = None, packing: Packing | None = None) -> Tensor:
        if not isinstance(pattern, lengths):
            return super().forward(x_BLD, pattern, state)
        if packing is not None:
            return packing.pack(self.forward(packing.pad(x_BLD), pattern, state))
        n_B, mixed = pattern.keys.to(x_BLD.device), torch.zeros_like(x_BLD)
        for n in n_B.unique().tolist():
            rows = (n_B == n).nonzero()[:, 0]
            there = super().forward(x_BLD.index_select(0, rows)[:, :n], full, state)
            mixed = mixed.index_add(0, rows, torch.nn.functional.pad(there, (0, 0, 0, x_BLD.shape[1] - n)))
        return mixed
