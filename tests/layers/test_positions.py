"""Positions: against other libraries, against the definitions written as loops, and their invariances."""

import math
import warnings
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from regard.attention import SoftmaxAttention
from regard.errors import ShapeError
from regard.layers import (
    ALiBi,
    Buckets,
    GridLearned,
    GridRotary,
    GridSinusoidal,
    Learned,
    MultiHead,
    RelativeXL,
    Rotary,
    Sinusoidal,
)
from regard.layers.positions.absolute import sinusoids
from regard.layers.positions.relative import alibi_slopes, buckets_of
from regard.patterns import causal, full, lengths, local_causal, window

B, L, M, H, K, D = 2, 5, 9, 3, 8, 14
close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# -- absolute ------------------------------------------------------------------------------------------------------


def test_sinusoids_by_hand():
    pe = Sinusoidal(6).double().add(torch.zeros(1, 3, 6, dtype=torch.float64), torch.arange(3))[0]
    for t in range(3):
        for c in range(3):
            angle = t / 10_000 ** (2 * c / 6)
            close(pe[t, 2 * c : 2 * c + 2], torch.tensor([math.sin(angle), math.cos(angle)], dtype=torch.float64))


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_later_sinusoids_are_earlier_ones_turned(layout):
    at, step = torch.arange(11), 4
    now, later = (sinusoids(x, D, layout=layout, dtype=torch.float64) for x in (at, at + step))
    order = torch.arange(D).view(-1, 2) if layout == "interleaved" else torch.arange(D).view(2, -1).T
    for c, (sine, cosine) in enumerate(order.tolist()):
        turn = step * 10_000 ** (-2 * c / D)
        close(later[:, sine], now[:, sine] * math.cos(turn) + now[:, cosine] * math.sin(turn))
        close(later[:, cosine], now[:, cosine] * math.cos(turn) - now[:, sine] * math.sin(turn))


def test_learned_positions():
    scheme, x = Learned(7, D).double(), randn(B, L, D)
    close(scheme.add(x, torch.arange(2, 2 + L)), x + scheme.table.weight[2:7])
    each = torch.tensor([[0, 1, 2, 0, 1], [3, 4, 5, 6, 0]])
    close(scheme.add(x, each), x + scheme.table.weight[each])
    with pytest.raises(ShapeError, match="7 positions, 0 to 6, got 3 to 7"):
        scheme.add(x, torch.arange(3, 3 + L))
    with pytest.raises(ShapeError, match="width 14"):
        scheme.add(randn(B, L, D + 1), torch.arange(L))


def test_grids_say_row_and_column():
    rows, columns, width, prefix = 3, 5, 12, 1
    learned, fixed = GridLearned(width, rows, columns, prefix=prefix).double(), GridSinusoidal(width, columns, prefix=prefix)
    x, at = torch.zeros(B, prefix + rows * columns, width, dtype=torch.float64), torch.arange(prefix + rows * columns)
    for scheme, row, column in (
        (learned, learned.row.weight, learned.column.weight),
        (fixed, *(sinusoids(torch.arange(n), width // 2, dtype=torch.float64) for n in (rows, columns))),
    ):
        out = scheme.add(x, at)
        close(out[:, 0], x[:, 0])
        for r in range(rows):
            for c in range(columns):
                close(out[1, prefix + r * columns + c], torch.cat([row[r], column[c]]))
    with pytest.raises(ShapeError, match="3 rows"):
        learned.add(torch.zeros(B, 17, width), torch.arange(17))
    with pytest.raises(ShapeError, match="multiple of 4"):
        GridSinusoidal(14, columns)


# -- rotary --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_rotary_is_multiplication_of_complex_numbers(layout):
    q, k = randn(B, L, H, K), randn(B, M, H, K, seed=1)
    turned_q, turned_k, bias = Rotary(layout=layout, base=500.0).encode(q, k, 3, 2)
    assert bias is None
    for x, out, start in ((q, turned_q, 3), (k, turned_k, 2)):
        at = torch.arange(start, start + x.shape[1], dtype=torch.float64)
        turn = torch.polar(torch.ones(1, dtype=torch.float64), at[:, None] * 500.0 ** (-torch.arange(K // 2, dtype=torch.float64) * 2 / K))
        pairs = x.unflatten(-1, (-1, 2)) if layout == "interleaved" else x.unflatten(-1, (2, -1)).transpose(-1, -2)
        product = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn[:, None])
        close(out, (product if layout == "interleaved" else product.transpose(-1, -2)).flatten(-2))


@pytest.mark.parametrize("part", [None, 4])
@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_gradients_of_rotary_are_turned_back(layout, part):
    rotary = Rotary(layout=layout, part=part)
    x = torch.randn(2, 3, 2, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: rotary.encode(x, x, 5, 2)[0], x)
    assert torch.autograd.gradgradcheck(lambda x: rotary.encode(x, x, 5, 2)[0], x)


def test_rotary_is_that_of_llama():
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    theirs = LlamaRotaryEmbedding(LlamaConfig(hidden_size=H * K, num_attention_heads=H, head_dim=K))
    q, k = randn(B, L, H, K).float(), randn(B, L, H, K, seed=1).float()
    cos, sin = theirs(q, torch.arange(4, 4 + L)[None])
    expected = apply_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
    for mine, other in zip(Rotary().encode(q, k, 4, 4), expected, strict=False):
        torch.testing.assert_close(mine, other.transpose(1, 2), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scheme", [Rotary(), Rotary(layout="interleaved"), Rotary(part=4)], ids=["halves", "interleaved", "part"])
def test_rotary_products_know_the_distance_only(scheme):
    q, k = randn(B, L, H, K), randn(B, M, H, K, seed=1)

    def scores(shift: int) -> Tensor:
        turned_q, turned_k, _ = scheme.encode(q, k, 2 + shift, shift)
        return torch.einsum("blhk,bmhk->bhlm", turned_q, turned_k)

    close(scores(0), scores(1000))


def test_rotary_leaves_the_rest():
    q = randn(B, L, H, K)
    turned, _, _ = Rotary(part=6).encode(q, q, 1, 1)
    close(turned[..., 6:], q[..., 6:])
    close(turned[..., :6], Rotary().encode(q[..., :6], q[..., :6], 1, 1)[0])


def test_rotary_angles_are_exact_in_half_precision():
    q = torch.ones(1, 1, 1, 2, dtype=torch.bfloat16)
    turned, _, _ = Rotary().encode(q, q, 1023, 1023)
    exact = torch.tensor([math.cos(1023) - math.sin(1023), math.cos(1023) + math.sin(1023)])
    torch.testing.assert_close(turned.flatten().float(), exact, rtol=1e-2, atol=1e-2)
    assert turned.dtype == torch.bfloat16


def test_grid_rotary_knows_rows_and_columns_apart():
    columns, prefix = 5, 1
    q = randn(1, 1, H, K).expand(B, prefix + 3 * columns, H, K)
    turned, _, _ = GridRotary(columns, prefix=prefix).encode(q, q, 0, 0)
    close(turned[:, 0], q[:, 0])
    scores = torch.einsum("blhk,bmhk->bhlm", turned[:, 1:], turned[:, 1:]).unflatten(-1, (3, 5)).unflatten(-3, (3, 5))
    close(scores[:, :, 0, 0, 1, 2], scores[:, :, 1, 2, 2, 4])  # one row down, two columns on
    assert not torch.allclose(scores[:, :, 0, 0, 1, 2], scores[:, :, 0, 0, 2, 1])
    by_row, _, _ = Rotary().encode(*[randn(1, 1, H, K)[..., : K // 2]] * 2, 2, 2)
    close(turned[:1, prefix + 2 * columns, :, : K // 2], by_row[:, 0])


# -- ALiBi ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 8, 12, 16, 20])
def test_alibi_slopes_are_those_of_others(heads):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # their own, at import
        from transformers.models.bloom.modeling_bloom import build_alibi_tensor
        from x_transformers.x_transformers import AlibiPositionalBias

    bloom = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]  # the bias of key 1 over key 0 is the slope
    torch.testing.assert_close(torch.tensor(alibi_slopes(heads)), bloom)
    torch.testing.assert_close(alibi_slopes(heads), AlibiPositionalBias._get_slopes(heads))


def test_alibi_by_hand():
    q = randn(B, L, 2, K)
    _, _, bias = ALiBi(2).encode(q, q, 0, 0)
    whole = bias.whole(2, 4, torch.device("cpu"))[0]  # two queries at the end of four keys
    assert whole[0].tolist() == [[-2 / 16, -1 / 16, 0, -1 / 16], [-3 / 16, -2 / 16, -1 / 16, 0]]
    assert whole[1].tolist() == [[-2 / 256, -1 / 256, 0, -1 / 256], [-3 / 256, -2 / 256, -1 / 256, 0]]


# -- T5 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize("buckets, furthest", [(32, 128), (8, 20), (64, 1000)])
def test_buckets_are_those_of_t5(both_ways, buckets, furthest):
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = torch.arange(-1500, 1501)
    theirs = T5Attention._relative_position_bucket(distance, both_ways, buckets, furthest)
    assert torch.equal(buckets_of(distance, buckets, furthest, not both_ways), theirs)


@pytest.mark.parametrize("decoder", [True, False])
def test_bucket_bias_is_that_of_t5(decoder):
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(d_model=H * K, d_kv=K, num_heads=H, is_decoder=decoder)
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    ours = Buckets(H, causal=decoder)
    ours.table.weight = theirs.relative_attention_bias.weight
    q = torch.zeros(B, 301, H, K)
    _, _, bias = ours.encode(q, q, 0, 0)
    torch.testing.assert_close(bias.whole(301, 301, q.device), theirs.compute_bias(301, 301))


@pytest.mark.parametrize("scheme", ["buckets", "xl"])
@pytest.mark.parametrize("pattern", [full, causal, local_causal(40), window(30) & lengths([300, 131])], ids=str)
def test_learned_biases_train_tile_by_tile(scheme, pattern):
    """Fast = definition, gradients of all parameters included, over many tiles."""
    torch.manual_seed(0)
    position = Buckets(H, buckets=16, furthest=50) if scheme == "buckets" else RelativeXL(D, H, K)
    position = position.double()
    for parameter in position.parameters():
        nn.init.normal_(parameter)
    N = 300
    given = [randn(B, N, H, K, seed=s).requires_grad_() for s in range(3)]
    attention = SoftmaxAttention()
    q, k, bias = position.encode(given[0], given[1], 0, 0)
    fast = attention(q, k, given[2], pattern, bias)
    slow = torch.einsum("bhlm,bmhv->blhv", attention.weights(q, k, pattern, bias), given[2])
    close(fast, slow)
    wanted, weight = [*given, *position.parameters()], randn(B, N, H, K, seed=7)
    grads = [torch.autograd.grad(out, wanted, weight, retain_graph=True) for out in (fast, slow)]
    for a, b in zip(*grads, strict=True):
        close(a, b, rtol=1e-8, atol=1e-8)
    rows = torch.tensor([0, 77, 299])
    close(attention.weights(q, k, pattern, bias, rows=rows), attention.weights(q, k, pattern, bias)[:, :, rows])


@pytest.mark.parametrize("scheme", ["buckets", "xl"])
def test_nothing_of_size_length_squared_is_kept(scheme):
    N, heads, size = 1500, 2, 4
    position = Buckets(heads) if scheme == "buckets" else RelativeXL(8, heads, size)
    layer = MultiHead(8, heads, position=position)
    saved: dict[int, int] = {}

    def note(x: Tensor) -> Tensor:
        saved[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        out = layer(torch.randn(1, N, 8), pattern=causal)
    assert sum(saved.values()) < 4 * N * N / 4  # all that waits for the backward pass; one head's scores alone take 4·N²
    out.sum().backward()
    assert position.table.weight.grad.abs().sum() > 0 if scheme == "buckets" else position.u_HK.grad.abs().sum() > 0


# -- Transformer-XL ------------------------------------------------------------------------------------------------


def xl(width: int = D) -> RelativeXL:
    torch.manual_seed(3)
    scheme = RelativeXL(width, H, K).double()
    nn.init.normal_(scheme.u_HK)
    nn.init.normal_(scheme.w_HK)
    return scheme


@pytest.mark.parametrize("queries", [M, L, 1])
def test_xl_scores_are_the_double_loop(queries):
    scheme, q, k = xl(), randn(B, queries, H, K), randn(B, M, H, K, seed=1)
    u, w = scheme.u_HK, scheme.w_HK
    expected = torch.zeros(B, H, queries, M, dtype=torch.float64)
    for i in range(queries):
        for j in range(M):
            distance = torch.tensor(i + M - queries - j)
            r_HK = scheme.project(sinusoids(distance, D, layout="halves", dtype=torch.float64)).view(H, K)
            expected[:, :, i, j] = ((q[:, i] + u) * k[:, j] + (q[:, i] + w) * r_HK).sum(-1) / K**0.5
    turned, same, bias = scheme.encode(q, k, M - queries, 0)
    scores = torch.einsum("blhk,bmhk->bhlm", turned, same) / K**0.5 + bias.whole(queries, M, q.device)
    close(scores, expected)


def test_xl_is_that_of_xlnet():
    from transformers import XLNetConfig
    from transformers.models.xlnet.modeling_xlnet import XLNetRelativeAttention

    theirs = XLNetRelativeAttention(XLNetConfig(d_model=H * K, n_head=H, dropout=0.0)).double().eval()
    scheme = xl(H * K)
    for parameter, value in ((theirs.r_w_bias, scheme.u_HK), (theirs.r_r_bias, scheme.w_HK)):
        parameter.data.copy_(value.detach())
    q, k, v = randn(B, L, H, K), randn(B, M, H, K, seed=1), randn(B, M, H, K, seed=2)
    distance = torch.arange(M, -L, -1)  # what XLNet's shift expects: the furthest back first, one more than there is
    r_NHK = scheme.project(sinusoids(distance, H * K, layout="halves", dtype=torch.float64)).view(-1, H, K)
    expected = theirs.rel_attn_core(*(x.transpose(0, 1) for x in (q, k, v)), r_NHK[:, None].expand(-1, B, -1, -1))
    expected = expected[0] if isinstance(expected, tuple) else expected
    turned, same, bias = scheme.encode(q, k, M - L, 0)
    close(SoftmaxAttention()(turned, same, v, full, bias), expected.transpose(0, 1))


def test_wrong_sizes_are_refused():
    for make, says in (
        (lambda: Sinusoidal(7), "multiple of 2: choose 6 or 8"),
        (lambda: Rotary(part=3), "multiple of 2"),
        (lambda: Buckets(2, buckets=10), "multiple of 4"),
        (lambda: Buckets(2, furthest=8), "furthest=8"),
        (lambda: RelativeXL(9, 3), "multiple of 2"),
    ):
        with pytest.raises(ShapeError, match=says):
            make()
