"""Cheap dropout: the right rate, the right scale, the same mask on the way back."""

import pytest
import torch

from regard.kernels import dropout


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.999])
def test_rate_scale_and_gradient(p):
    x = torch.randn(1001, 333, requires_grad=True)
    y = dropout(x, p)
    zero = y == 0
    n = x.numel()
    assert abs(zero.sum().item() - p * n) < 5 * (n * p * (1 - p)) ** 0.5
    torch.testing.assert_close(y[~zero], x[~zero] / (1 - p), rtol=1e-4 / (1 - p), atol=0)
    gradient = torch.autograd.grad(y.sum(), x)[0]
    assert ((gradient == 0) == zero).all()
    torch.testing.assert_close(gradient[~zero], torch.full_like(gradient[~zero], 1 / (1 - p)), rtol=1e-4 / (1 - p), atol=0)


def test_neighbours_are_independent():
    """All four numbers cut from one draw, and neighbouring draws, fall alike: correlations are within chance."""
    kept = (dropout(torch.ones(4, 250_000), 0.3) > 0).double().view(-1)
    for lag in (1, 2, 3, 4, 5, 8):
        correlation = torch.corrcoef(torch.stack([kept[:-lag], kept[lag:]]))[0, 1].abs().item()
        assert correlation < 5 / len(kept) ** 0.5
    assert all(abs(kept[lane::4].mean().item() - 0.7) < 0.005 for lane in range(4))


def test_nothing_and_all():
    x = torch.randn(7)
    assert dropout(x, 0.0) is x
    assert (dropout(x, 1.0) == 0).all()
    assert dropout(torch.empty(0, 3), 0.5).shape == (0, 3)


def test_a_seed_repeats_it():
    x = torch.randn(77)
    draws = [dropout(x, 0.5, torch.Generator().manual_seed(3)) for _ in range(2)]
    assert draws[0].equal(draws[1])
    torch.manual_seed(1)
    one = dropout(x, 0.5)
    torch.manual_seed(1)
    assert dropout(x, 0.5).equal(one)
