"""Linear attention: an ELU feature map, and a recurrent state of fixed size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._base import Paper
from ._feature_map import FeatureMapAttention, FeatureMapFacts
from .helpers import float32_or_wider

LEAST = -20.0  # where the exponential is cut off: products of two features stay far above the smallest float32


class LinearAttention(FeatureMapAttention):
    r"""Dot products of non-negative features take the place of the exponential of scores.

    $$o_i = \frac{\sum_j \big(\phi(q_i)^\top \phi(k_j)\big)\, v_j}{\sum_j \phi(q_i)^\top \phi(k_j)}, \qquad
      \phi(x) = \mathrm{elu}(x) + 1 = \begin{cases} x + 1 & x > 0 \\ e^x & x \le 0 \end{cases}$$

    Cost:    time O((L + M)·K·V), causal O(L·(C + K)·V) in chunks of C = 64; memory O(L·(C + K)). A decoding step
             costs O(K·V) at any length: the state is a K × (V + 1) matrix per head.
    Use it:  for long sequences and for decoding in constant time and memory, where smooth averages will do.
    Avoid it: for looking up one item among many: features that never reach zero cannot give sharp weights.
    Limits:  no bias: there are no scores. Patterns: `full`, `causal` and key masks (`lengths`, `since`).
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Katharopoulos et al. 2020, "Transformers are RNNs", arXiv:2006.16236, eq. 4–12.
    We differ: x is clamped at −20 before the exponential, so that no denominator vanishes; the authors' code adds
             10⁻⁶ to it instead. Causal training runs in chunks, not token by token.
    """

    facts = FeatureMapFacts(
        name="linear",
        paper=Paper("Transformers are RNNs: fast autoregressive transformers with linear attention", 2020, "arXiv:2006.16236"),
        formula="φ(q)·φ(k) / Σ φ(q)·φ(k) v,  φ = elu + 1",
        time="(L + M)·K·V",
        memory="L·(C + K)",
    )

    def features(self, x_BLHK: Tensor, positions_BL: Tensor) -> Tensor:
        return EluFeatures.apply(float32_or_wider(x_BLHK))  # type: ignore[no-untyped-call]


class EluFeatures(torch.autograd.Function):
    """φ(x) = max(x, 0) + exp(min(x, 0)). Its derivative is min(φ(x), 1), so only φ is saved; `where` would cost more than all of it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clamp(LEAST, 0).exp_().add_(x.relu())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # apart from forward: torch.func needs it so
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, d_phi: Tensor) -> Tensor:
        (phi,) = ctx.saved_tensors
        return phi.clamp_max(1) * d_phi
