"""Exact attention and its patterns against implementations that others wrote, weights copied where there are any."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from regard.attention import SoftmaxAttention
from regard.kernels import attend
from regard.patterns import block, causal, full, keep, lengths, local_causal, random_blocks, stride, to_tokens, tokens, window

B, L, H, K = 2, 96, 3, 8


pytestmark = pytest.mark.usefixtures("kernel_path")


def qkv(length=L, heads=H, dtype=torch.float64):
    return [torch.randn(B, length, heads, K, dtype=dtype, requires_grad=True) for _ in range(3)]


def equal(ours, theirs, wanted=(), tolerance=1e-5):
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)
    if wanted:
        cotangent = torch.randn_like(ours)
        grads = [torch.autograd.grad(out, wanted, cotangent, retain_graph=True) for out in (ours, theirs)]
        torch.testing.assert_close(*grads, atol=tolerance, rtol=tolerance)


class TestSDPA:
    """PyTorch's own, by its unfused reference path, in double precision."""

    @pytest.mark.parametrize(
        "pattern",
        [full, causal, window(7), causal & (window(5) | tokens(0)), stride(3), block(10), random_blocks(2, 8), causal & lengths([L, 40])],
        ids=str,
    )
    def test_patterns_and_gradients(self, pattern):
        q, k, v = qkv()
        with sdpa_kernel(SDPBackend.MATH):
            mask = pattern.mask(L, L).expand(B, H, L, L)
            theirs = scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), attn_mask=mask).transpose(1, 2)
            equal(SoftmaxAttention()(q, k, v, pattern), theirs, (q, k, v), 1e-10)

    def test_learned_bias(self):
        q, k, v = qkv()
        bias = torch.randn(H, L, L, dtype=torch.float64, requires_grad=True)
        with sdpa_kernel(SDPBackend.MATH):
            mask = bias.masked_fill(~causal.mask(L, L)[0], -torch.inf)
            theirs = scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), attn_mask=mask.expand(B, -1, -1, -1)).transpose(
                1, 2
            )
            equal(SoftmaxAttention()(q, k, v, causal, bias), theirs, (q, k, v, bias), 1e-10)

    def test_shared_heads(self):
        q, (k, v) = qkv(heads=6)[0], qkv(heads=2)[:2]
        with sdpa_kernel(SDPBackend.MATH):
            for pattern in (full, causal):
                theirs = scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=pattern is causal, enable_gqa=True)
                equal(SoftmaxAttention()(q, k, v, pattern), theirs.transpose(1, 2), (q, k, v), 1e-10)


class TestLongformer:
    """transformers' LongformerSelfAttention: |i − j| ≤ w/2 and global tokens with projections of their own."""

    def layer(self):
        from transformers import LongformerConfig
        from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

        config = LongformerConfig(
            hidden_size=H * K, num_attention_heads=H, attention_window=[8], num_hidden_layers=1, attention_probs_dropout_prob=0.0
        )
        return LongformerSelfAttention(config, 0).double()

    def projected(self, layer, x, suffix=""):
        return [getattr(layer, name + suffix)(x).unflatten(-1, (H, K)) for name in ("query", "key", "value")]

    @pytest.mark.parametrize("global_tokens", [(), (0,), (0, 5, 41)], ids=str)
    def test_window_and_global_tokens(self, global_tokens):
        layer, x = self.layer(), torch.randn(B, L, H * K, dtype=torch.float64, requires_grad=True)
        at = list(global_tokens)
        chosen = torch.zeros(B, L, dtype=torch.bool)
        chosen[:, at] = True
        theirs = layer(
            x,
            attention_mask=chosen.double() * 10000,
            is_index_masked=torch.zeros(B, L, dtype=torch.bool),
            is_index_global_attn=chosen,
            is_global_attn=bool(at),
        )[0]
        ours = attend(*self.projected(layer, x), window(4) | to_tokens(*at))
        if at:
            q, k, v = self.projected(layer, x, "_global")
            ours = ours.index_copy(1, torch.tensor(at), attend(q[:, at], k, v))
        equal(ours.flatten(2), theirs, (x,))


class TestBigBird:
    """transformers' BigBirdBlockSparseAttention in train mode; its mask is read off the probabilities it returns."""

    def test_block_sparse(self):
        from transformers import BigBirdConfig
        from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel

        size, length = 4, 64
        config = BigBirdConfig(
            hidden_size=H * K,
            num_attention_heads=H,
            block_size=size,
            num_random_blocks=2,
            max_position_embeddings=length,
            attention_probs_dropout_prob=0.0,
        )
        layer = BigBirdBlockSparseAttention(config, 0).double().train()
        x = torch.randn(B, length, H * K, dtype=torch.float64, requires_grad=True)
        blocked, band, rows, columns = BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(B, length, dtype=torch.float64), size)
        theirs, probabilities = layer(
            x, band_mask=band, from_mask=rows, to_mask=columns, from_blocked_mask=blocked, to_blocked_mask=blocked, output_attentions=True
        )[:2]
        q, k, v = (getattr(layer, name)(x).unflatten(-1, (H, K)) for name in ("query", "key", "value"))
        pattern = keep(probabilities > 0)
        assert 0.3 < pattern.mask(length, length).double().mean() < 0.9
        equal(attend(q, k, v, pattern).flatten(2), theirs, (x,))


class TestLocalAttention:
    def test_own_and_previous_block(self):
        from local_attention import LocalAttention

        q, k, v = (x.float() for x in qkv())
        theirs = LocalAttention(window_size=16, causal=True, look_backward=1, use_rotary_pos_emb=False)(
            *(x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
        )
        from regard.patterns import block_window

        ours = attend(q, k, v, causal & block_window(16, 1))
        equal(ours.transpose(1, 2).flatten(0, 1), theirs)

    def test_exact_window(self):
        from local_attention import LocalAttention

        q, k, v = (x.float() for x in qkv())
        layer = LocalAttention(window_size=16, causal=True, look_backward=1, exact_windowsize=True, use_rotary_pos_emb=False)
        theirs = layer(*(x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)))
        equal(attend(q, k, v, local_causal(16)).transpose(1, 2).flatten(0, 1), theirs)


class TestXTransformers:
    """The `Attend` of x-transformers: masks are True = may look there too."""

    def theirs(self, q, k, v, **kwargs):
        from x_transformers.attend import Attend

        mask = kwargs.pop("mask", None)
        return Attend(heads=H, **kwargs)(*(x.transpose(1, 2) for x in (q, k, v)), mask=mask)[0].transpose(1, 2)

    def test_causal_and_padding(self):
        q, k, v = qkv()
        equal(SoftmaxAttention()(q, k, v, causal), self.theirs(q, k, v, causal=True), (q, k, v))
        padded = lengths([L, 50])
        equal(SoftmaxAttention()(q, k, v, padded), self.theirs(q, k, v, mask=padded.mask(L, L).expand(B, 1, L, L)), (q, k, v))

    def test_softcap(self):
        q, k, v = qkv()
        ours = SoftmaxAttention(softcap=5.0)(q * 5, k, v)
        equal(ours, self.theirs(q * 5, k, v, softclamp_logits=True, logit_softclamp_value=5.0), (q, k, v))

    def test_learned_sink(self):
        from x_transformers.attend import Attend

        q, k, v = qkv()
        sink = torch.randn(H, dtype=torch.float64)
        other = Attend(heads=H, head_learned_sink=True).double()
        mine = SoftmaxAttention(sinks=H).double()
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.copy_(sink.view_as(parameter))
            mine.sink_H.copy_(sink)
        equal(mine(q, k, v), other(*(x.transpose(1, 2) for x in (q, k, v)))[0].transpose(1, 2), (q, k, v))


def test_softmax_by_hand():
    """Two keys with scores 0 and 1."""
    q, k = torch.tensor([1.0, 0.0]).view(1, 1, 1, 2), torch.tensor([[0.0, 0.0], [2**0.5, 0.0]]).view(1, 2, 1, 2)
    expected = torch.tensor([1, torch.e]) / (1 + torch.e)
    torch.testing.assert_close(SoftmaxAttention().weights(q, k).flatten(), expected)
    v = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).view(1, 2, 1, 2)
    torch.testing.assert_close(SoftmaxAttention()(q, k, v).flatten(), expected)
    # a sink with logit 1 takes as much as the second key
    sink = SoftmaxAttention(sinks=1)
    with torch.no_grad():
        sink.sink_H.fill_(1.0)
    torch.testing.assert_close(sink.weights(q, k).flatten(), torch.tensor([1, torch.e]) / (1 + 2 * torch.e))
