"""GELU by the sigmoid is PyTorch's by tanh: values and slopes, in float64 and float32, in slices and whole."""

import pytest
import torch
import torch.nn.functional as F

from regard.kernels import gelu, gelu_tanh


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [64, 64 * 3 + 7])
def test_it_is_pytorchs(monkeypatch, dtype, size):
    monkeypatch.setattr(gelu, "SLICE", 64)
    torch.manual_seed(0)
    x = torch.cat([torch.randn(size - 4) * 3, torch.tensor([0.0, 20.0, -20.0, -1e4])]).to(dtype).requires_grad_()
    cotangent = torch.randn(size, dtype=dtype)
    mine, theirs = gelu_tanh(x), F.gelu(x, approximate="tanh")
    exact = {"atol": 1e-12, "rtol": 1e-12} if dtype == torch.float64 else {"atol": 3e-6, "rtol": 1e-5}
    torch.testing.assert_close(mine, theirs, **exact)
    slopes = [torch.autograd.grad(y, x, cotangent)[0] for y in (mine, theirs)]
    torch.testing.assert_close(*slopes, **exact)


def test_small_and_folded_tensors_go_the_plain_way():
    x = torch.randn(300, 300)
    assert gelu_tanh(x[:3]).equal(F.gelu(x[:3], approximate="tanh"))
    assert gelu_tanh(x.t()).equal(F.gelu(x.t(), approximate="tanh"))
    with torch.no_grad():
        torch.testing.assert_close(gelu_tanh(x), F.gelu(x, approximate="tanh"))
