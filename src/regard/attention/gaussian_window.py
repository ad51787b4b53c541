"""The first soft attention: a mixture of Gaussians that slides over a text while the pen writes it."""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor, nn

from ..kernels import Bias
from ..patterns import Pattern, full
from ._base import Attention, Facts, average, pattern_rows
from ._scored import by_rows, fits, uniform
from ._state import Standing, State, standing

LIMIT = 10.0  # of α̂, β̂, κ̂: their exponentials stay within e^±10, so no product of them overflows


class GaussianWindow(Attention):
    r"""The query moves a window of Gaussians along the positions, forward only, and the window weighs the values.

    $$o_t = \sum_{u=1}^{M} \sum_n \alpha_t^n \exp\!\big(-\beta_t^n (\kappa_t^n - u)^2\big)\, v_u, \qquad
      \kappa_t = \kappa_{t-1} + e^{\hat\kappa_t},\; \alpha_t = e^{\hat\alpha_t},\; \beta_t = e^{\hat\beta_t},\;
      (\hat\alpha, \hat\beta, \hat\kappa)_t = W q_t + c$$

    Cost:    time O(L·M·N + L·M·V) for N components; memory O(L·N) beside chunks of rows. Keys are only counted.
    Use it:  to read a text once, in order, while something longer is written: handwriting, speech.
    Avoid it: where the order of the output is not that of the input, or what is read decides where to look.
    Limits:  no bias: there are no scores. Heads and size are fixed when it is made. Weights are not normalised. Step by
             step, all keys and values are given at every call, the queries as they come; the state holds κ. The pattern then
             places the newest query at the last key, as always: use rules that are the same for all queries, such as
             `full` and `lengths`.
    Paper:   Graves 2013, "Generating sequences with recurrent neural networks", arXiv:1308.0850, section 5.1.
    We differ: α̂, β̂, κ̂ are clamped to ±10, and the sums are done in float32 at least. κ̂ begins near −2: an eighth of a
             letter a step, where zero would rush through the text; Σα begins near one. Some lecture notes leave the sum
             κ_{t−1} out; the window may then jump back, and the alignment is lost. u counts from 1, as in the paper.
    """

    facts = Facts(
        name="gaussian_window",
        year=2013,
        title="Generating sequences with recurrent neural networks",
        paper="arXiv:1308.0850",
        formula="Σₙ αₙ exp(−βₙ (κₙ − u)²) v,  κ ← κ + exp κ̂",
        time="L·M·(N + V)",
        memory="L·N",
        fixed_memory=True,
        normalised=False,
        positional=True,
        bias=False,
    )

    def __init__(self, *, width: int, heads: int = 1, components: int = 10):
        super().__init__()
        self.heads, self.width, self.components = heads, width, components
        self.w_HKP = uniform(heads, width, 3 * components, fan=width)
        begin = torch.tensor([-math.log(components), 0.0, -2.0]).repeat_interleave(components)
        self.c_HP = nn.Parameter(begin.repeat(heads, 1))

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(heads=heads, width=width)

    def window(self, q_BLHK: Tensor, state: Standing | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Height α, sharpness β and place κ of the components, each (B, L, H, N), from the first step on or from `state`."""
        hats_BLHP = (torch.einsum("blhk,hkp->blhp", q_BLHK, self.w_HKP) + self.c_HP).clamp(-LIMIT, LIMIT)
        precise = torch.promote_types(q_BLHK.dtype, torch.float32)
        alpha_BLHN, beta_BLHN, step_BLHN = hats_BLHP.to(precise).exp().chunk(3, -1)
        kappa_BLHN = step_BLHN.cumsum(1)
        if state is not None and state.at is not None:
            kappa_BLHN = kappa_BLHN + state.at[:, None]
        return alpha_BLHN, beta_BLHN, kappa_BLHN

    def weights(self, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None) -> Tensor:
        self.check(q_BLHK, k_BMHK, None, pattern, bias)
        fits(self, q_BLHK, self.heads, self.width)
        L, M, device = q_BLHK.shape[1], k_BMHK.shape[1], q_BLHK.device
        return _phi(*self.window(q_BLHK), M).to(q_BLHK.dtype) * pattern.mask(L, M, device)

    def forward(
        self,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        v_BMHV: Tensor,
        pattern: Pattern = full,
        bias: Tensor | Bias | None = None,
        state: State | None = None,
    ) -> Tensor:
        self.check(q_BLHK, k_BMHK, v_BMHV, pattern, bias, state)
        fits(self, q_BLHK, self.heads, self.width)
        (B, L, H), M, device = q_BLHK.shape[:3], k_BMHK.shape[1], q_BLHK.device
        here = None if state is None else standing(state, B)
        alpha_BLHN, beta_BLHN, kappa_BLHN = self.window(q_BLHK, here)
        if here is not None and L:
            here.move(kappa_BLHN[:, -1], L)

        def look(rows: Tensor) -> Tensor:
            phi_BHLM = _phi(alpha_BLHN[:, rows], beta_BLHN[:, rows], kappa_BLHN[:, rows], M).to(q_BLHK.dtype)
            return average(phi_BHLM * pattern_rows(pattern, rows, L, M).mask(len(rows), M, device), v_BMHV)

        return by_rows(look, L, B * H * M * self.components, device)

    def start(self, batch: int, pattern: Pattern = full) -> Standing:
        return Standing(batch)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, width={self.width}, components={self.components}"


def _phi(alpha_BLHN: Tensor, beta_BLHN: Tensor, kappa_BLHN: Tensor, keys: int) -> Tensor:
    """The height of the window over each position, weights_BHLM."""
    u_M1 = torch.arange(1, keys + 1, device=kappa_BLHN.device)[:, None]
    bumps_BLHMN = torch.exp(-beta_BLHN.unsqueeze(3) * (kappa_BLHN.unsqueeze(3) - u_M1) ** 2)
    return torch.einsum("blhmn,blhn->bhlm", bumps_BLHMN, alpha_BLHN)
