"""The first soft attention: a mixture of Gaussians that slides over a text while its handwriting is generated."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..bounds import Heads, Size
from ..patterns import full
from ._base import Attention, Call, Facts, Paper
from ._recurrent_state import StepState
from .helpers import average, by_rows, float32_or_wider, uniform_parameter

LIMIT = 10.0  # bound of α̂, β̂, κ̂: their exponentials stay within e^±10, so no product of them overflows


class GaussianWindow(Attention):
    r"""The query moves a window of Gaussians forward along the positions, and the window weights the values.

    $$o_t = \sum_{u=1}^{M} \sum_n \alpha_t^n \exp\!\big(-\beta_t^n (\kappa_t^n - u)^2\big)\, v_u, \qquad
      \kappa_t = \kappa_{t-1} + e^{\hat\kappa_t},\; \alpha_t = e^{\hat\alpha_t},\; \beta_t = e^{\hat\beta_t},\;
      (\hat\alpha, \hat\beta, \hat\kappa)_t = W q_t + c$$

    Cost:    time O(L·M·N + L·M·V) for N components; memory O(L·N) plus chunks of rows. The content of the keys is not read.
    Use it:  to read a text once and in order while generating something longer: handwriting, speech.
    Avoid it: where the output order differs from the input order, or where content decides what to attend to.
    Limits:  no bias: there are no scores. Heads and head size are fixed at construction. Weights are not normalised. In a
             stream, pass all keys and values at every call, and the queries as they come; the state holds κ. The pattern aligns
             the newest query with the last key, so use rules that are the same for all queries, such as `full` and `lengths`.
    Args:
        head_dim: size K of queries.
        heads: number of heads, each with its own W.
        components: number N of Gaussians per head.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Graves 2013, "Generating sequences with recurrent neural networks", arXiv:1308.0850, section 5.1.
    We differ: α̂, β̂, κ̂ are clamped to ±10, and sums are in float32 or wider. κ̂ is initialised near −2, an eighth
             of a letter per step (zero would rush through the text), and Σα near one. Some lecture notes omit
             κ_{t−1}; the window may then jump back, and the alignment is lost. u counts from 1, as in the paper.
    """

    facts = Facts(
        name="gaussian_window",
        paper=Paper("Generating sequences with recurrent neural networks", 2013, "arXiv:1308.0850"),
        formula="Σₙ αₙ exp(−βₙ (κₙ − u)²) v,  κ ← κ + exp κ̂",
        time="L·M·(N + V)",
        memory="L·N",
        state=StepState,
        rows="sequential",
        normalised=False,
        positional=True,
        bias=False,
    )

    def __init__(self, *, head_dim: Size, heads: Heads = 1, components: Size = 10):
        super().__init__()
        self.heads, self.head_dim, self.components = heads, head_dim, components
        self.w_HKP = uniform_parameter(heads, head_dim, 3 * components, fan=head_dim)
        initial = torch.tensor([-math.log(components), 0.0, -2.0]).repeat_interleave(components)
        self.c_HP = nn.Parameter(initial.repeat(heads, 1))

    def window(self, q_BLHK: Tensor, state: StepState | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Height α, sharpness β and position κ of the components, each (B, L, H, N), continuing from `state` if given."""
        hats_BLHP = (torch.einsum("blhk,hkp->blhp", q_BLHK, self.w_HKP) + self.c_HP).clamp(-LIMIT, LIMIT)
        alpha_BLHN, beta_BLHN, step_BLHN = float32_or_wider(hats_BLHP).exp().chunk(3, -1)
        kappa_BLHN = step_BLHN.cumsum(1)
        if state is not None and state.at is not None:
            kappa_BLHN = kappa_BLHN + state.at[:, None]
        return alpha_BLHN, beta_BLHN, kappa_BLHN

    def _weights(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        return _allowed(_phi(*self.window(q_BLHK), call.keys).to(q_BLHK.dtype), call)

    def _forward(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, call: Call) -> Tensor:
        assert call.state is None or isinstance(call.state, StepState)
        alpha_BLHN, beta_BLHN, kappa_BLHN = self.window(q_BLHK, call.state)
        if call.state is not None and call.queries:
            call.state.move(kappa_BLHN[:, -1], call.queries)

        if call.queries == 1:  # a step of a writer: nothing to divide
            return average(_allowed(_phi(alpha_BLHN, beta_BLHN, kappa_BLHN, call.keys).to(q_BLHK.dtype), call), v_BMHV)

        def attend_rows(rows: Tensor) -> Tensor:
            phi_BHLM = _phi(alpha_BLHN[:, rows], beta_BLHN[:, rows], kappa_BLHN[:, rows], call.keys).to(q_BLHK.dtype)
            return average(_allowed(phi_BHLM, call.of_rows(rows)), v_BMHV)

        return by_rows(attend_rows, q_BLHK, v_BMHV, q_BLHK.shape[2] * call.keys * self.components)


def _phi(alpha_BLHN: Tensor, beta_BLHN: Tensor, kappa_BLHN: Tensor, keys: int) -> Tensor:
    """The height of the window over each position, weights_BHLM."""
    u_M1 = torch.arange(1, keys + 1, device=kappa_BLHN.device)[:, None]
    bumps_BLHMN = torch.exp(-beta_BLHN.unsqueeze(3) * (kappa_BLHN.unsqueeze(3) - u_M1) ** 2)
    return (bumps_BLHMN @ alpha_BLHN.unsqueeze(-1)).squeeze(-1).transpose(1, 2)


def _allowed(weights_BHLM: Tensor, call: Call) -> Tensor:
    """Zero where the pattern forbids."""
    return weights_BHLM if call.pattern is full else weights_BHLM * call.mask()
