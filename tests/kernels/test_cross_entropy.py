"""Fused cross-entropy against PyTorch's, losses and gradients, whatever the size of the chunks."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from regard.errors import BadConfig, DtypeError, ShapeError
from regard.kernels import smoothed_cross_entropy

T, D, N = 71, 5, 13


@pytest.fixture(params=[1, 13 * 32, 10**6], ids=["smallest chunks", "chunks of 32", "one chunk"])
def chunks(request, monkeypatch):
    monkeypatch.setattr("regard.kernels.cross_entropy.ELEMENTS", request.param)
    monkeypatch.setattr("regard.kernels.cross_entropy.FEWEST_ROWS", 8)


def inputs(dtype=torch.float64, bias=True):
    features_TD = torch.randn(T, D, dtype=dtype, requires_grad=True)
    weight_ND = torch.randn(N, D, dtype=dtype, requires_grad=True)
    return features_TD, weight_ND, torch.randn(N, dtype=dtype, requires_grad=True) if bias else None, torch.randint(N, (T,))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
def test_is_what_pytorch_says(chunks, smoothing, bias):
    features_TD, weight_ND, bias_N, target_T = inputs(bias=bias)
    logits_TN = torch.nn.functional.linear(features_TD, weight_ND, bias_N)
    expected = cross_entropy(logits_TN, target_T, label_smoothing=smoothing, reduction="sum")
    total, right = smoothed_cross_entropy(features_TD, weight_ND, bias_N, target_T, smoothing)
    torch.testing.assert_close(total, expected, rtol=1e-10, atol=1e-10)
    assert int(right) == int((logits_TN.argmax(1) == target_T).sum()) and not right.requires_grad
    leaves = [x for x in (features_TD, weight_ND, bias_N) if x is not None]
    for ours, theirs in zip(torch.autograd.grad(0.7 * total, leaves), torch.autograd.grad(0.7 * expected, leaves), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_autocast_rounds_its_inputs():
    features_TD, weight_ND, bias_N, target_T = inputs(torch.float32)
    leaves = [features_TD, weight_ND, bias_N]
    with torch.autocast("cpu", torch.bfloat16):
        ours, _ = smoothed_cross_entropy(features_TD.bfloat16(), weight_ND, bias_N, target_T, 0.1)  # mixed types, as layers give them
    theirs, _ = smoothed_cross_entropy(*(x.bfloat16() for x in leaves), target_T, 0.1)
    assert ours.dtype == torch.float32 and ours.equal(theirs)
    for one, two in zip(torch.autograd.grad(ours, leaves), torch.autograd.grad(theirs, leaves), strict=True):
        assert one.dtype == torch.float32 and one.equal(two)
    with torch.autocast("cpu", torch.bfloat16):
        assert smoothed_cross_entropy(*(x.double() for x in leaves), target_T)[0].dtype == torch.float64


def test_by_hand():  # logits 0 and ln 3: probabilities 1/4 and 3/4
    features_TD, weight_ND = torch.tensor([[1.0]]), torch.tensor([[0.0], [1.0986123]])
    total, right = smoothed_cross_entropy(features_TD, weight_ND, None, torch.tensor([0]), 0.0)
    assert float(total) == pytest.approx(1.3862944) and int(right) == 0
    total, right = smoothed_cross_entropy(features_TD, weight_ND, None, torch.tensor([1]), 0.2)
    assert float(total) == pytest.approx(0.2876821 * 0.9 + 1.3862944 * 0.1) and int(right) == 1


def test_tied_weights_get_both_gradients(chunks):
    _, weight_ND, bias_N, target_T = inputs()
    words = torch.randint(N, (T,))

    def fused():
        return smoothed_cross_entropy(weight_ND[words].tanh(), weight_ND, bias_N, target_T, 0.1)[0]

    def plain():
        return cross_entropy(weight_ND[words].tanh() @ weight_ND.T + bias_N, target_T, label_smoothing=0.1, reduction="sum")

    torch.testing.assert_close(torch.autograd.grad(fused(), weight_ND), torch.autograd.grad(plain(), weight_ND), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_only_what_learns_gets_a_gradient(frozen):
    leaves = inputs()
    leaves[frozen].requires_grad_(False)
    smoothed_cross_entropy(*leaves, 0.1)[0].backward()
    assert [x.grad is None for x in leaves[:3]] == [n == frozen for n in range(3)]


def test_without_gradients_nothing_is_kept():
    features_TD, weight_ND, bias_N, target_T = inputs()
    with torch.no_grad():
        total, _ = smoothed_cross_entropy(features_TD, weight_ND, bias_N, target_T, 0.1)
    assert not total.requires_grad
    assert total == smoothed_cross_entropy(features_TD, weight_ND, bias_N, target_T, 0.1)[0]


def test_no_row_is_no_loss():
    features_TD, weight_ND, bias_N, target_T = inputs()
    total, right = smoothed_cross_entropy(features_TD[:0], weight_ND, bias_N, target_T[:0], 0.1)
    total.backward()
    assert total.item() == 0 and int(right) == 0 and float(weight_ND.grad.abs().sum()) == 0


def test_large_logits_stay_finite():
    features_TD, weight_ND, bias_N, target_T = inputs(torch.float32)
    total, _ = smoothed_cross_entropy(1e4 * features_TD, weight_ND, bias_N, target_T, 0.1)
    total.backward()
    assert total.isfinite() and weight_ND.grad.isfinite().all()


def test_short_floats_are_summed_in_long_ones(chunks):
    features_TD, weight_ND, _, target_T = inputs(torch.bfloat16, bias=False)
    total, _ = smoothed_cross_entropy(features_TD, weight_ND, None, target_T, 0.1)
    assert total.dtype == torch.float32
    grads = torch.autograd.grad(total, (features_TD, weight_ND))
    assert [g.dtype for g in grads] == [torch.bfloat16] * 2
    logits_TN = features_TD.double() @ weight_ND.double().T
    expected = cross_entropy(logits_TN, target_T, label_smoothing=0.1, reduction="sum")
    assert total.item() == pytest.approx(expected.item(), rel=1e-2)
    for ours, theirs in zip(grads, torch.autograd.grad(expected, (features_TD, weight_ND)), strict=True):
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=0.05, atol=0.1)


def test_never_all_logits_at_once(monkeypatch):
    """The largest tensor made on the way is a chunk's, not T × N."""
    from torch.utils._python_dispatch import TorchDispatchMode

    sizes = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            sizes.extend(x.numel() for x in (out if isinstance(out, tuple) else (out,)) if isinstance(x, torch.Tensor))
            return out

    monkeypatch.setattr("regard.kernels.cross_entropy.ELEMENTS", 1)
    monkeypatch.setattr("regard.kernels.cross_entropy.FEWEST_ROWS", 32)
    features_TD, weight_ND, bias_N, target_T = inputs()
    with Watch():
        smoothed_cross_entropy(features_TD, weight_ND, bias_N, target_T, 0.1)[0].backward()
    assert max(sizes) < T * N and 32 * N in sizes


def test_mistakes_are_named():
    features_TD, weight_ND, bias_N, target_T = inputs()
    with pytest.raises(ShapeError, match="flatten batch and length"):
        smoothed_cross_entropy(features_TD[None], weight_ND, bias_N, target_T)
    with pytest.raises(ShapeError):
        smoothed_cross_entropy(features_TD, weight_ND, bias_N[1:], target_T)
    with pytest.raises(DtypeError, match=r"torch\.long"):
        smoothed_cross_entropy(features_TD, weight_ND, bias_N, target_T.int())
    with pytest.raises(BadConfig, match="smoothing"):
        smoothed_cross_entropy(features_TD, weight_ND, bias_N, target_T, 1.0)
