"""Mixers and memories against implementations that others wrote, with copied weights."""

from functools import partial

import pytest
import torch
from torch import nn

from regard import AdaptiveSpanAttention, causal, full
from regard.layers import (
    ALiBi,
    Block,
    FeedForward,
    FourierMixer,
    LayerNorm,
    MemoryTokens,
    MultiHead,
    RelativeXL,
    SegmentRecurrence,
    gelu,
    gelu_tanh,
)

B, D, H, W = 2, 16, 4, 24
close = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-9)
near = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)  # x-transformers takes its softmax in float32, whatever it is given


def copy(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    with torch.no_grad():
        for ours, theirs in pairs:
            assert ours.shape == theirs.shape
            ours.copy_(theirs)


def shaken(module: nn.Module) -> nn.Module:
    """In double precision, no parameter at a symmetric starting point."""
    module.double().eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return module


class TestFNet:
    fnet = pytest.importorskip("transformers.models.fnet.modeling_fnet", reason="needs transformers")

    def config(self):
        from transformers import FNetConfig

        return FNetConfig(vocab_size=11, hidden_size=D, num_hidden_layers=1, intermediate_size=W, hidden_dropout_prob=0.0)

    def test_the_transform(self):
        x = torch.randn(B, 13, D, dtype=torch.float64)
        close(FourierMixer()(x), self.fnet.FNetBasicFourierTransform(self.config())(x)[0])

    def test_a_layer(self):
        theirs = shaken(self.fnet.FNetLayer(self.config()))
        ours = Block(
            D, FourierMixer(), FeedForward(D, W, gelu_tanh), placement="post", norm=partial(LayerNorm, eps=self.config().layer_norm_eps)
        ).double()
        copy(
            [
                (ours.around_mixer.over.weight, theirs.fourier.output.LayerNorm.weight),
                (ours.around_mixer.over.bias, theirs.fourier.output.LayerNorm.bias),
                (ours.feedforward.up.weight, theirs.intermediate.dense.weight),
                (ours.feedforward.up.bias, theirs.intermediate.dense.bias),
                (ours.feedforward.down.weight, theirs.output.dense.weight),
                (ours.feedforward.down.bias, theirs.output.dense.bias),
                (ours.around_feedforward.over.weight, theirs.output.LayerNorm.weight),
                (ours.around_feedforward.over.bias, theirs.output.LayerNorm.bias),
            ]
        )
        x = torch.randn(B, 13, D, dtype=torch.float64, requires_grad=True)
        one, two = ours(x), theirs(x)[0]
        close(one, two)
        cotangent = torch.randn_like(one)
        close(torch.autograd.grad(one, x, cotangent), torch.autograd.grad(two, x, cotangent))


@pytest.mark.parametrize(("size", "cut"), [(9, [9, 4]), (5, [7, 6]), (20, [1, 1, 11]), (3, [3, 3, 3, 4])])
def test_segments_as_xlnet_scores_them(size, cut):
    """The last segment: rel_attn_core over [memory; segment], distances by its own shift and its own sinusoids."""
    xlnet = pytest.importorskip("transformers.models.xlnet.modeling_xlnet", reason="needs transformers")
    from transformers import XLNetConfig

    layer = shaken(SegmentRecurrence(MultiHead(D, H, bias=False, position=RelativeXL(D, H)), size))
    heads, position = layer.heads, layer.heads.position
    theirs = xlnet.XLNetRelativeAttention(XLNetConfig(d_model=D, n_head=H, d_inner=W, dropout=0.0)).double().eval()
    copy([(theirs.r_w_bias, position.u_HK), (theirs.r_r_bias, position.w_HK)])
    x = torch.randn(B, sum(cut), D, dtype=torch.float64)
    state = layer.start(B)
    for part in x.split(cut, 1):
        ours = layer(part, state=state)
    new, both = cut[-1], min(size, sum(cut[:-1])) + cut[-1]
    q, k, v = (
        (x[:, -rows:] @ weight.T).unflatten(-1, (H, -1)).transpose(0, 1)
        for rows, weight in zip((new, both, both), heads.qkv.weight.split(D), strict=True)
    )
    frequency = 1 / torch.pow(10000, torch.arange(0, D, 2.0, dtype=torch.float64) / D)
    sinusoid = xlnet.XLNetModel.positional_embedding(torch.arange(both, -new, -1.0, dtype=torch.float64), frequency, B)
    r = (sinusoid @ position.project.weight.T).unflatten(-1, (H, -1))
    hidden = torch.ones(new, both, dtype=torch.float64).triu(1 + both - new)[:, :, None, None]
    out = theirs.rel_attn_core(q, k, v, r, attn_mask=hidden.expand(-1, -1, B, H)).transpose(0, 1)
    close(ours, heads.out(out.flatten(-2)))


class TestXTransformers:
    xt = pytest.importorskip("x_transformers", reason="needs x-transformers")

    def theirs(self, layers: nn.Module, **options) -> nn.Module:
        return shaken(self.xt.TransformerWrapper(num_tokens=11, max_seq_len=64, use_abs_pos_emb=False, attn_layers=layers, **options))

    def ours(self, theirs: nn.Module, size: int | None = None) -> nn.ModuleList:
        """Its layers as blocks: attention and feed-forward part in turn, norms before each without a shift."""
        blocks, parts = [], theirs.attn_layers.layers
        for (norms, attention, _), (norms2, feedforward, _) in zip(parts[::2], parts[1::2], strict=True):
            heads = MultiHead(D, H, bias=False, position=None if size is None else ALiBi(H))
            mixer = heads if size is None else SegmentRecurrence(heads, size)
            block = Block(D, mixer, FeedForward(D, 4 * D, gelu), norm=partial(LayerNorm, bias=False)).double()
            up, down = feedforward.ff[0][0], feedforward.ff[-1]
            copy(
                [
                    (heads.qkv.weight, torch.cat([attention.to_q.weight, attention.to_k.weight, attention.to_v.weight])),
                    (heads.out.weight, attention.to_out.weight),
                    (block.feedforward.up.weight, up.weight),
                    (block.feedforward.up.bias, up.bias),
                    (block.feedforward.down.weight, down.weight),
                    (block.feedforward.down.bias, down.bias),
                    (block.around_mixer.before.weight, norms[0].gamma + norms[0].unit_offset),
                    (block.around_feedforward.before.weight, norms2[0].gamma + norms2[0].unit_offset),
                ]
            )
            blocks.append(block)
        return nn.ModuleList(blocks)

    @pytest.mark.parametrize(("size", "cut"), [(6, [5, 5, 5]), (3, [7, 1, 9]), (32, [4, 8, 5])])
    def test_recurrence(self, size, cut):
        """Two layers, memories of each, with ALiBi. Theirs norms what it remembers again: the same numbers."""
        layers = self.xt.Decoder(dim=D, depth=2, heads=H, attn_dim_head=D // H, alibi_pos_bias=True)
        theirs = self.theirs(layers, max_mem_len=size)
        blocks = self.ours(theirs, size)
        ids, mems = torch.randint(11, (B, sum(cut))), None
        states = [block.start(B) for block in blocks]
        for part in ids.split(cut, 1):
            expected, mems = theirs(part, mems=mems, return_mems=True, return_embeddings=True)
            x = theirs.token_emb(part)
            for block, state in zip(blocks, states, strict=True):
                x = block(x, causal, state=state)
            near(theirs.attn_layers.final_norm(x), expected)
        assert all(state["mixer"].rows_BMD.shape == mem.shape for state, mem in zip(states, mems, strict=True))

    def test_memory_tokens(self):
        theirs = self.theirs(self.xt.Encoder(dim=D, depth=2, heads=H, attn_dim_head=D // H), num_memory_tokens=3)
        blocks, memory = self.ours(theirs), MemoryTokens(D, 3).double()
        copy([(memory.rows_CD, theirs.memory_tokens)])
        ids = torch.randint(11, (B, 9))
        x = memory.put(theirs.token_emb(ids))
        for block in blocks:
            x = block(x, memory.both_ways(full))
        near(memory.take(theirs.attn_layers.final_norm(x))[0], theirs(ids, return_embeddings=True))


def test_adaptive_span_as_published():
    """The mask of the published code (facebookresearch/adaptive-span, adaptive_span.py), on its layout: keys i − S + 1 … i of each query.

    softmax over the span, times clamp((x + z·S)/R + 1, 0, 1) with x = 1 − S … 0, divided by its sum (+ 1e-8 there: the tolerance here).
    """
    S, R, L, K = 12, 4.0, 30, 5
    attention = AdaptiveSpanAttention(heads=H, longest=S, ramp=R).double()
    copy([(attention.share_H, torch.tensor([0.0, 0.21, 0.5, 0.66], dtype=torch.float64))])  # z + R within S: theirs cuts at S
    q, k, v = torch.randn(3, B, L, H, K, dtype=torch.float64)
    past = [torch.cat([torch.zeros(B, S - 1, H, K, dtype=torch.float64), x], 1).unfold(1, S, 1) for x in (k, v)]  # (B, L, H, K, S)
    scores = torch.einsum("blhk,blhks->bhls", q, past[0]) / K**0.5
    before = torch.arange(L)[:, None] + torch.arange(1 - S, 1) < 0  # theirs has a full cache; here the text begins
    soft = scores.masked_fill(before, -torch.inf).softmax(-1)
    mask = ((torch.linspace(1 - S, 0, S, dtype=torch.float64) + attention.share_H[:, None] * S) / R + 1).clamp(0, 1)
    soft = soft * mask[:, None]
    soft = soft / (soft.sum(-1, keepdim=True) + 1e-8)
    torch.testing.assert_close(attention(q, k, v, causal), torch.einsum("bhls,blhvs->blhv", soft, past[1]), atol=1e-6, rtol=1e-6)
