"""Efficient attention: numbers by hand, and that nothing of it is causal."""

import math

import pytest
import torch

from regard.attention import EfficientAttention
from regard.errors import PatternNotSupported, StateNotSupported
from regard.patterns import causal, lengths


def test_by_hand():
    """One feature: every query sees softmax(k), (1/(1+e), e/(1+e)), whatever it asks."""
    q, k, v = torch.randn(1, 3, 1, 1), torch.tensor([0.0, 1.0]).view(1, 2, 1, 1), torch.tensor([0.0, 1.0]).view(1, 2, 1, 1)
    share = math.e / (1 + math.e)
    torch.testing.assert_close(EfficientAttention().weights(q, k)[0, 0], torch.tensor([[1 - share, share]] * 3))
    torch.testing.assert_close(EfficientAttention()(q, k, v), torch.full((1, 3, 1, 1), share))


def test_a_query_that_wants_one_feature_gets_its_distribution():
    q = torch.tensor([[60.0, 0.0], [0.0, 60.0]]).view(1, 2, 1, 2)
    k = torch.randn(1, 5, 1, 2)
    torch.testing.assert_close(EfficientAttention().weights(q, k)[0, 0], k[0, :, 0].softmax(0).T)


def test_a_row_without_keys_is_zero_with_finite_gradients():
    q, k, v = (torch.randn(2, 4, 3, 5, requires_grad=True) for _ in range(3))
    out = EfficientAttention()(q, k, v, lengths([0, 4]))
    assert (out[0] == 0).all() and (out[1] != 0).all()
    assert all(x.isfinite().all() for x in torch.autograd.grad(out.square().sum(), (q, k, v)))


def test_what_is_not_causal_says_so():
    q = torch.randn(1, 4, 1, 2)
    with pytest.raises(PatternNotSupported, match="EfficientAttention supports `full`"):
        EfficientAttention()(q, q, q, causal)
    with pytest.raises(StateNotSupported, match="EfficientAttention cannot stream"):
        EfficientAttention().start(1)
