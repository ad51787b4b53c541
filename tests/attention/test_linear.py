"""Linear attention: numbers by hand, the double loop, long streams, nothing that vanishes."""

import math

import pytest
import torch

from regard.attention import LinearAttention
from regard.errors import ShapeError
from regard.patterns import causal, full, lengths


def phi(x):
    return x + 1 if x > 0 else math.exp(x)


def test_by_hand():
    """φ(0) = 1, φ(1) = 2, φ(−ln 2) = ½: of keys 1 and 0 a query sees two thirds and one third."""
    q = torch.tensor([0.0, -math.log(2)]).view(1, 2, 1, 1)
    k = torch.tensor([1.0, 0.0]).view(1, 2, 1, 1)
    torch.testing.assert_close(LinearAttention().weights(q, k)[0, 0], torch.tensor([[2 / 3, 1 / 3]] * 2))
    torch.testing.assert_close(LinearAttention()(q, k, k), torch.full((1, 2, 1, 1), 2 / 3))
    torch.testing.assert_close(LinearAttention()(q, k, k, causal)[0, :, 0, 0], torch.tensor([1.0, 2 / 3]))


@pytest.mark.parametrize("pattern", [full, causal], ids=str)
def test_double_loop(pattern):
    q, k, v = torch.randn(3, 1, 70, 1, 3, dtype=torch.float64)
    out = LinearAttention()(q, k, v, pattern)[0, :, 0]
    for i in (0, 5, 63, 64, 69):
        weights = [sum(phi(a) * phi(b) for a, b in zip(q[0, i, 0].tolist(), k[0, j, 0].tolist(), strict=True)) for j in range(70)]
        weights = [w if pattern is full or j <= i else 0 for j, w in enumerate(weights)]
        expected = sum(w * v[0, j, 0] for j, w in enumerate(weights)) / sum(weights)
        torch.testing.assert_close(out[i], expected)


def test_keys_that_are_far_below_zero_still_count():
    """e⁻¹⁰⁰⁰⁰ is zero; a row of such keys sums to one all the same."""
    q, k, v = torch.full((1, 5, 1, 4), -1e4), torch.full((1, 5, 1, 4), -1e4), torch.randn(1, 5, 1, 3)
    torch.testing.assert_close(LinearAttention()(q, k, v), v.mean(1, keepdim=True).expand_as(v))
    torch.testing.assert_close(LinearAttention()(q, k, v, causal), v.cumsum(1) / torch.arange(1, 6).view(1, 5, 1, 1))


def test_queries_before_the_first_key_see_nothing():
    q, k, v = torch.randn(2, 7, 3, 4), torch.randn(2, 5, 3, 4), torch.randn(2, 5, 3, 6)
    attention = LinearAttention()
    out = attention(q, k, v, causal)
    assert (out[:, :2] == 0).all()
    torch.testing.assert_close(out[:, 2:], attention(q[:, 2:], k, v, causal))
    torch.testing.assert_close(out, torch.einsum("bhlm,bmhv->blhv", attention.weights(q, k, causal), v))
    with pytest.raises(ShapeError, match="7 queries and 5 keys"):
        attention(q, k, v, causal, state=attention.start(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_long_stream_does_not_drift(dtype):
    q, k, v = torch.randn(3, 2, 1500, 2, 8).to(dtype)
    attention = LinearAttention()
    state = attention.start(2)
    steps = torch.cat([attention(*(x[:, t : t + 1] for x in (q, k, v)), causal, state=state) for t in range(1500)], 1)
    exact = attention(*(x.double() for x in (q, k, v)), causal)
    torch.testing.assert_close(steps.double(), exact, atol=1e-5 if dtype == torch.float32 else 1e-2, rtol=1e-2)


def test_training_keeps_nothing_a_pair():
    q, k, v = torch.randn(3, 1, 1024, 1, 8, requires_grad=True)
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (sizes.append(x.numel()), x)[1], lambda x: x):
        LinearAttention()(q, k, v, causal & lengths([900]))
    assert max(sizes) <= 1024 * 16
