"""Synthesizers: what they can stand for exactly, in PyTorch's attention and by hand; and that one matrix serves a batch."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from regard.attention import (
    DenseSynthesizer,
    FactorisedDenseSynthesizer,
    FactorisedRandomSynthesizer,
    MixtureSynthesizer,
    RandomSynthesizer,
    SoftmaxAttention,
    helpers,
    synthesizer,
)
from regard.errors import BadConfig, ShapeError
from regard.look import capture
from regard.patterns import causal, full, lengths
from regard.testing import assert_law

B, L, H, K, V, N = 2, 7, 3, 5, 4, 11
ALL = [DenseSynthesizer, RandomSynthesizer, FactorisedDenseSynthesizer, FactorisedRandomSynthesizer, MixtureSynthesizer]
close = partial(torch.testing.assert_close, atol=1e-12, rtol=1e-12)


def qkv(length=L):
    torch.manual_seed(0)
    return [torch.randn(B, length, H, size, dtype=torch.float64, requires_grad=True) for size in (K, K, V)]


def made(kind, length=N):
    torch.manual_seed(1)
    attention = kind.sized(heads=H, head_dim=K, length=length).double()
    with torch.no_grad():
        for p in attention.parameters():
            p.normal_()
    return attention


class TestRandom:
    def test_the_logarithm_of_any_attention_is_that_attention(self):
        q, k, v = qkv()
        wanted = SoftmaxAttention().weights(q, k, causal)[0].detach()  # of one input, for every input
        attention = made(RandomSynthesizer)
        with torch.no_grad():
            attention.r_HNN[:, :L, :L] = wanted.clamp(min=1e-300).log()
        close(attention.weights(q, k, causal), wanted.expand(B, -1, -1, -1))
        close(attention.weights(5 * q, 2 + k, causal), wanted.expand(B, -1, -1, -1))

    def test_zeros_are_the_mean(self):
        q, k, v = qkv()
        attention = made(RandomSynthesizer)
        torch.nn.init.zeros_(attention.r_HNN)
        close(attention(q, k, v, lengths([L, 3]))[1, 4], v[1, :3].mean(0))

    @pytest.mark.parametrize("kind", [RandomSynthesizer, FactorisedRandomSynthesizer])
    @pytest.mark.parametrize("pattern", [full, causal], ids=str)
    def test_is_pytorchs_attention_of_nothing_with_a_mask(self, kind, pattern):
        q, k, v = qkv()
        attention = made(kind)
        r_HNN = attention.r_HNN if kind is RandomSynthesizer else attention.r_HNR @ attention.s_HNR.mT
        mask = r_HNN[:, :L, :L].masked_fill(~pattern.mask(L, L)[0], -torch.inf).expand(B, -1, -1, -1)
        zeros = torch.zeros(B, H, L, K, dtype=torch.float64)
        theirs = F.scaled_dot_product_attention(zeros, zeros, v.transpose(1, 2), mask).transpose(1, 2)
        ours, wanted = attention(q, k, v, pattern), [v, *attention.parameters()]
        close(ours, theirs)
        for one, two in zip(*(torch.autograd.grad(x.square().sum(), wanted) for x in (ours, theirs)), strict=True):
            close(one, two)

    @pytest.mark.parametrize("kind", [RandomSynthesizer, FactorisedRandomSynthesizer])
    def test_one_matrix_serves_the_batch(self, kind, monkeypatch):
        """Nothing of size B·H·L·M is formed."""
        seen = []
        monkeypatch.setattr(
            synthesizer, "average", lambda weights, v, average=synthesizer.average: (seen.append(len(weights)), average(weights, v))[1]
        )
        q, k, v = qkv()
        made(kind)(q, k, v, causal)
        made(kind)(q, k, v, lengths([L, 2]))
        assert seen == [1, 2]


class TestDense:
    def test_by_hand(self):
        """relu(1, −2) = (1, 0); columns 0, 1, 2 of W give 0, log 2, log 5; under `causal` the second query sees two."""
        attention = DenseSynthesizer(head_dim=2, max_length=3).double()
        with torch.no_grad():
            attention.w_HNK.copy_(torch.tensor([[[1, 9], [2, 9], [5, 9]]], dtype=torch.float64).log()), attention.b_HN.zero_()
        q = torch.tensor([1.0, -2.0], dtype=torch.float64).expand(1, 3, 1, 2)
        close(attention.weights(q, q)[0, 0, 1], torch.tensor([1, 2, 5], dtype=torch.float64) / 8)
        close(attention.weights(q, q, causal)[0, 0, 1], torch.tensor([1, 2, 0], dtype=torch.float64) / 3)

    def test_is_two_linear_layers(self):
        attention, (q, k, _) = made(DenseSynthesizer), qkv()
        for h in range(H):
            layers = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(K, N)).double()
            layers[1].load_state_dict({"weight": attention.w_HNK[h], "bias": attention.b_HN[h]})
            close(attention.weights(q, k)[:, h], layers(q[:, :, h])[..., :L].softmax(-1))

    def test_factors_tile_and_repeat(self):
        attention, (q, k, _) = made(FactorisedDenseSynthesizer), qkv()
        assert attention.sizes == (4, 3)  # of eleven
        both = torch.einsum("blhk,hkn->bhln", q.relu(), attention.w_HKN) + attention.c_HN[:, None]
        a, b = both[..., :4].tile(3), both[..., 4:].repeat_interleave(4, -1)
        close(attention.weights(q, k), (a * b)[..., :L].softmax(-1))


class TestMixture:
    def test_all_share_on_the_comparison_is_softmax_attention(self):
        q, k, v = qkv()
        attention = made(MixtureSynthesizer)
        with torch.no_grad():
            attention.share_P.copy_(torch.tensor([1e3, 0]))
        close(attention(q, k, v, causal), SoftmaxAttention()(q, k, v, causal))

    def test_logits_are_added_with_their_shares(self):
        q, k, v = qkv()
        parts = [made(DenseSynthesizer), made(FactorisedRandomSynthesizer), made(RandomSynthesizer, 9)]
        attention = MixtureSynthesizer(parts, compare=False).double()
        with torch.no_grad():
            attention.share_P.copy_(torch.tensor([0.1, 0.7, -0.3]))
        places = torch.arange(L)[None]
        said = [share * p.logits(q, k, places, places) for share, p in zip(attention.share_P.softmax(0), parts, strict=True)]
        close(attention.weights(q, k), sum(said).softmax(-1))
        assert attention.max_length == 9
        assert_law(attention, qkv(), causal & lengths([L, 2]))

    def test_parts_are_checked_and_seen_through_one_map(self):
        with pytest.raises(BadConfig, match="one Synthesizer or more"):
            MixtureSynthesizer([])
        with pytest.raises(ShapeError, match="MixtureSynthesizer was made for 2 heads"):
            MixtureSynthesizer([RandomSynthesizer(heads=2, max_length=N)])(*(x.float() for x in qkv()))
        q, k, v = (x.detach().float() for x in qkv())
        with capture(attention := made(MixtureSynthesizer).float()) as maps:
            attention(q, k, v)
        assert maps.layers == ["MixtureSynthesizer"]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
class TestAll:
    def test_in_chunks_of_rows(self, kind):
        with helpers.force_row_chunks(2 * B * H * N):
            for pattern in (full, causal & lengths([N, 5])):
                assert_law(made(kind), qkv(N), pattern)

    def test_a_reset_row_counts_from_where_it_began(self, kind):
        """Fixed positions are those of the row's own tokens."""
        attention, (q, k, v) = made(kind), (x.detach() for x in qkv())
        state = attention.start(B, causal)
        attention(q[:, :4], k[:, :4], v[:, :4], causal, state=state)
        state.reset(torch.tensor([1]))
        after = torch.cat([attention(q[:, t : t + 1], k[:, t : t + 1], v[:, t : t + 1], causal, state=state) for t in range(4, L)], 1)
        close(after[:1], attention(q[:1], k[:1], v[:1], causal)[:, 4:])
        close(after[1:], attention(q[1:, 4:], k[1:, 4:], v[1:, 4:], causal))

    def test_too_long_is_named(self, kind):
        attention, (q, k, v) = made(kind), (x.detach() for x in qkv(N + 1))
        with pytest.raises(ShapeError, match=f"{kind.__name__} was made for up to 11 keys, got 12"):
            attention(q, k, v)
        state = attention.start(B)
        attention(q[:, :N], k[:, :N], v[:, :N], causal, state=state)
        with pytest.raises(ShapeError, match="got 12"):
            attention(q[:, N:], k[:, N:], v[:, N:], causal, state=state)
