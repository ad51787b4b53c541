"""Memory-compressed attention: exact with stride one, the blocks a query may see, and the state of whole blocks and a rest."""

from functools import partial

import pytest
import torch

from regard.attention import MemoryCompressedAttention, SoftmaxAttention
from regard.attention.helpers import average
from regard.errors import BadConfig, PatternNotSupported, ShapeError, StateNotSupported
from regard.patterns import causal, full, lengths

B, H, K, V = 2, 3, 7, 4
close = partial(torch.testing.assert_close, atol=1e-12, rtol=1e-12)


def qkv(queries=11, keys=11, heads=H):
    torch.manual_seed(0)
    return [torch.randn(B, n, heads, size, dtype=torch.float64) for n, size in ((queries, K), (keys, K), (keys, V))]


def made(stride: int, *, mean: bool = True) -> MemoryCompressedAttention:
    attention = MemoryCompressedAttention(heads=H, head_dim=K, stride=stride).double()
    with torch.no_grad():
        if mean:
            attention.w_HSKK.copy_(torch.eye(K, dtype=torch.float64) / stride)
            attention.c_HS.fill_(1 / stride)
        else:
            attention.c_HS.normal_()
    return attention


@pytest.mark.parametrize("pattern", [full, causal, lengths([11, 4]), causal & lengths([11, 4])], ids=str)
def test_stride_one_with_the_identity_is_softmax_attention(pattern):
    q, k, v = qkv()
    close(made(1)(q, k, v, pattern), SoftmaxAttention()(q, k, v, pattern))
    close(made(1).weights(q, k, pattern), SoftmaxAttention().weights(q, k, pattern))


def test_blocks_of_equal_keys_are_softmax_attention_over_one_of_each():
    q, k, v = qkv(keys=4)
    close(made(3)(q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1)), SoftmaxAttention()(q, k, v))


def test_which_keys_a_query_sees():
    """Stride 3, seven tokens: the first two see nothing, the next three the first block, the last two both; token 6 nobody."""
    q, k, _ = qkv(7, 7)
    seen = made(3, mean=False).weights(q, k, causal)[0, 0] != 0
    assert seen.int().tolist() == [[0] * 7] * 2 + [[1] * 3 + [0] * 4] * 3 + [[1] * 6 + [0]] * 2


def test_convolutions_are_pytorchs():
    attention, (q, k, v) = made(3, mean=False), qkv(5, 12)
    one = torch.eye(V, dtype=torch.float64)
    shorter = []
    for x, w_HSab in ((k, attention.w_HSKK), (v, attention.c_HS[..., None, None] * one)):
        conv = torch.nn.Conv1d(H * x.shape[-1], H * x.shape[-1], 3, stride=3, groups=H, bias=False).double()
        with torch.no_grad():
            conv.weight.copy_(w_HSab.permute(0, 3, 2, 1).flatten(0, 1))
        shorter.append(conv(x.flatten(2).mT).mT.unflatten(-1, x.shape[2:]))
    close(attention(q, k, v), SoftmaxAttention()(q, *shorter))


@pytest.mark.parametrize("length", [300, 301])
def test_long_sequences_in_tiles(length):
    """Beyond the size at which one mask serves."""
    q, k, v = qkv(length, length)
    attention = made(2, mean=False)
    for pattern in (causal, causal & lengths([length, 77])):
        close(attention(q, k, v, pattern), average(attention.weights(q, k, pattern), v), atol=1e-10)


def test_a_reset_row_sees_only_what_came_after():
    """It keeps the blocks of the stream: what came before counts as zeros in its first one."""
    attention, (q, k, v) = made(3, mean=False), qkv()
    state = attention.start(B)
    attention(q[:, :4], k[:, :4], v[:, :4], causal, state=state)
    state.reset(torch.tensor([1]))
    after = attention(q[:, 4:], k[:, 4:], v[:, 4:], causal, state=state)
    whole = attention(q, k, v, causal)
    close(after[0], whole[0, 4:])
    k[1, :4], v[1, :4] = 0, 0
    anew = attention(q[1:, 3:], k[1:, 3:], v[1:, 3:], causal)  # a block begins at 3
    close(after[1:], anew[:, 1:])
    state.reorder(torch.tensor([1, 0, 1]))
    assert state.batch == 3 and state.length == 11 and state.slots.keys_and_values()[0].shape[1] == 3


def test_what_it_cannot_do_is_named():
    attention, (q, k, v) = made(3), qkv()
    with pytest.raises(PatternNotSupported, match="not `full`"):
        attention(q, k, v, full, state=attention.start(B))
    with pytest.raises(StateNotSupported, match="got a Cache"):
        attention(q, k, v, causal, state=SoftmaxAttention().start(B))
    with pytest.raises(ShapeError, match="made for 3 heads of size 7"):
        attention(*(x[:, :, :2] for x in (q, k, v)))
    with pytest.raises(BadConfig, match="stride=0; expected `int` >= 1"):
        made(0)
