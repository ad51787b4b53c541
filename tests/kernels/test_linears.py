"""A linear map of a few rows: the same numbers, and none of the ways around it where it does not belong."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from regard.kernels import apply_linear, fast_linear, linears, split_linear


@pytest.mark.parametrize("shape", [(1, 7), (2, 7), (4, 1, 7), (2, 3, 7), (6, 7), (7, 7), (0, 7), (50, 7)])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("out", [5, 11, 17])
def test_the_same_as_pytorch(shape, biased, out, monkeypatch):
    monkeypatch.setattr(linears, "LARGE", 1)
    x, weight, bias = (torch.randn(size, dtype=torch.float64) for size in (shape, (out, 7), (out,)))
    with torch.no_grad():
        found = fast_linear(x, weight, bias if biased else None)
    torch.testing.assert_close(found, F.linear(x, weight, bias if biased else None), atol=1e-12, rtol=1e-12)
    assert found.is_contiguous()


def test_gradients_flow_where_they_are_wanted():
    layer, x = nn.Linear(7, 5), torch.randn(4, 7, requires_grad=True)
    apply_linear(layer, x).sum().backward()
    assert x.grad is not None and layer.weight.grad is not None


def test_a_layer_that_is_more_than_plain_is_called():
    layer, seen = nn.Linear(7, 5), []
    layer.register_forward_hook(lambda *_: seen.append(True))

    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    other, x = Doubled(7, 5), torch.randn(4, 7)
    with torch.no_grad():
        apply_linear(layer, x)
        torch.testing.assert_close(apply_linear(other, x), 2 * F.linear(x, other.weight, other.bias))
    assert seen


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("learns", ["all", "input", "weight"])
def test_parts_are_those_of_the_whole(bias, learns):
    layer = nn.Linear(5, 9, bias=bias, dtype=torch.float64)
    x = torch.randn(2, 7, 5, dtype=torch.float64, requires_grad=learns != "weight")
    layer.requires_grad_(learns != "input")
    wanted = [t for t in (x, *layer.parameters()) if t.requires_grad]
    some, others = split_linear(layer, x, (4, 2, 3)), layer(x).split((4, 2, 3), -1)
    for a, b in zip(some, others, strict=True):
        assert a.equal(b)
    d = [torch.randn(2, size, 7, dtype=torch.float64).mT for size in (4, 2, 3)]  # not as they lie in the whole
    for one, other in zip(*(torch.autograd.grad(made, wanted, d) for made in (some, others)), strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)


def test_parts_that_nobody_asks_for_have_no_gradient():
    layer, x = nn.Linear(5, 9), torch.randn(3, 5, requires_grad=True)
    first, _, _ = split_linear(layer, x, (4, 2, 3))
    (d,) = torch.autograd.grad(first.sum(), layer.weight)
    assert d[:4].abs().min() > 0 and not d[4:].any()


def test_compiled_with_any_number_of_rows():
    weight = torch.randn(17, 7)
    compiled = torch.compile(fast_linear, backend="eager", dynamic=True)
    with torch.no_grad():
        for rows in (9, 4, 2):
            x = torch.randn(rows, 3, 7)
            torch.testing.assert_close(compiled(x, weight), F.linear(x, weight))
