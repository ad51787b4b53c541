"""A linear map of a few rows: the same numbers, and none of the ways around it where it does not belong."""

import importlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from regard.kernels import applied, linear


@pytest.mark.parametrize("shape", [(1, 7), (2, 7), (4, 1, 7), (2, 3, 7), (6, 7), (7, 7), (0, 7), (50, 7)])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("out", [5, 11, 17])
def test_the_same_as_pytorch(shape, biased, out, monkeypatch):
    monkeypatch.setattr(importlib.import_module("regard.kernels.linear"), "LARGE", 1)  # the function hides the module
    x, weight, bias = (torch.randn(size, dtype=torch.float64) for size in (shape, (out, 7), (out,)))
    with torch.no_grad():
        found = linear(x, weight, bias if biased else None)
    torch.testing.assert_close(found, F.linear(x, weight, bias if biased else None), atol=1e-12, rtol=1e-12)
    assert found.is_contiguous()


def test_gradients_flow_where_they_are_wanted():
    layer, x = nn.Linear(7, 5), torch.randn(4, 7, requires_grad=True)
    applied(layer, x).sum().backward()
    assert x.grad is not None and layer.weight.grad is not None


def test_a_layer_that_is_more_than_plain_is_called():
    layer, seen = nn.Linear(7, 5), []
    layer.register_forward_hook(lambda *_: seen.append(True))

    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    other, x = Doubled(7, 5), torch.randn(4, 7)
    with torch.no_grad():
        applied(layer, x)
        torch.testing.assert_close(applied(other, x), 2 * F.linear(x, other.weight, other.bias))
    assert seen
