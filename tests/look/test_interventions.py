"""Ablated heads: what they change is what they should, and nothing stays behind."""

from contextlib import nullcontext

import pytest
import torch
from tests.look.conftest import H, Stack

from regard.attention import LinearAttention, LocalAttention, SoftmaxAttention
from regard.errors import NotSupported, UnknownName
from regard.look import capture, keep_inputs
from regard.look.interventions import Ablation, ablate
from regard.patterns import causal


def outputs(layer, x, *ablations):
    with torch.no_grad(), ablate(layer, ablations):
        layer(x)
        module, seen = layer.attention, []
        handle = module.register_forward_hook(lambda *call: seen.append(call[-1]))
        layer(x)
        handle.remove()
    return seen[0]


def test_zero_and_uniform_change_one_head_only(model, x):
    layer = model.blocks[0]
    before = outputs(layer, x)
    zero, uniform = (outputs(layer, x, Ablation("attention", 1, how)) for how in ("zero", "uniform"))
    others = [h for h in range(H) if h != 1]
    assert torch.equal(zero[:, :, others], before[:, :, others]) and torch.equal(uniform[:, :, others], before[:, :, others])
    assert not zero[:, :, 1].any()
    values = layer.seen[2][:, :, 1]
    averages = values.cumsum(1) / torch.arange(1, values.shape[1] + 1)[:, None]  # under `causal`, of all values so far
    torch.testing.assert_close(uniform[:, :, 1], averages)
    assert torch.equal(outputs(layer, x), before)


@pytest.mark.parametrize("make", [SoftmaxAttention, LocalAttention, LinearAttention])
@pytest.mark.parametrize("above", [None, 0], ids=["kept", "deferred"])
def test_a_capture_has_the_weights_that_were_applied(x, make, above):
    """By their definition: weights times values are the output, for ablated heads too."""
    torch.manual_seed(0)
    layer = Stack(depth=1, make=make).blocks[0]
    heads = [Ablation("attention", 0, "uniform"), Ablation("attention", 2, "zero")]
    with torch.no_grad(), ablate(layer, heads), nullcontext() if above is None else keep_inputs(above), capture(layer) as maps:
        layer(x)
    q, k, v, _ = layer.seen
    with torch.no_grad(), ablate(layer, heads):
        out = layer.attention(q, k, v, causal)
    (found,) = maps.all
    weights = torch.stack([found.read(0, x.shape[1], batch=b) for b in range(len(x))])
    torch.testing.assert_close(torch.einsum("bhlm,bmhv->blhv", weights, v), out)
    assert not weights[:, 2].any()
    row = weights[0, 0, -1]
    torch.testing.assert_close(row[row > 0], torch.full_like(row[row > 0], 1 / int((row > 0).sum())))
    with torch.no_grad(), capture(layer) as maps:
        layer(x)
    torch.testing.assert_close(torch.einsum("bhlm,bmhv->blhv", maps.all[0].weights_BHLM, v), layer.attention(q, k, v, causal))


def test_what_is_not_there_is_refused(model, x):
    with pytest.raises(UnknownName, match=r"blocks\.9"), ablate(model, [Ablation("blocks.9.attention", 0)]):
        pass
    with pytest.raises(UnknownName, match="head"), ablate(model, [Ablation("blocks.0.attention", 9)]):
        model(x)


def test_uniform_needs_all_values_and_zero_does_not():
    model = Stack(depth=1)
    x = torch.randn(1, 3, 15)
    states = [block.attention.start(1, causal) for block in model.blocks]
    with torch.no_grad(), ablate(model, [Ablation("blocks.0.attention", 0, "zero")]):
        model(x, states=states)
    with torch.no_grad(), pytest.raises(NotSupported, match="use zero"), ablate(model, [Ablation("blocks.0.attention", 0, "uniform")]):
        model(x, states=states)
