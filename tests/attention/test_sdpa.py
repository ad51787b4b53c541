"""`regard.sdpa` against PyTorch's function of the same arguments."""

import pytest
import torch
import torch.nn.functional as F

import regard
from regard import LinearAttention, causal, window
from regard.errors import BiasNotSupported, DtypeError, NotSupported, ShapeError

B, H, L, M, K, V = 2, 4, 5, 7, 3, 6
F64 = {"dtype": torch.float64}


def qkv(batch=(B,), heads=H, groups=H, queries=L, keys=M):
    torch.manual_seed(0)
    shapes = ((heads, queries, K), (groups, keys, K), (groups, keys, V))
    return [torch.randn(*batch, *shape, **F64, requires_grad=True) for shape in shapes]


def assert_same(given, **options):
    """Outputs and the gradients of all that want one."""
    out, expected = regard.sdpa(*given, **options), F.scaled_dot_product_attention(*given, **options)
    torch.testing.assert_close(out, expected)
    wanted = [x for x in (*given, options.get("attn_mask")) if isinstance(x, torch.Tensor) and x.requires_grad]
    cotangent = torch.randn_like(out)
    for one, two in zip(*(torch.autograd.grad(x, wanted, cotangent) for x in (out, expected)), strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("batch", [(), (B,), (B, 3), (1,)], ids=str)
@pytest.mark.parametrize("scale", [None, 0.3])
def test_plain(batch, scale):
    assert_same(qkv(batch), scale=scale)


def test_two_dimensions():
    assert_same([x[0, 0] for x in qkv()])


@pytest.mark.parametrize("shape", [(L, M), (1, M), (L, 1), (B, 1, L, M), (B, H, L, M), (1, H, 1, M), (H, L, M), (B, 1, 1, M)], ids=str)
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks(shape, kind):
    given = qkv()
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1), **F64)
    if kind == "bool":
        mask = mask > 0.2
        mask[..., 0] = True  # no row without keys
    else:
        mask.requires_grad_()
    assert_same(given, attn_mask=mask)


def test_mask_of_several_batch_axes():
    assert_same(qkv((B, 3)), attn_mask=torch.rand(3, 1, L, M) > 0.1)
    assert_same(qkv((B, 3)), attn_mask=torch.rand(B, 1, 1, L, M, **F64))


@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (5, 7), (7, 5), (1, 6), (100, 90)])
def test_causal_is_aligned_at_the_start(queries, keys):
    assert_same(qkv(queries=queries, keys=keys), is_causal=True)


@pytest.mark.parametrize("groups", [1, 2])
def test_grouped_queries(groups):
    assert_same(qkv(groups=groups), enable_gqa=True)
    with pytest.raises(ShapeError, match="enable_gqa=True"):
        regard.sdpa(*qkv(groups=groups))


def test_dropout_also_outside_of_training():
    """Values that are the identity give the weights: a tenth is dropped, the others are larger by 1/0.9, and their mean stays."""
    q, k = (torch.randn(8, 4, 64, 16) for _ in "qk")
    v = torch.eye(64).expand(8, 4, 64, 64)
    weights, dropped = regard.sdpa(q, k, v), regard.sdpa(q, k, v, dropout_p=0.1)
    kept = dropped != 0
    assert abs(kept.float().mean() - 0.9) < 0.005
    torch.testing.assert_close(dropped[kept], (weights / 0.9)[kept])


def test_query_without_keys_gives_zeros():
    out = regard.sdpa(*qkv(), attn_mask=torch.zeros(L, M, dtype=torch.bool))
    assert not out.any()


def test_pattern_and_mechanism():
    q, k, v = qkv(keys=L)
    torch.testing.assert_close(regard.sdpa(q, k, v, pattern="causal"), F.scaled_dot_product_attention(q, k, v, is_causal=True))
    attention = LinearAttention()
    out = attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal).transpose(1, 2)
    torch.testing.assert_close(regard.sdpa(q, k, v, is_causal=True, attention=attention), out)
    torch.testing.assert_close(
        regard.sdpa(q, k, v, is_causal=True, pattern=window(1)),
        F.scaled_dot_product_attention(q, k, v, (causal & window(1)).mask(L, L)[0, 0]),
    )


def test_refused_by_name():
    q, k, v = qkv()
    with pytest.raises(NotSupported, match="is_causal"):
        regard.sdpa(q, k, v, torch.ones(L, M, dtype=torch.bool), is_causal=True)
    with pytest.raises(ShapeError, match="does not broadcast"):
        regard.sdpa(q, k, v, torch.ones(M, L, dtype=torch.bool))
    with pytest.raises(DtypeError, match=r"mask\.bool\(\)"):
        regard.sdpa(q, k, v, torch.ones(L, M, dtype=torch.long))
    with pytest.raises(NotSupported, match="scale"):
        regard.sdpa(q, k, v, scale=1.0, attention=LinearAttention())
    with pytest.raises(BiasNotSupported):
        regard.sdpa(q, k, v, torch.zeros(L, M, **F64), attention=LinearAttention())
    with pytest.raises(ShapeError, match="different batches"):
        regard.sdpa(q, k[:, None].expand(B, 3, H, M, K), v)
    with pytest.raises(ShapeError, match="ndarray"):
        regard.sdpa(q.detach().numpy(), k, v)
