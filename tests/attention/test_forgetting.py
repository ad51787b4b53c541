"""Forgetting attention: numbers worked by hand, the formula pair by pair, and what constant gates amount to."""

import math

import pytest
import torch

from regard.attention import DotProductAttention, ForgettingAttention, SoftmaxAttention
from regard.errors import BadConfig, PatternNotSupported
from regard.patterns import causal, window

B, L, H, K = 2, 9, 2, 4


def qkvg(length: int = L):
    return [torch.randn(B, length, H, size, dtype=torch.float64) for size in (K, K, K, 1)]


def test_by_hand():
    """Equal scores, f = 1/2 throughout: a key counts half of the next one."""
    zeros = torch.zeros(1, 3, 1, 1)
    weights = ForgettingAttention().weights(zeros, zeros, causal, gates_BMHE=zeros)[0, 0]
    torch.testing.assert_close(weights, torch.tensor([[1, 0, 0], [1 / 3, 2 / 3, 0], [1 / 7, 2 / 7, 4 / 7]]))


def test_pair_by_pair():
    q, k, v, g = qkvg()
    f, expected = g.sigmoid(), torch.zeros(B, L, H, K, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            for i in range(L):
                part = [math.exp(q[b, i, h] @ k[b, j, h] / math.sqrt(K)) * f[b, j + 1 : i + 1, h].prod() for j in range(i + 1)]
                expected[b, i, h] = sum(part[j] * v[b, j, h] for j in range(i + 1)) / sum(part)
    torch.testing.assert_close(ForgettingAttention()(q, k, v, causal, gates_BMHE=g), expected)


def test_the_first_gate_has_nothing_to_forget():
    q, k, v, g = qkvg()
    other = g.clone()
    other[:, 0] += 3
    attention = ForgettingAttention()
    torch.testing.assert_close(attention(q, k, v, causal, gates_BMHE=g), attention(q, k, v, causal, gates_BMHE=other))


def test_open_gates_are_softmax_and_constant_gates_are_alibi():
    q, k, v, g = qkvg()
    at = torch.arange(L, dtype=torch.float64)
    for gate in (40.0, 0.3):
        slope = torch.nn.functional.softplus(torch.tensor(-gate, dtype=torch.float64))  # −log σ(gate)
        alibi = slope * (at - at[:, None])
        found = ForgettingAttention()(q, k, v, causal, gates_BMHE=torch.full_like(g, gate))
        torch.testing.assert_close(found, SoftmaxAttention()(q, k, v, causal, alibi))


def test_a_rolling_cache_holds_the_gates():
    q, k, v, g = qkvg(40)
    attention, pattern = ForgettingAttention(), causal & window(3)
    state = attention.start(B, pattern)
    steps = [attention(*(x[:, t : t + 1] for x in (q, k, v)), pattern, state=state, gates_BMHE=g[:, t : t + 1]) for t in range(40)]
    assert state.keys_and_values()[0].shape[1] < 40  # some were dropped
    torch.testing.assert_close(torch.cat(steps, 1), attention(q, k, v, pattern, gates_BMHE=g))


def test_without_causal_it_is_refused():
    q, k, v, g = qkvg()
    with pytest.raises(PatternNotSupported, match="ForgettingAttention supports `causal`"):
        ForgettingAttention()(q, k, v, gates_BMHE=g)


def test_a_score_that_the_tiles_would_ignore_is_refused():
    with pytest.raises(BadConfig, match=r"writes `scores`.*derive from ScoreAttention, or write `_forward`"):
        type("Ignored", (DotProductAttention,), {"scores": ForgettingAttention.scores})
