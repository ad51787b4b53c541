r"""LAMB: Adam with steps scaled to the norm of each parameter, for very large batches.

    m ← β₁ m + (1 − β₁) g        v ← β₂ v + (1 − β₂) g²        m̂ = m / (1 − β₁ᵗ)        v̂ = v / (1 − β₂ᵗ)
    u = m̂ / (√v̂ + ε) + λ w       w ← w − η · (‖w‖ / ‖u‖) · u

The trust ratio ‖w‖ / ‖u‖ is 1 where either norm is 0, and for biases and gains, which are too small to move by a share of their norm.
‖w‖ is not clamped: public copies clamp it to 10, which the first version of the paper meant as a bound of the ratio.

Paper: You et al. 2020, "Large Batch Optimization for Deep Learning", arXiv:1904.00962, algorithm 2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from .distributed import is_cut


class LambOptimizer(torch.optim.Optimizer):
    """Groups with `ratio=False` take plain Adam steps with decoupled weight decay."""

    def __init__(
        self, params: ParamsT, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6, weight_decay: float = 0.01
    ):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "ratio": True})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One update of every parameter that has a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._move(weight, group)
        return loss

    def _move(self, weight: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            state.update(step=torch.zeros(()), exp_avg=torch.zeros_like(weight), exp_avg_sq=torch.zeros_like(weight))
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
    """Norm of the whole tensor, also where it is sharded over processes."""
    norm = x.norm()
    return float(norm.full_tensor() if is_cut(norm) else norm)
