"""Mixers without attention: against the matrices of their formulas, inside a Block, and under capture."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from regard import capture, causal, full, lengths, per_head, window
from regard.errors import CaptureNotSupported, PatternNotSupported, ShapeError, StateNotSupported
from regard.layers import Block, FeedForward, FourierMixer, GatedMixer, MultiHead, TokenMixer, gelu, init_truncated

B, L, D, W = 3, 9, 10, 14
close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def dft(size: int) -> torch.Tensor:
    """The definition, one number at a time."""
    rows = [
        [complex(math.cos(2 * math.pi * m * n / size), -math.sin(2 * math.pi * m * n / size)) for n in range(size)] for m in range(size)
    ]
    return torch.tensor(rows, dtype=torch.complex128)


class TestFourier:
    @pytest.mark.parametrize(("length", "width"), [(1, 1), (1, 6), (6, 1), (2, 2), (5, 3), (8, 6), (7, 8), (64, 33), (17, 10)])
    def test_is_the_matrix_of_its_formula(self, length, width):
        x = randn(2, length, width)
        y, expected = FourierMixer()(x), (dft(length) @ x.to(torch.complex128) @ dft(width)).real
        close(y, expected)
        cotangent = randn(2, length, width, seed=1)
        close(torch.autograd.grad(y, x, cotangent), torch.autograd.grad(expected, x, cotangent))

    def test_second_derivatives(self):
        x = randn(1, 4, 5)
        assert torch.autograd.gradgradcheck(FourierMixer(), (x,))

    def test_the_transform_of_the_transform_is_the_reverse(self):
        x = randn(2, 6, 5)
        complete = torch.fft.fft2(torch.fft.fft2(x, dim=(1, 2)), dim=(1, 2)).real / 30
        back = x.roll((-1, -1), (1, 2)).flip(1, 2)
        close(complete, back)

    def test_weights_are_two_heads_over_mixed_features(self):
        x, weights = randn(B, L, D), FourierMixer().weights(L)
        features = dft(D)
        values = torch.stack([x @ features.real, x @ -features.imag], 1)
        assert weights.shape == (1, 2, L, L)
        close((weights @ values).sum(1), FourierMixer()(x))

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_low_precision_is_done_in_single(self, dtype):
        x = torch.randn(B, L, D).to(dtype)
        y = FourierMixer()(x)
        assert y.dtype == dtype
        torch.testing.assert_close(y, FourierMixer()(x.float()).to(dtype), rtol=0, atol=0)

    def test_nothing_in_nothing_out(self):
        assert FourierMixer()(torch.zeros(0, 4, 5)).shape == (0, 4, 5) and FourierMixer()(torch.zeros(2, 0, 5)).shape == (2, 0, 5)


def test_tokens_are_mixed_alike_in_every_feature():
    mixer, x = TokenMixer(L, W).double(), randn(B, L, D)
    w1, b1, w2, b2 = mixer.mix.up.weight, mixer.mix.up.bias, mixer.mix.down.weight, mixer.mix.down.bias
    y = mixer(x)
    for d in range(D):
        close(y[:, :, d], F.gelu(x[:, :, d] @ w1.T + b1) @ w2.T + b2)


def test_the_mixer_block_of_the_paper():
    block = Block(D, TokenMixer(L, W), FeedForward(D, 2 * W, gelu)).double()
    norm1, norm2, mix, channels = block.around_mixer.before, block.around_feedforward.before, block.mixer.mix, block.feedforward
    x = randn(B, L, D)
    u = x + mix.down(F.gelu(mix.up(norm1(x).mT))).mT
    close(block(x), u + channels.down(F.gelu(channels.up(norm2(u)))))


class TestGated:
    def build(self, **options) -> GatedMixer:
        mixer = GatedMixer(D, W, L + 2, **options).double()
        with torch.no_grad():
            mixer.weight_LM.copy_(randn(L + 2, L + 2, seed=4))
            mixer.bias_L.copy_(randn(L + 2, seed=5))
        return mixer

    def by_hand(self, mixer: GatedMixer, x, allowed):
        z = F.gelu(x @ mixer.up.weight.T + mixer.up.bias)
        z1, z2 = z[..., : W // 2], F.layer_norm(z[..., W // 2 :], (W // 2,), mixer.norm.weight, mixer.norm.bias)
        gate = torch.zeros_like(z2)
        for b in range(B):
            for i in range(L):
                gate[b, i] = mixer.bias_L[i] + sum(mixer.weight_LM[i, j] * z2[b, j] for j in range(L) if allowed(b, i, j))
        return z1, gate

    @pytest.mark.parametrize(
        ("pattern", "allowed"),
        [
            (full, lambda b, i, j: True),
            (causal, lambda b, i, j: j <= i),
            (window(2), lambda b, i, j: abs(i - j) <= 2),
            (lengths([L, 4, 1]), lambda b, i, j: j < (L, 4, 1)[b]),
        ],
        ids=["full", "causal", "window", "lengths"],
    )
    def test_the_formula_in_loops(self, pattern, allowed):
        mixer, x = self.build(), randn(B, L, D)
        z1, gate = self.by_hand(mixer, x, allowed)
        close(mixer(x, pattern), mixer.down(z1 * gate))

    def test_a_small_attention_joins_the_gate(self):
        tiny = MultiHead(D, 1, head_dim=4, out_width=W // 2)
        mixer, x = self.build(attention=tiny), randn(B, L, D)
        q, k, v = (x @ tiny.qkv.weight.T + tiny.qkv.bias).split(4, -1)
        scores = (q @ k.mT / 2).masked_fill(~torch.ones(L, L, dtype=torch.bool).tril(), -torch.inf)
        z1, gate = self.by_hand(mixer, x, lambda b, i, j: j <= i)
        close(mixer(x, causal), mixer.down(z1 * (gate + tiny.out(scores.softmax(-1) @ v))))

    def test_it_begins_as_a_feedforward_part(self):
        mixer, x = GatedMixer(D, W, L), torch.randn(B, L, D)
        torch.testing.assert_close(mixer(x), mixer.down(F.gelu(mixer.up(x)).chunk(2, -1)[0]), atol=1e-3, rtol=0)
        with torch.no_grad():
            mixer.weight_LM.zero_()
        torch.testing.assert_close(mixer(x), mixer.down(F.gelu(mixer.up(x)).chunk(2, -1)[0]))
        init_truncated(mixer)  # an initialisation leaves the gate as it is
        assert (mixer.weight_LM == 0).all() and (mixer.bias_L == 1).all()

    @pytest.mark.parametrize("attention", [None, MultiHead(D, 1, head_dim=4, out_width=W // 2)])
    def test_the_future_has_no_influence(self, attention):
        mixer, x = self.build(attention=attention), randn(B, L, D).detach()
        changed = x.clone()
        changed[:, 5:] = 100.0
        close(mixer(x, causal)[:, :5], mixer(changed, causal)[:, :5])

    def test_what_does_not_fit_is_named(self):
        with pytest.raises(ShapeError, match="was given 12 tokens; expected at most 11"):
            self.build()(randn(1, 12, D))
        with pytest.raises(PatternNotSupported, match="2 heads"):
            self.build()(randn(1, L, D), per_head(causal, full))
        with pytest.raises(ShapeError, match="even number"):
            GatedMixer(D, 7, L)


@pytest.mark.parametrize("mixer", [FourierMixer(), TokenMixer(L, W), GatedMixer(D, W, L)], ids=lambda m: m.name)
class TestAll:
    def test_trains_inside_a_block(self, mixer):
        block, x = Block(D, mixer, FeedForward(D, W)), torch.randn(B, L, D)
        block(x, full).square().sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in block.parameters())

    def test_cannot_go_step_by_step(self, mixer):
        with pytest.raises(StateNotSupported, match=type(mixer).__name__):
            Block(D, mixer, None).start(B)

    def test_wrong_calls_are_named(self, mixer):
        with pytest.raises(ShapeError, match=type(mixer).__name__):
            mixer(torch.zeros(L, D))
        if not isinstance(mixer, GatedMixer):
            with pytest.raises(PatternNotSupported, match=f"{type(mixer).__name__} .*causal"):
                mixer(torch.zeros(B, L, D), causal)


class TestCapture:
    def test_matrices_are_marked_input_independent(self, tmp_path):
        gated = Block(D, GatedMixer(D, W, L, attention=MultiHead(D, 1, head_dim=4, out_width=W // 2)), None)
        model = nn.Sequential(Block(D, FourierMixer(), None), gated)
        with capture(model) as maps:
            model(torch.randn(B, L, D))
        fourier, tiny, gate = (maps[name][0] for name in ("0.mixer", "1.mixer.attention.attention", "1.mixer"))
        assert fourier.mechanism == "fourier (input-independent)" and gate.mechanism == "spatial_gate (input-independent)"
        assert tiny.mechanism == "softmax" and tiny.normalised and not fourier.normalised and fourier.signed
        assert fourier.weights_BHLM.shape == (B, 2, L, L)
        torch.testing.assert_close(gate.weights_BHLM[1, 0], gated.mixer.weight_LM.detach())
        assert "input-independent" in maps._repr_html_()

    def test_heads_and_rows_are_chosen(self):
        mixer = FourierMixer()
        with capture(mixer, heads=1, rows=[-1, 0], tokens=list("abcdefghi")) as maps:
            mixer(torch.randn(B, L, D))
        found = maps.all[0]
        assert found.heads == (1,) and found.rows == (0, L - 1) and found.labels()[0] == ["a", "i"]
        torch.testing.assert_close(found.weights_BHLM[2, 0], FourierMixer().weights(L)[0, 1, [0, L - 1]].float())

    def test_one_without_a_matrix_says_why(self):
        mixer = TokenMixer(L, W)
        with pytest.raises(CaptureNotSupported, match=r"TokenMixer has no weights.*not by one matrix"), capture(mixer):
            mixer(torch.randn(B, L, D))
        with pytest.raises(CaptureNotSupported, match="TokenMixer"):
            mixer.weights(L)
