r"""Muon: momentum whose matrices are orthogonalised, so that a step is as long in rare directions as in frequent ones.

    m ← β m + g        u = g + β m        u = U S Vᵀ  ⟼  O ≈ U Vᵀ        w ← w − η · (0.2 √max(rows, columns) · O + λ w)

Gradients of matrices are nearly of low rank: a few directions dominate, and Adam, which scales entries, keeps it so. The polar factor
U Vᵀ makes rare directions count as much. It is computed by Newton–Schulz iterations x ← a x + b (x xᵀ) x + c (x xᵀ)² x, matmuls only,
whose coefficients are chosen to raise small singular values fast and end between 0.7 and 1.2. The factor 0.2 √max gives entries of
about Adam's size, so that one learning rate serves both: embeddings, norms and biases take AdamW's step.

Not `torch.optim.Muon`: it iterates in bfloat16, which some processors only emulate and some virtual machines do not survive; it takes one
matrix at a time, while here matrices of one shape are orthogonalised in one batched matmul; it treats a stored q, k, v projection as one
matrix, while here its parts are orthogonalised apart; and it leaves everything that is not a matrix to a second optimizer.

Paper: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"; the factor: Liu et al. 2025, arXiv:2502.16982.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 4  # a fifth raises singular values below a 200th of the norm a little more, for a quarter more time


def orthogonalize(x_NRC: Tensor, iterations: int = ITERATIONS) -> Tensor:
    """Matrices with the singular vectors of `x_NRC` and singular values near one; a zero matrix stays zero."""
    a, b, c = COEFFICIENTS
    wide = x_NRC.shape[1] > x_NRC.shape[2]
    x_NRC = x_NRC.mT if wide else x_NRC
    x_NRC = x_NRC / x_NRC.norm(dim=(1, 2), keepdim=True).clamp_min(torch.finfo(x_NRC.dtype).tiny)
    for _ in range(iterations):
        square_NRR = x_NRC @ x_NRC.mT
        # b s + c s² in one matmul, then a x + that · x in another
        x_NRC = torch.baddbmm(x_NRC, torch.baddbmm(square_NRR, square_NRR, square_NRR, beta=b, alpha=c), x_NRC, beta=a)
    return x_NRC.mT if wide else x_NRC


class MuonOptimizer(torch.optim.AdamW):
    """AdamW, but groups with `parts` (for each matrix the number of rows of each part) take Muon's steps."""

    def __init__(self, params: Iterable[dict[str, Any]], momentum: float, betas: tuple[float, float], eps: float):
        groups = [{"momentum": momentum, "parts": None, **group} for group in params]
        super().__init__(groups, betas=betas, eps=eps, weight_decay=0.0, fused=True)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One update of every parameter that has a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        groups = self.param_groups
        for group in groups:
            if group["parts"] is not None:
                self._muon(group)
        try:
            self.param_groups = [group for group in groups if group["parts"] is None]
            super().step()
        finally:
            self.param_groups = groups
        return loss

    def _muon(self, group: dict[str, Any]) -> None:
        shapes: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = {}
        for parameter, rows in zip(group["params"], group["parts"], strict=True):
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if not state:
                state.update(step=torch.zeros(()), momentum=torch.zeros_like(parameter))  # AdamW expects every state to count steps
            state["step"] += 1
            momentum = state["momentum"].mul_(group["momentum"]).add_(parameter.grad)
            update = parameter.grad.add(momentum, alpha=group["momentum"])
            for part in zip(parameter.split(rows), update.split(rows), strict=True):
                shapes.setdefault(tuple(part[0].shape), []).append(part)
        for (rows, columns), parts in shapes.items():
            step_size = group["lr"] * 0.2 * max(rows, columns) ** 0.5
            updates = orthogonalize(torch.stack([update for _, update in parts]))
            for (parameter, _), update in zip(parts, updates, strict=True):
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=step_size)
