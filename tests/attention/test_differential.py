"""Differential attention: its λ, its limits, and numbers worked by hand."""

import math

import pytest
import torch

from regard.attention import DifferentialAttention, SoftmaxAttention
from regard.errors import BadConfig, ShapeError
from regard.patterns import causal

B, L, H, K, V = 2, 9, 3, 8, 5


def fixed(share: float, heads: int = H, width: int = K) -> DifferentialAttention:
    """λ set by hand: λ_q1·λ_k1 = ln λ', λ_q2·λ_k2 = 0, so λ = λ' − 1 + λ₀."""
    attention = DifferentialAttention(heads=heads, head_dim=width).double()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.zero_()
        attention.q1_HK[:, 0] = 1
        attention.k1_HK[:, 0] = math.log(share + 1 - attention.initial_share)
    return attention


def qkv():
    return [torch.randn(B, L, H, size, dtype=torch.float64) for size in (K, K, V)]


def test_rows_sum_to_what_is_left():
    q, k, _ = qkv()
    attention = DifferentialAttention(heads=H, head_dim=K).double()
    sums = attention.weights(q, k, causal).sum(-1)
    torch.testing.assert_close(sums, (1 - attention.share())[:, None].expand(B, H, L))
    assert (attention.weights(q, k) < 0).any()


def test_nothing_taken_away_is_softmax_of_the_first_half():
    q, k, v = qkv()
    half = SoftmaxAttention()(q[..., : K // 2], k[..., : K // 2], v, causal)
    torch.testing.assert_close(fixed(0.0)(q, k, v, causal), half)


def test_two_equal_looks_cancel():
    q, k, v = qkv()
    q, k = (torch.cat([x[..., : K // 2]] * 2, -1) for x in (q, k))
    assert fixed(1.0)(q, k, v).abs().max() < 1e-12


def test_by_hand():
    """Scores 0 and ln 3 in the first look, equal ones in the second, half of which is taken away."""
    attention = fixed(0.5, heads=1, width=2)
    q = torch.ones(1, 1, 1, 2, dtype=torch.float64)
    k = torch.tensor([[0.0, 7.0], [math.log(3), 7.0]], dtype=torch.float64).view(1, 2, 1, 2)
    torch.testing.assert_close(attention.weights(q, k).flatten().tolist(), [0.25 - 0.25, 0.75 - 0.25])
    torch.testing.assert_close(attention(q, k, k).flatten().tolist(), [0.5 * math.log(3), 0.5 * 7.0])


@pytest.mark.parametrize(("depth", "begin"), [(0, 0.2), (1, 0.3555), (11, 0.7779)])
def test_lambda_begins_as_the_paper_says(depth, begin):
    attention = DifferentialAttention(heads=50, head_dim=K, depth=depth)
    assert attention.initial_share == pytest.approx(begin, abs=1e-4)
    assert attention.share().shape == (50,) and attention.share().mean().item() == pytest.approx(begin, abs=0.05)


def test_too_narrow():
    with pytest.raises(BadConfig, match="head_dim=1; expected `int` >= 2"):
        DifferentialAttention(heads=1, head_dim=1)
    with pytest.raises(ShapeError, match="made for 3 heads of size 8"):
        DifferentialAttention(heads=3, head_dim=8)(*[torch.randn(1, 2, 3, 6)] * 3)
