"""The switch between a whole mask, tiles, and tiles in ordinary PyTorch; and the fall-back where the fused kernel is missing."""

import threading

import pytest
import torch

from regard.errors import UnknownName
from regard.kernels import attend, attend_tile, attend_tile_backward, force, forms
from regard.kernels.exact import paths, tiled_softmax
from regard.patterns import causal, window

PATTERN = causal & window(20)


def inputs():
    return [torch.randn(1, 300, 2, 8, dtype=torch.float64, requires_grad=True) for _ in "qkv"]


def kind(out):
    """Which way a result came."""
    node = out.grad_fn
    return node.name() if node.name().startswith("Tiled") else node.next_functions[0][0].name()


def test_every_path_gives_the_same_by_other_means():
    q, k, v = inputs()
    found = {}
    for path in ("dense", "tiles", "plain"):
        with force(path):
            out = attend(q, k, v, PATTERN)
        found[path] = out, torch.autograd.grad(out.square().sum(), (q, k, v), retain_graph=True)
        assert ("Tiled" in kind(out)) == (path != "dense")
    torch.testing.assert_close(found["dense"], found["tiles"], atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(found["plain"], found["tiles"], atol=1e-10, rtol=1e-10)


def test_small_inputs_are_dense_and_large_ones_are_not_unless_forced():
    q, k, v = (x[:, :30] for x in inputs())
    assert "Tiled" not in kind(attend(q, k, v, PATTERN))
    with force("tiles"):
        assert "Tiled" in kind(attend(q, k, v, PATTERN)) and "Tiled" in kind(attend(q, k, v))
    assert "Tiled" in kind(attend(*inputs(), PATTERN))


def test_it_nests_ends_and_stays_in_its_thread():
    seen = []
    with force("tiles"):
        with pytest.raises(RuntimeError, match="on purpose"), force("plain"):
            thread = threading.Thread(target=lambda: seen.append(paths.forced()))
            thread.start()
            thread.join()
            seen.append(paths.forced())
            raise RuntimeError("on purpose")
        seen.append(paths.forced())
    assert [*seen, paths.forced()] == [None, "plain", "tiles", None]


def test_unknown_paths_are_named():
    with pytest.raises(UnknownName, match="did you mean 'plain'"), force("plane"):
        pass


def gone(*args, **kwargs):
    raise AttributeError("'_OpNamespace' 'aten' object has no attribute '_scaled_dot_product_flash_attention_for_cpu'")


def changed(*args, **kwargs):
    raise RuntimeError("expected at most 5 argument(s) but received 6")


def wrong(q, k, v, *rest):
    return (q, *q.new_zeros(1, *q.shape[:-1])) if len(rest) == 2 else (q, k, v)


@pytest.mark.parametrize("failure", [gone, changed, wrong])
def test_without_the_fused_kernel_tiles_are_plain(failure, monkeypatch):
    """The operator is private to PyTorch: another release may drop or change it."""
    q, k, v = inputs()
    out = attend(q, k, v, PATTERN)
    expected = torch.autograd.grad(out.square().sum(), (q, k, v))
    monkeypatch.setattr(tiled_softmax, "fused_forward", failure)
    monkeypatch.setattr(tiled_softmax, "fused_backward", failure)
    assert not tiled_softmax._fused_works()
    monkeypatch.setattr(tiled_softmax, "HAS_FUSED", tiled_softmax._fused_works())
    assert forms()["tile"] == "plain"
    again = attend(q, k, v, PATTERN)
    torch.testing.assert_close(again, out, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(torch.autograd.grad(again.square().sum(), (q, k, v)), expected, atol=1e-10, rtol=1e-10)


def test_single_tiles_in_both_forms():
    """What mechanisms with an autograd function of their own call."""
    q, k, v, d_out = torch.randn(4, 3, 2, 9, 8, dtype=torch.float64)
    added = torch.zeros(9, 9, dtype=torch.float64).masked_fill(torch.ones(9, 9).triu(1) > 0, -torch.inf)[None, None]
    found = {}
    for path in ("tiles", "plain"):
        with force(path):
            out, lse = attend_tile(q, k, v, 0.3, added)
            found[path] = out, lse, *attend_tile_backward(d_out, q, k, v, out, lse, 0.3, added)
    torch.testing.assert_close(found["tiles"], found["plain"], atol=1e-10, rtol=1e-10)
