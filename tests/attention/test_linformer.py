"""Linformer: the limits in which it is exact, a case worked by hand, and what its sharing means."""

from functools import partial

import pytest
import torch

from regard.attention import LinformerAttention, SoftmaxAttention
from regard.errors import BadConfig, ShapeError
from regard.patterns import full, lengths
from regard.testing import assert_law

B, L, M, H, K, V = 2, 5, 9, 3, 7, 4
close = partial(torch.testing.assert_close, atol=1e-12, rtol=1e-12)


def qkv(queries=L, keys=M):
    torch.manual_seed(0)
    return [torch.randn(B, n, H, size, dtype=torch.float64, requires_grad=True) for n, size in ((queries, K), (keys, K), (keys, V))]


def identity(rank: int) -> LinformerAttention:
    attention = LinformerAttention(max_length=rank, rank=rank).double()
    with torch.no_grad():
        for p in attention.parameters():
            p.copy_(torch.eye(rank))
    return attention


def test_identity_projections_are_softmax_attention():
    q, k, v = qkv()
    close(identity(M)(q, k, v), SoftmaxAttention()(q, k, v))
    close(identity(M).weights(q, k), SoftmaxAttention().weights(q, k))


def test_a_mixture_that_holds_nothing_still_takes_weight():
    """Shorter inputs use the first columns: with identity projections the rest are zero keys with zero values, not absent ones."""
    q, k, v = qkv(keys=4)
    e = SoftmaxAttention().weights(q, k).detach()
    z = (torch.einsum("blhk,bmhk->bhlm", q, k) / K**0.5).exp().sum(-1, keepdim=True)
    close(identity(M).weights(q, k), e * z / (z + M - 4))


def test_by_hand():
    """Two keys, one summary: the softmax over one is 1, so the weights are the row of F whatever q and k say."""
    attention = LinformerAttention(max_length=2, rank=1).double()
    with torch.no_grad():
        attention.f_HRN.copy_(torch.tensor([[[0.5, -2.0]]]))
    q, k, v = (torch.tensor(x, dtype=torch.float64).view(1, -1, 1, 1) for x in ([3.0], [1.0, 4.0], [10.0, 1.0]))
    assert attention.weights(q, k).flatten().tolist() == [0.5, -2.0]
    assert attention(q, k, v).item() == 3.0
    assert attention(q, k, v, lengths([1])).item() == 5.0


@pytest.mark.parametrize("sharing", ["none", "headwise", "key-value"])
def test_sharing(sharing):
    attention = LinformerAttention(max_length=12, rank=4, sharing=sharing, heads=H if sharing == "none" else None).double()
    sizes = {"none": 2 * H, "headwise": 2, "key-value": 1}
    assert sum(p.numel() for p in attention.parameters()) == sizes[sharing] * 4 * 12
    for pattern in (full, lengths([M, 2])):
        assert_law(attention, qkv(), pattern)
    if sharing == "none":  # each head on its own
        q, k, v = qkv()
        one = LinformerAttention(max_length=12, rank=4).double()
        with torch.no_grad():
            one.e_HRN.copy_(attention.e_HRN[2:]), one.f_HRN.copy_(attention.f_HRN[2:])
        close(attention(q, k, v)[:, :, 2:], one(q[:, :, 2:], k[:, :, 2:], v[:, :, 2:]))


def test_a_row_of_no_keys_is_zeros():
    q, k, v = qkv()
    out = LinformerAttention(max_length=12, rank=4).double()(q, k, v, lengths([M, 0]))
    assert (out[1] == 0).all() and all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), (q, k, v)))


def test_wrong_settings_are_named():
    with pytest.raises(ShapeError, match=r"up to 8 keys, got 9.*max_length=9"):
        LinformerAttention(max_length=8, rank=2)(*(x.float() for x in qkv()))
    with pytest.raises(BadConfig, match="heads if and only if"):
        LinformerAttention(max_length=8, rank=2, sharing="none")
    with pytest.raises(BadConfig, match="headwise"):
        LinformerAttention(max_length=8, sharing="heads")
    with pytest.raises(ShapeError, match="made for 2 heads"):
        LinformerAttention(max_length=12, sharing="none", heads=2)(*(x.float() for x in qkv()))
