r"""Adam whose step is as long as the weights allow: each tensor moves by a share of its own size, so huge batches can be used.

    m ← β₁ m + (1 − β₁) g        v ← β₂ v + (1 − β₂) g²        m̂ = m / (1 − β₁ᵗ)        v̂ = v / (1 − β₂ᵗ)
    u = m̂ / (√v̂ + ε) + λ w       w ← w − η · (‖w‖ / ‖u‖) · u

The ratio is 1 where either norm is 0, and for biases and gains, which are so small that a share of their size would never move them.
‖w‖ is taken as it is: public copies clamp it to 10, which the first version of the paper meant as a bound of the ratio.

Paper: You et al. 2020, "Large Batch Optimization for Deep Learning", arXiv:1904.00962, algorithm 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor

from .sharding import is_cut


class LambOptimizer(torch.optim.Optimizer):
    """A group may say `ratio=False`; then its tensors take plain Adam steps with decoupled decay."""

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "ratio": True})

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One update of every tensor that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._move(weight, group)
        return loss

    def _move(self, weight: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(weight)
            state["exp_avg_sq"] = torch.zeros_like(weight)
        (beta1, beta2), mean, square = group["betas"], state["exp_avg"], state["exp_avg_sq"]
        state["step"] += 1
        step = int(state["step"])
        mean.lerp_(weight.grad, 1 - beta1)
        square.mul_(beta2).addcmul_(weight.grad, weight.grad, value=1 - beta2)
        update = (mean / (1 - beta1**step)) / ((square / (1 - beta2**step)).sqrt_() + group["eps"])
        update.add_(weight, alpha=group["weight_decay"])
        ratio = 1.0
        if group["ratio"]:
            size, length = _norm(weight), _norm(update)
            ratio = size / length if size > 0 and length > 0 else 1.0
        weight.sub_(update, alpha=group["lr"] * ratio)


def _norm(x: Tensor) -> float:
    """Of the whole tensor, also where other processes hold a part of it."""
    norm = x.norm()
    return float(norm.full_tensor() if is_cut(norm) else norm)
