r"""A step of the same length in every direction: the momentum of a matrix with all its singular values set to about one.

    m ← β m + g        u = g + β m        u = U S Vᵀ  ⟼  O ≈ U Vᵀ        w ← w − η · (0.2 √max(rows, columns) · O + λ w)

Gradients of matrices are nearly of low rank: a few directions are loud, and Adam, which scales entries, keeps them so. The polar factor
U Vᵀ makes rare directions count as much. It is found by Newton–Schulz iterations x ← a x + b (x xᵀ) x + c (x xᵀ)² x, matrix products
only, whose coefficients are chosen to lift small singular values fast and end between 0.7 and 1.2. The factor 0.2 √max gives entries of
about Adam's size, so that one learning rate serves both: tables, norms and biases take AdamW's step.

Projections that are stored as one matrix (q, k and v) are turned apart. Matrices of one shape are turned together, in batched products.

Paper: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"; the factor: Liu et al. 2025, arXiv:2502.16982.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 4  # five lift singular values below a 200th of the norm a little more, for a quarter more time


def orthogonal(x_NRC: Tensor, iterations: int = ITERATIONS) -> Tensor:
    """Matrices with the singular vectors of `x_NRC` and singular values near one; zero stays zero."""
    a, b, c = COEFFICIENTS
    wide = x_NRC.shape[1] > x_NRC.shape[2]
    x_NRC = x_NRC.mT if wide else x_NRC
    x_NRC = x_NRC / x_NRC.norm(dim=(1, 2), keepdim=True).clamp_min(torch.finfo(x_NRC.dtype).tiny)
    for _ in range(iterations):
        square_NRR = x_NRC @ x_NRC.mT
        # b s + c s² in one product, then a x + that · x in another
        x_NRC = torch.baddbmm(x_NRC, torch.baddbmm(square_NRR, square_NRR, square_NRR, beta=b, alpha=c), x_NRC, beta=a)
    return x_NRC.mT if wide else x_NRC


class MuonOptimizer(torch.optim.Optimizer):
    """Groups with `turned` (for each matrix the numbers of rows of its parts) take Muon's steps, the others AdamW's."""

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        lr: float = 1e-3,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-8,
    ):
        super().__init__(params, {"lr": lr, "momentum": momentum, "betas": betas, "eps": eps, "weight_decay": 0.0, "turned": None})

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
            (self._adam if group["turned"] is None else self._turn)(group)
        return loss

    def _turn(self, group: dict[str, Any]) -> None:
        shapes: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = {}
        for weight, rows in zip(group["params"], group["turned"], strict=True):
            if weight.grad is None:
                continue
            state = self.state[weight]
            if not state:
                state["momentum"] = torch.zeros_like(weight)
            momentum = state["momentum"].mul_(group["momentum"]).add_(weight.grad)
            for w, u in zip(weight.split(rows), weight.grad.add(momentum, alpha=group["momentum"]).split(rows), strict=True):
                shapes.setdefault(tuple(w.shape), []).append((w, u))
        for (rows, columns), parts in shapes.items():
            turned = orthogonal(torch.stack([u for _, u in parts]))
            length = group["lr"] * 0.2 * max(rows, columns) ** 0.5
            for (w, _), o in zip(parts, turned, strict=True):
                w.mul_(1 - group["lr"] * group["weight_decay"]).sub_(o, alpha=length)

    def _adam(self, group: dict[str, Any]) -> None:
        weights = [w for w in group["params"] if w.grad is not None]
        for weight in weights:
            if not self.state[weight]:
                self.state[weight].update(step=torch.zeros(()), exp_avg=torch.zeros_like(weight), exp_avg_sq=torch.zeros_like(weight))
        if weights:
            states = [self.state[w] for w in weights]
            torch._fused_adamw_(
                weights,
                [w.grad for w in weights],
                [s["exp_avg"] for s in states],
                [s["exp_avg_sq"] for s in states],
                [],
                [s["step"].add_(1) for s in states],
                lr=group["lr"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
            )
