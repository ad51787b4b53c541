r"""Gaussian processes: functions drawn from a kernel, and what is exactly known of one from some of its points.

$$k_{\text{rbf}} = e^{-d^2 / 2 ℓ^2} \qquad k_{\text{matern}} = \big(1 + \tfrac{\sqrt 5 d}{ℓ} + \tfrac{5 d^2}{3 ℓ^2}\big)\, e^{-\sqrt 5 d / ℓ} \qquad
  k_{\text{periodic}} = e^{-2 \sum_j \sin^2(π d_j) / ℓ^2}$$
$$L L^\top = K_{CC} + τ^2 I \qquad \mu_* = K_{*C}\, L^{-\top} L^{-1} y_C \qquad σ_*^2 = k_{**} - \lVert L^{-1} K_{C*} \rVert^2 + τ^2$$

Means are zero and variances one; the noise τ belongs to every value. Rasmussen and Williams 2006, algorithm 2.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ..errors import NotSupported, UnknownName

KernelKind = Literal["rbf", "matern", "periodic"]
KERNELS: tuple[KernelKind, ...] = get_args(KernelKind)
JITTER = 1e-8  # added to the diagonal of a matrix without noise


class Prediction(NamedTuple):
    """Exact posterior of noisy values: means and standard deviations of the targets."""

    mean_T: Tensor  # means
    std_T: Tensor  # standard deviations, noise included


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """Covariance of a Gaussian process of variance one.

    Args:
        kind: rbf, matern (5/2) or periodic (of period 1).
        length: length scale.
        noise: standard deviation of the noise of each value.
    """

    kind: KernelKind = "rbf"
    length: float = 0.4
    noise: float = 0.1

    def __post_init__(self) -> None:
        if self.kind not in KERNELS:
            raise UnknownName("kernel", str(self.kind), KERNELS)
        if not (0 < self.length < math.inf and 0 <= self.noise < math.inf):
            raise NotSupported(f"a kernel of length={self.length} and noise={self.noise}; expected a positive length, and noise from 0 up")

    @classmethod
    def read(cls, text: str) -> Kernel:
        """Kernel as it is typed: "rbf", "matern,length=0.3,noise=0.05".

        Args:
            text: kind, and settings after commas.
        """
        kind, *given = (part.strip() for part in text.split(","))
        settings = {}
        for part in given:
            name, _, value = part.partition("=")
            if name not in ("length", "noise"):
                raise UnknownName("setting of a kernel", name, ["length", "noise"])
            try:
                settings[name] = float(value)
            except ValueError:
                raise NotSupported(f"{part!r}: expected a number, as in length=0.4") from None
        return cls(kind=kind, **settings)  # type: ignore[arg-type]  # checked when it is made

    def __call__(self, a_NX: Tensor, b_MX: Tensor) -> Tensor:
        """Covariances of the values without noise, (…, N, M).

        Args:
            a_NX: places, with any axes before.
            b_MX: other places.
        """
        apart = a_NX.unsqueeze(-2) - b_MX.unsqueeze(-3)
        if self.kind == "periodic":
            return torch.exp(-2 * torch.sin(math.pi * apart).square().sum(-1) / self.length**2)
        squared = apart.square().sum(-1)
        if self.kind == "rbf":
            return torch.exp(-squared / (2 * self.length**2))
        far = math.sqrt(5) * squared.sqrt() / self.length
        return (1 + far + far.square() / 3) * torch.exp(-far)

    def of_values(self, x_NX: Tensor) -> Tensor:
        """Covariances of noisy values at some places, (…, N, N), in double precision.

        Args:
            x_NX: places, with any axes before.
        """
        x_NX = x_NX.double()
        return self(x_NX, x_NX) + (JITTER + self.noise**2) * torch.eye(x_NX.shape[-2], dtype=torch.float64)

    def draw(self, x_NX: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Noisy values of functions at some places, (…, N), by Cholesky factors.

        Args:
            x_NX: places, with any axes before: a function for each.
            generator: random numbers.
        """
        noise_N1 = torch.randn(*x_NX.shape[:-1], 1, generator=generator, dtype=torch.float64)
        return (torch.linalg.cholesky(self.of_values(x_NX)) @ noise_N1).squeeze(-1)

    def posterior(self, x_CX: Tensor, y_C: Tensor, at_TX: Tensor) -> Prediction:
        """Posterior of noisy values at targets, given values at some places; without any, the prior.

        Args:
            x_CX: places of known values.
            y_C: the values.
            at_TX: places of the targets.
        """
        x_CX, y_C, at_TX = x_CX.double(), y_C.double(), at_TX.double()
        factor = torch.linalg.cholesky(self.of_values(x_CX))
        across_CT = self(x_CX, at_TX)
        mean_T = across_CT.mT @ torch.cholesky_solve(y_C.unsqueeze(-1), factor).squeeze(-1)
        explained_T = torch.linalg.solve_triangular(factor, across_CT, upper=False).square().sum(0)
        return Prediction(mean_T, ((1 - explained_T).clamp(min=0) + self.noise**2).sqrt())
