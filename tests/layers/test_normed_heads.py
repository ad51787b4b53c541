"""GatedHeads: the formula, any mechanism inside, step by step, seen by capture."""

import pytest
import torch
from torch import Tensor

from regard.attention import DeltaNet, GatedDeltaNet, GatedLinearAttention, Retention, SoftmaxAttention, StateSpaceDuality
from regard.layers import Block, FeedForward, GatedHeads, LayerNorm, MultiHead, Rotary, init_gpt
from regard.look import capture
from regard.patterns import causal, lengths

B, L, H, K, D = 2, 70, 3, 4, 12
FAMILY = [Retention, GatedLinearAttention, StateSpaceDuality, DeltaNet, GatedDeltaNet, SoftmaxAttention]
family = pytest.mark.parametrize("mechanism", FAMILY, ids=lambda m: m.facts.name)


def made(mechanism, **options) -> tuple[GatedHeads, Tensor]:
    attention = mechanism.sized(heads=H, head_dim=K, length=L)
    return GatedHeads(MultiHead(D, H, attention, **options)).double(), torch.randn(B, L, D, dtype=torch.float64)


def test_the_formula():
    layer, x = made(Retention, value_dim=5)
    layer.norm.weight.data.normal_()
    found = layer.heads.head_outputs(x, pattern=causal)
    normed = found / (found.square().mean(-1, keepdim=True) + 1e-6).sqrt() * layer.norm.weight
    gate = x @ layer.gate.weight.mT
    expected = layer.heads.out((gate * gate.sigmoid()).view(B, L, H, 5).mul(normed).flatten(-2))
    torch.testing.assert_close(layer(x, pattern=causal), expected)


def test_an_open_gate_without_norm_is_multihead():
    heads = MultiHead(D, H, Retention())
    layer = GatedHeads(heads, norm=lambda width: torch.nn.Identity(), activation=torch.ones_like)
    x = torch.randn(B, L, D)
    torch.testing.assert_close(layer(x, pattern=causal), heads(x, pattern=causal))


def test_the_size_of_the_state_does_not_matter():
    """What a norm is for: values ten times as large give the same."""
    layer, x = made(Retention, bias=False)
    layer.norm.eps = 0.0
    before = layer(x, pattern=causal)
    layer.heads.qkv.weight.data[2 * D :] *= 10
    torch.testing.assert_close(layer(x, pattern=causal), before)


@family
def test_steps_equal_one_pass_in_a_block(mechanism):
    layer, x = made(mechanism, position=Rotary())
    block = Block(D, layer, FeedForward(D, 8)).double()
    state = block.start(B)
    steps = [block(x[:, t : t + 10], causal, state=state) for t in range(0, L, 10)]
    torch.testing.assert_close(torch.cat(steps, 1), block(x, causal))


@family
def test_capture_sees_the_mechanism(mechanism):
    layer, x = made(mechanism)
    with capture(layer, dtype=torch.float64) as maps:
        layer(x, pattern=causal & lengths([L, 50]))
    (seen,) = maps.all
    assert seen.layer == "heads.attention" and seen.mechanism == mechanism.facts.name
    torch.testing.assert_close(seen.weights_BHLM, layer.heads.weights(x, pattern=causal & lengths([L, 50])))


@family
def test_every_parameter_learns(mechanism):
    attention = mechanism.sized(heads=H, head_dim=K, length=L)
    layer = GatedHeads(MultiHead(D, H, attention), norm=LayerNorm)
    init_gpt(layer, depth=1)
    layer(torch.randn(B, L, D), pattern=causal).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and (p.grad != 0).any() for p in layer.parameters())


@family
def test_autocast(mechanism):
    layer, x = made(mechanism)
    layer, x = layer.float(), x.float()
    with torch.autocast("cpu", torch.bfloat16):
        low = layer(x, pattern=causal)
    torch.testing.assert_close(low.float(), layer(x, pattern=causal), atol=0.1, rtol=0.1)
    low.float().square().sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())
