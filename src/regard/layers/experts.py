r"""Mixture of experts: many feed-forward layers, of which a router chooses a few for each token.

$$\mathrm{Experts}(x) = \sum_{e \in T(x)} g_e(x)\,\mathrm{FFN}_e(x) \qquad g = \mathrm{softmax}(W_g x) \qquad T(x) = \text{the } k \text{ largest of } g$$

With `renormalized`, the k weights of a token are divided by their sum. Every token gets its experts: there is no capacity that could be exceeded.

Paper: Shazeer et al. 2017, "Outrageously large neural networks: the sparsely-gated mixture-of-experts layer", arXiv:1701.06538; Jiang et al. 2024,
       "Mixtral of experts", arXiv:2401.04088. The clamped gate: OpenAI 2025, "gpt-oss-120b & gpt-oss-20b model card", arXiv:2508.10925.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ShapeError
from ..kernels import float32_or_wider
from .activations import Activation, swiglu


@dataclass(frozen=True)
class ClampedSwiGLU:
    """Gate and value clamped, the value shifted by one: g · σ(alpha · g) · (v + 1). Features of both take turns: g, v, g, v …

    Args:
        alpha: factor inside the sigmoid.
        limit: largest gate, and largest absolute value.
    """

    alpha: float = 1.702
    limit: float = 7.0

    def __call__(self, x: Tensor) -> Tensor:
        gate, value = x[..., ::2].clamp(max=self.limit), x[..., 1::2].clamp(-self.limit, self.limit)
        return gate * torch.sigmoid(self.alpha * gate) * (value + 1)


class Experts(nn.Module):
    """Gated feed-forward layers, of which a router chooses a few for each token; called like a `FeedForward`.

    Cost: time O(T·k·D·F) for T tokens. There is no loss that balances the load: a model trained from scratch may come to use few of its experts.

    Args:
        width: model width D.
        hidden: number F of hidden features of each expert.
        experts: number E of experts.
        chosen: number k of experts per token.
        activation: gated activation of the experts.
        bias: give the router and the experts biases.
        renormalized: let the weights of a token's experts sum to one.

    Shape: x_BLD → out_BLD.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        experts: int,
        chosen: int,
        *,
        activation: Activation = swiglu,
        bias: bool = False,
        renormalized: bool = True,
    ):
        super().__init__()
        if not 1 <= chosen <= experts:
            raise ShapeError(f"chosen={chosen} of {experts} experts; expected 1 to {experts}")
        self.chosen, self.activation, self.renormalized = chosen, activation, renormalized
        self.router = nn.Linear(width, experts, bias)
        self.up_EFD, self.down_EDF = (
            nn.Parameter(torch.empty(experts, 2 * hidden, width)),
            nn.Parameter(torch.empty(experts, width, hidden)),
        )
        self.up_bias_EF = nn.Parameter(torch.zeros(experts, 2 * hidden)) if bias else None
        self.down_bias_ED = nn.Parameter(torch.zeros(experts, width)) if bias else None
        for matrices in (self.up_EFD, self.down_EDF):
            nn.init.normal_(matrices, std=0.02)

    def route(self, x_TD: Tensor) -> tuple[Tensor, Tensor]:
        """The weights of each token's experts, and their numbers: weight_TK, expert_TK.

        Args:
            x_TD: tokens.
        """
        weight_TK, expert_TK = torch.softmax(float32_or_wider(self.router(x_TD)), -1).topk(self.chosen, -1)
        return (weight_TK / weight_TK.sum(-1, keepdim=True) if self.renormalized else weight_TK).to(x_TD.dtype), expert_TK

    def forward(self, x_BLD: Tensor) -> Tensor:
        x_TD = x_BLD.flatten(0, -2)
        weight_TK, expert_TK = self.route(x_TD)
        out_TD = torch.zeros_like(x_TD)
        for e in expert_TK.unique().tolist():
            token, place = (expert_TK == e).nonzero(as_tuple=True)
            out_TD = out_TD.index_add(0, token, (weight_TK[token, place, None] * self._expert(x_TD[token], e)).to(out_TD.dtype))
        return out_TD.view_as(x_BLD)

    def _expert(self, x_TD: Tensor, e: int) -> Tensor:
        hidden_TF = F.linear(x_TD, self.up_EFD[e], None if self.up_bias_EF is None else self.up_bias_EF[e])
        return F.linear(self.activation(hidden_TF), self.down_EDF[e], None if self.down_bias_ED is None else self.down_bias_ED[e])
