"""Entmax: numbers worked by hand, the sorting algorithms of the papers as an oracle, and its gradient."""

import math

import pytest
import torch
from torch import Tensor

from regard.attention import EntmaxAttention, SoftmaxAttention
from regard.errors import BadConfig
from regard.patterns import causal, full


def weights_of_scores(scores: list[float], alpha: float) -> Tensor:
    """One query of size 1 at q = 1, so that scores are keys."""
    k = torch.tensor(scores, dtype=torch.float64)[None, :, None, None]
    return EntmaxAttention(alpha=alpha).weights(torch.ones(1, 1, 1, 1, dtype=torch.float64), k)[0, 0, 0]


@pytest.mark.parametrize(
    ("alpha", "scores", "expected"),
    [
        (2.0, [1.0, 0.5, -1.0], [0.75, 0.25, 0.0]),  # τ = (1 + 0.5 − 1) / 2
        (2.0, [3.0, 1.0, 0.0], [1.0, 0.0, 0.0]),  # a lead of one takes all
        (1.5, [0.4, 0.0, -5.0], [0.64, 0.36, 0.0]),  # x = (0.2, 0), τ = −0.6: 0.8² + 0.6² = 1
        (1.5, [0.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]),
    ],
)
def test_by_hand(alpha, scores, expected):
    torch.testing.assert_close(weights_of_scores(scores, alpha), torch.tensor(expected, dtype=torch.float64))


def sorted_sparsemax(z: Tensor) -> Tensor:
    """Martins & Astudillo 2016, algorithm 1."""
    ordered, count = z.sort(descending=True).values, torch.arange(1, len(z) + 1)
    size = int((1 + count * ordered > ordered.cumsum(0)).sum())
    return (z - (ordered[:size].sum() - 1) / size).clamp(min=0)


def sorted_entmax15(z: Tensor) -> Tensor:
    """Peters et al. 2019: with the mean and the variance of the largest n of z / 2, τ = mean − √(1/n − variance)."""
    x = z / 2
    ordered = x.sort(descending=True).values
    for size in range(len(z), 0, -1):
        largest = ordered[:size]
        room = 1 / size - largest.var(correction=0)
        if room >= 0 and (tau := largest.mean() - room.sqrt()) <= ordered[size - 1]:
            return (x - tau).clamp(min=0) ** 2
    raise AssertionError("the largest alone always qualifies")


@pytest.mark.parametrize(("alpha", "oracle"), [(1.5, sorted_entmax15), (2.0, sorted_sparsemax)])
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_sorting_gives_the_same(alpha, oracle, scale):
    z = scale * torch.randn(20, 50, dtype=torch.float64)
    for row in z:
        torch.testing.assert_close(weights_of_scores(row.tolist(), alpha), oracle(row), atol=1e-12, rtol=0)


@pytest.mark.parametrize("alpha", [1.1, 1.5, 1.7, 2.0])
def test_gradient_is_that_of_the_threshold_too(alpha):
    q, k, v = (torch.randn(1, 4, 2, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    assert torch.autograd.gradcheck(lambda q, k, v: EntmaxAttention(alpha=alpha)(q, k, v, causal), (q, k, v))


def test_near_one_is_softmax():
    q, k, v = torch.randn(3, 2, 7, 2, 4, dtype=torch.float64)
    torch.testing.assert_close(EntmaxAttention(alpha=1.001)(q, k, v, causal), SoftmaxAttention()(q, k, v, causal), atol=2e-3, rtol=0)


def test_larger_alpha_has_fewer_keys():
    q, k = 2 * torch.randn(2, 1, 40, 2, 16)
    kept = [int((EntmaxAttention(alpha=alpha).weights(q, k) > 0).sum()) for alpha in (1.25, 1.5, 2.0)]
    assert 2 * 40 * 40 > kept[0] > kept[1] > kept[2]


@pytest.mark.parametrize("alpha", [1.0, 2.5])
def test_limits_are_named(alpha):
    with pytest.raises(BadConfig, match=r"alpha=.*softmax is the limit at 1, sparsemax is 2"):
        EntmaxAttention(alpha=alpha)


def test_a_row_whose_bias_forbids_everything_is_zeros():
    """As of softmax: no weight of 1/M on keys that the bias forbids."""
    q, k = torch.randn(2, 1, 5, 2, 3, requires_grad=True).unbind()
    bias = torch.zeros(1, 1, 5, 5)
    bias[..., 2, :] = bias[..., 3, 1] = -math.inf
    weights = EntmaxAttention().weights(q, k, full, bias)
    assert weights[:, :, 2].eq(0).all() and weights[:, :, 3, 1].eq(0).all()
    torch.testing.assert_close(weights.sum(-1)[:, :, [0, 1, 3, 4]], torch.ones(1, 2, 4))
    (gradient,) = torch.autograd.grad(weights.square().sum(), q)
    assert gradient.isfinite().all()
