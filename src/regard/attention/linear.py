"""Attention as a recurrent network: features of exponential-linear units, sums of fixed size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._base import Facts
from ._kernel import PATTERNS, Kernel, precise

LEAST = -20.0  # where the exponential is cut off: products of two features stay far above the smallest float32


class LinearAttention(Kernel):
    r"""Products of features that are never negative take the place of the exponential of scores.

    $$o_i = \frac{\sum_j \big(\phi(q_i)^\top \phi(k_j)\big)\, v_j}{\sum_j \phi(q_i)^\top \phi(k_j)}, \qquad
      \phi(x) = \mathrm{elu}(x) + 1 = \begin{cases} x + 1 & x > 0 \\ e^x & x \le 0 \end{cases}$$

    Cost:    time O((L + M)·K·V), causal O(L·(C + K)·V) in chunks of C = 64; memory O(L·(C + K)). A step of decoding costs
             O(K·V), however long the past: its state is a K × (V + 1) matrix a head.
    Use it:  for long sequences and for decoding in constant time and memory, where smooth averages will do.
    Avoid it: for looking one thing up among many: features that never reach zero cannot give sharp weights.
    Limits:  no bias: there are no scores. Patterns are `full`, `causal`, and which keys are real (`lengths`, `since`).
    Paper:   Katharopoulos et al. 2020, "Transformers are RNNs", arXiv:2006.16236, eq. 4-12.
    We differ: eˣ is taken at −20 where x is below, so that no denominator vanishes; the authors' code adds 10⁻⁶ to it instead.
             Causal training goes in chunks, not token by token.
    """

    facts = Facts(
        name="linear",
        year=2020,
        title="Transformers are RNNs: fast autoregressive transformers with linear attention",
        paper="arXiv:2006.16236",
        formula="φ(q)·φ(k) / Σ φ(q)·φ(k) v,  φ = elu + 1",
        time="(L + M)·K·V",
        memory="L·(C + K)",
        patterns=PATTERNS,
        bias=False,
    )

    def features(self, x_BLHK: Tensor) -> Tensor:
        return Features.apply(precise(x_BLHK))  # type: ignore[no-any-return, no-untyped-call]


class Features(torch.autograd.Function):
    """φ(x) = max(x, 0) + exp(min(x, 0)), whose slope is min(φ(x), 1): nothing else is kept, and no `where`, which costs more than all of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        phi = x.clamp(LEAST, 0).exp_().add_(x.relu())
        ctx.save_for_backward(phi)
        return phi

    @staticmethod
    def backward(ctx: Any, d_phi: Tensor) -> Tensor:
        (phi,) = ctx.saved_tensors
        return phi.clamp_max(1) * d_phi  # type: ignore[no-any-return]
