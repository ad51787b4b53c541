"""Ablated heads: what they change is what they should, and nothing stays behind."""

import pytest
import torch
from tests.look.conftest import H, Stack

from regard.errors import NotSupported, UnknownName
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
