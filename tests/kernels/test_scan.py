"""The chunked scan equals the loop over time: outputs, last state, every gradient."""

import pytest
import torch

from regard.kernels import scan, scan_definition

B, H, F, V = 2, 3, 5, 7


@pytest.mark.parametrize("decay", [False, True], ids=["sum", "decay"])
@pytest.mark.parametrize("start", [False, True], ids=["from nothing", "from a state"])
@pytest.mark.parametrize("length", [1, 5, 63, 64, 65, 150])
def test_chunks_equal_steps(length, start, decay):
    q, k = (torch.randn(B, length, H, F, dtype=torch.float64, requires_grad=True) for _ in range(2))
    v = torch.randn(B, length, H, V, dtype=torch.float64, requires_grad=True)
    g = (-torch.rand(B, length, H, dtype=torch.float64) * 3).requires_grad_() if decay else None
    s = torch.randn(B, H, F, V, dtype=torch.float64, requires_grad=True) if start else None
    wanted = [x for x in (q, k, v, g, s) if x is not None]
    results = [f(q, k, v, g, s) for f in (scan, scan_definition)]
    cotangents = [torch.randn_like(x) for x in results[0]]
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(*(torch.autograd.grad(r, wanted, cotangents) for r in results), atol=1e-10, rtol=1e-10)


def test_chunk_size_does_not_matter():
    q, k, v = (torch.randn(B, 100, H, 4, dtype=torch.float64) for _ in range(3))
    g = -torch.rand(B, 100, H, dtype=torch.float64)
    first, *rest = [scan(q, k, v, g, chunk=c)[0] for c in (7, 16, 100, 1000)]
    for other in rest:
        torch.testing.assert_close(other, first)


def test_strong_decay_does_not_underflow():
    """exp(−500) inside one chunk: ratios of cumulated products would be 0/0."""
    q, k, v = (torch.randn(1, 128, 1, 4, requires_grad=True) for _ in range(3))
    g = torch.full((1, 128, 1), -8.0, requires_grad=True)
    out, _ = scan(q, k, v, g)
    torch.testing.assert_close(out, scan_definition(q, k, v, g)[0])
    assert all(x.isfinite().all() for x in torch.autograd.grad(out.sum(), (q, k, v, g)))


def test_segments_continue():
    q, k, v = (torch.randn(B, 90, H, 4, dtype=torch.float64) for _ in range(3))
    whole, last = scan(q, k, v)
    state, outs = None, []
    for t in range(0, 90, 30):
        out, state = scan(*(x[:, t : t + 30] for x in (q, k, v)), state_BHFV=state)
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, 1), whole)
    torch.testing.assert_close(state, last)


def test_empty():
    q = torch.zeros(B, 0, H, F)
    out, state = scan(q, q, torch.zeros(B, 0, H, V))
    assert out.shape == (B, 0, H, V) and (state == 0).all()
