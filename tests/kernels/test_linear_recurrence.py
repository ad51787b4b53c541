"""The chunked scan equals the loop over time: outputs, last state, every gradient."""

import pytest
import torch

from regard.kernels import scan, scan_definition

B, H, F, V = 2, 3, 5, 7


def decays(length: int, size: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    shape = (B, length, H) if size == 1 else (B, length, H, size)
    return -torch.rand(shape, dtype=dtype) * 3


@pytest.mark.parametrize("decay", [None, 1, F], ids=["sum", "decay", "decay a feature"])
@pytest.mark.parametrize("start", [False, True], ids=["from nothing", "from a state"])
@pytest.mark.parametrize("length", [1, 5, 63, 64, 65, 150])
def test_chunks_equal_steps(length, start, decay):
    q, k = (torch.randn(B, length, H, F, dtype=torch.float64, requires_grad=True) for _ in range(2))
    v = torch.randn(B, length, H, V, dtype=torch.float64, requires_grad=True)
    g = None if decay is None else decays(length, decay).requires_grad_()
    s = torch.randn(B, H, F, V, dtype=torch.float64, requires_grad=True) if start else None
    wanted = [x for x in (q, k, v, g, s) if x is not None]
    results = [f(q, k, v, g, s) for f in (scan, scan_definition)]
    cotangents = [torch.randn_like(x) for x in results[0]]
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(*(torch.autograd.grad(r, wanted, cotangents) for r in results), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("decay", [None, 1, F], ids=["sum", "decay", "decay a feature"])
@pytest.mark.parametrize("length", [8, 64, 128])
def test_one_sequence_in_strides_of_others(length, decay):
    """Where nothing has to be moved, nothing may be taken to lie side by side."""
    q, k, v, g = torch.randn(4, 1, length, F, H, dtype=torch.float64).mT.requires_grad_().unbind()
    g = None if decay is None else -(g[..., 0] if decay == 1 else g).square()
    results = [f(q, k, v, g) for f in (scan, scan_definition)]
    torch.testing.assert_close(*results, atol=1e-10, rtol=1e-10)
    grads = [torch.autograd.grad(out.square().sum(), (q, k, v), retain_graph=True) for out, _ in results]
    torch.testing.assert_close(*grads, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("decay", [1, 4])
def test_chunk_size_does_not_matter(decay):
    q, k, v = (torch.randn(B, 100, H, 4, dtype=torch.float64) for _ in range(3))
    g = decays(100, decay)
    first, *rest = [scan(q, k, v, g, chunk=c)[0] for c in (7, 16, 100, 1000)]
    for other in rest:
        torch.testing.assert_close(other, first)


@pytest.mark.parametrize("shape", [(1, 128, 1), (1, 128, 1, 4)])
@pytest.mark.parametrize("strength", [-8.0, -1e4])
def test_strong_decay_does_not_underflow(shape, strength):
    """exp(−500) inside one chunk: ratios of cumulated products would be 0/0."""
    q, k, v = (torch.randn(1, 128, 1, 4, requires_grad=True) for _ in range(3))
    g = torch.full(shape, strength, requires_grad=True)
    out, _ = scan(q, k, v, g)
    torch.testing.assert_close(out, scan_definition(q, k, v, g)[0])
    assert all(x.isfinite().all() for x in torch.autograd.grad(out.sum(), (q, k, v, g)))


@pytest.mark.parametrize("decay", [None, 1, F])
def test_gradients_are_those_of_differences(decay):
    q, k, v = (torch.randn(1, 9, 1, F, dtype=torch.float64, requires_grad=True) for _ in range(3))
    g = None if decay is None else decays(9, decay)[:1, :, :1].requires_grad_()
    state = torch.randn(1, 1, F, F, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *x: scan(*x, chunk=4), (q, k, v, g, state))


@pytest.mark.parametrize("decay", [None, 1, F])
def test_low_precision_sums_in_float32(decay):
    q, k, v = (torch.randn(B, 300, H, F).bfloat16().requires_grad_() for _ in range(3))
    g = None if decay is None else (decays(300, decay) / 100).bfloat16()
    out, state = scan(q, k, v, g)
    exact, last = scan(*(x.float() for x in (q, k, v)), None if g is None else g.float())
    assert out.dtype == torch.bfloat16 and state.dtype == torch.float32
    assert out.equal(exact.bfloat16()) and state.equal(last)
    assert all(x.dtype == torch.bfloat16 for x in torch.autograd.grad(out.sum(), (q, k, v)))


@pytest.mark.parametrize("decay", [None, 1, F])
def test_memory_for_the_way_back_is_linear(decay):
    """Inputs, and the states between chunks; nothing a pair, nothing a feature and value for every token."""
    q, k, v = (torch.randn(B, 256, H, F, requires_grad=True) for _ in range(3))
    g = None if decay is None else decays(256, decay, torch.float32)
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.setdefault(x.data_ptr(), x), lambda x: x):
        scan(q, k, v, g)
    own = {x.data_ptr() for x in (q, k, v, g) if x is not None}
    assert sum(x.numel() for at, x in kept.items() if at not in own) == B * H * F * F * (256 // 64 + 1)


@pytest.mark.parametrize("decay", [None, 1, 4])
def test_a_single_sequence(decay):
    """Of one chunk, it is a view of its input as it stands, heads between the tokens."""
    q, k, v = (torch.randn(1, 40, H, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    g = None if decay is None else decays(40, decay)[:1]
    results = [f(q, k, v, g)[0] for f in (scan, scan_definition)]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*(torch.autograd.grad(r.square().sum(), (q, k, v)) for r in results))


def test_segments_continue():
    q, k, v = (torch.randn(B, 90, H, 4, dtype=torch.float64) for _ in range(3))
    whole, last = scan(q, k, v)
    state, outs = None, []
    for t in range(0, 90, 30):
        out, state = scan(*(x[:, t : t + 30] for x in (q, k, v)), state_BHFV=state)
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, 1), whole)
    torch.testing.assert_close(state, last)


def test_no_sequences():
    q, v = torch.zeros(0, 100, H, F), torch.zeros(0, 100, H, V)
    assert scan(q, q, v)[0].shape == v.shape
    assert scan(q, q, v, q)[0].shape == v.shape


def test_empty():
    q = torch.zeros(B, 0, H, F)
    out, state = scan(q, q, torch.zeros(B, 0, H, V))
    assert out.shape == (B, 0, H, V) and (state == 0).all()
