"""A mixture of experts: each token's sum over its experts, by a loop over tokens; gradients; and a clamped gate."""

import pytest
import torch

from regard.errors import ShapeError
from regard.layers.activations import swiglu
from regard.layers.experts import ClampedSwiGLU, Experts

B, L, D, F, E = 2, 5, 3, 7, 6


def made(chosen, **options):
    torch.manual_seed(0)
    experts = Experts(D, F, E, chosen, **options).double()
    with torch.no_grad():
        for parameter in experts.parameters():
            parameter.normal_()
    return experts


@pytest.mark.parametrize("options", [{}, {"renormalized": False}, {"bias": True, "activation": ClampedSwiGLU(1.3, 0.5)}], ids=str)
@pytest.mark.parametrize("chosen", [1, 2, E])
def test_each_token_is_the_weighted_sum_of_its_experts(chosen, options):
    experts = made(chosen, **options)
    x_BLD = torch.randn(B, L, D, dtype=torch.float64, requires_grad=True)
    rows = []
    for x in x_BLD.view(-1, D):
        share, total = torch.softmax(experts.router(x), -1), 0.0
        best = sorted(range(E), key=lambda e: -share[e].item())[:chosen]
        for e in best:
            hidden = experts.up_EFD[e] @ x + (experts.up_bias_EF[e] if options.get("bias") else 0)
            out = experts.down_EDF[e] @ experts.activation(hidden) + (experts.down_bias_ED[e] if options.get("bias") else 0)
            total = total + share[e] * out
        rows.append(total / share[best].sum() if options.get("renormalized", True) else total)
    expected, found = torch.stack(rows).view(B, L, D), experts(x_BLD)
    torch.testing.assert_close(found, expected)
    inputs = [x_BLD, *experts.parameters()]
    torch.testing.assert_close(torch.autograd.grad(found.sum(), inputs), torch.autograd.grad(expected.sum(), inputs))


def test_the_clamped_gate_by_hand():
    gate = ClampedSwiGLU(alpha=2.0, limit=1.0)
    out = gate(torch.tensor([3.0, -5.0, 0.0, 4.0, 0.5, 0.5]))  # gates 1, 0, 0.5; values −1, 1, 0.5
    torch.testing.assert_close(out, torch.tensor([0.0, 0.0, 0.5 * 1.5 / (1 + torch.e**-1)]))
    assert not torch.equal(out, swiglu(torch.tensor([3.0, -5.0, 0.0, 4.0, 0.5, 0.5])))


def test_more_experts_per_token_than_there_are():
    with pytest.raises(ShapeError, match="chosen=7 of 6 experts"):
        Experts(D, F, E, 7)
