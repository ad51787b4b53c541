r"""Activations of feed-forward layers: plain functions.

Gated ones take twice the features and return half; the first half is the gate (Shazeer's order; `torch.nn.functional.glu` gates with the
second).

| name | f or g | seen in |
|---|---|---|
| `relu` | max(x, 0) | Transformer 2017, T5 |
| `gelu`, `gelu_tanh`, `gelu_quick` | x·Φ(x), by erf; by tanh; as x·σ(1.702 x) | BERT and ViT; GPT-2; CLIP |
| `silu` | x·σ(x) | |
| `glu`, `reglu`, `geglu`, `swiglu` | gates σ, relu, gelu, silu | –, –, T5 1.1 (with tanh), PaLM and Llama |

Paper: Hendrycks & Gimpel 2016, arXiv:1606.08415; Shazeer 2020, "GLU variants improve transformer", arXiv:2002.05202.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels import gelu_tanh as gelu_tanh

Activation = Callable[[Tensor], Tensor]

relu: Activation = F.relu
silu: Activation = F.silu
gelu: Activation = F.gelu


def gelu_quick(x: Tensor) -> Tensor:
    """The sigmoid approximation of GELU.

    Args:
        x: any tensor.

    Shape: x → out, elementwise.
    """
    return x * torch.sigmoid(1.702 * x)


# by the names used in configs
ACTIVATIONS: dict[str, Activation] = {"gelu": gelu, "gelu_tanh": gelu_tanh, "gelu_quick": gelu_quick, "relu": relu, "silu": silu}


@dataclass(frozen=True)
class Gated:
    """The first half of the features, through `gate`, multiplies the second half.

    Args:
        gate: activation of the first half.
    """

    gate: Activation

    def __call__(self, x: Tensor) -> Tensor:
        gate, value = x.chunk(2, -1)
        return self.gate(gate) * value


glu = Gated(torch.sigmoid)
reglu = Gated(relu)
geglu = Gated(gelu)
swiglu = Gated(silu)
