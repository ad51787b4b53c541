"""Poolings against plain formulas, row by row, in double precision; the penalty in closed form."""

import pytest
import torch

from regard.layers import AttentionPooling, last_states, max_pool, mean_pool, redundancy

B, L, D, K, R = 4, 6, 8, 5, 3
n_B = torch.tensor([6, 1, 0, 4])


@pytest.fixture
def h_BLD():
    torch.manual_seed(0)
    return torch.randn(B, L, D, dtype=torch.float64)


def rows(h_BLD):
    return [h[:n] for h, n in zip(h_BLD, n_B.tolist(), strict=True)]


@pytest.mark.parametrize(
    ("pool", "plain"),
    [
        (mean_pool, lambda h: h.mean(0)),
        (max_pool, lambda h: h.amax(0)),
        (last_states, lambda h: torch.cat([h[-1, : D // 2], h[0, D // 2 :]])),
    ],
)
def test_each_row_by_itself(pool, plain, h_BLD):
    found = pool(h_BLD, n_B)
    for y, h in zip(found, rows(h_BLD), strict=True):
        torch.testing.assert_close(y, plain(h) if len(h) else torch.zeros(D, dtype=torch.float64))
    torch.testing.assert_close(pool(torch.cat(rows(h_BLD)), n_B), found)  # packed
    padded = h_BLD.clone()
    for row, n in zip(padded, n_B.tolist(), strict=True):
        row[n:] = torch.inf  # what padding holds does not matter
    assert torch.equal(pool(padded, n_B), found)


def test_attention_pooling_is_the_formula(h_BLD):
    torch.manual_seed(1)
    pooling = AttentionPooling(D, K, R).double()
    found, weights = pooling(h_BLD, n_B), pooling.weights(h_BLD, n_B)
    for y, a, h in zip(found, weights, rows(h_BLD), strict=True):
        keys = torch.tanh(h @ pooling.key.weight.T + pooling.key.bias)
        expected = (pooling.query_RK @ keys.T).softmax(-1) if len(h) else torch.zeros(R, 0, dtype=torch.float64)
        torch.testing.assert_close(a[:, : len(h)], expected)
        assert not a[:, len(h) :].any()
        torch.testing.assert_close(y, expected @ h)
    torch.testing.assert_close(pooling(torch.cat(rows(h_BLD)), n_B), found)


def test_attention_pooling_against_keras_formula_with_one_query(h_BLD):
    """Additive attention with query 0, key W h + b and scale u: the mechanism `additive` of this package is checked against keras."""
    from regard.attention import AdditiveAttention
    from regard.patterns import lengths

    torch.manual_seed(1)
    pooling, additive = AttentionPooling(D, K).double(), AdditiveAttention(head_dim=K).double()
    additive.u_HK.data = pooling.query_RK.data
    keys = pooling.key(h_BLD).unsqueeze(2)
    other = additive(torch.zeros_like(keys[:, :1]), keys, h_BLD.unsqueeze(2), lengths(n_B)).squeeze(2)
    torch.testing.assert_close(pooling(h_BLD, n_B), other)


def test_penalty_in_closed_form():
    eye = torch.eye(4)[:R]
    same = torch.eye(4)[:1].expand(R, -1)
    torch.testing.assert_close(redundancy(torch.stack([eye, same])), torch.tensor([0.0, R * R - R]))
    weights = torch.rand(2, R, 7, dtype=torch.float64).softmax(-1).requires_grad_()
    by_hand = torch.stack([torch.linalg.matrix_norm(a @ a.T - torch.eye(R)) ** 2 for a in weights])
    torch.testing.assert_close(redundancy(weights), by_hand)
    assert torch.autograd.gradcheck(redundancy, [weights])
