"""Many small problems of exact attention, some at a time: outputs and every gradient, whatever is hidden."""

import pytest
import torch

from regard.kernels import attend_many_small, small_batches

N, C, S, K, V = 5, 6, 9, 4, 3


def given(dtype=torch.float64):
    shapes = (N, C, K), (N, S, K), (N, S, V)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def definition(q, k, v, seen, scale):
    scores = torch.einsum("nck,nsk->ncs", q, k) * scale
    top = scores.detach().amax(-1, keepdim=True)
    e = (scores - top).exp() * seen
    total = e.sum(-1, keepdim=True)
    return torch.einsum("ncs,nsv->ncv", e / total.masked_fill(total == 0, 1), v)


@pytest.mark.parametrize("budget", [1, C * S * 2, 10**6])
@pytest.mark.parametrize("hidden", ["nothing", "some pairs", "alike in all"])
def test_the_definition(hidden, budget, monkeypatch):
    monkeypatch.setattr(small_batches, "SCORES_AT_ONCE", budget)
    q, k, v = given()
    seen = torch.rand(N, C, S) < 0.3
    seen[1, 2], seen[4] = False, False
    seen = {"nothing": torch.ones(N, C, S, dtype=torch.bool), "some pairs": seen, "alike in all": seen[:1].expand(N, C, S)}[hidden]
    how = None if hidden == "nothing" else (lambda part: (seen[part].double() - 1) * torch.randint(1, 4000, (1, C, S)))
    fast, some = attend_many_small(q, k, v, how, 0.7)
    slow = definition(q, k, v, seen, 0.7)
    assert some.equal(seen.any(-1)) and (fast[~some] == 0).all()
    torch.testing.assert_close(fast, slow, atol=1e-10, rtol=1e-10)
    d = torch.randn_like(slow)
    torch.testing.assert_close(*(torch.autograd.grad(out, (q, k, v), d) for out in (fast, slow)), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("size", [1e2, 1e4])
def test_huge_scores(size):
    q, k, v = given(torch.float32)
    seen = torch.rand(N, C, S) < 0.5
    out, _ = attend_many_small(q * size, k, v, lambda part: seen[part].float() - 1)
    assert out.isfinite().all() and all(x.isfinite().all() for x in torch.autograd.grad(out.sum(), (q, k, v)))


def test_bf16_is_near_and_there_may_be_none():
    q, k, v = (x.detach().bfloat16() for x in given())
    out = attend_many_small(q, k, v)[0]
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), attend_many_small(q.float(), k.float(), v.float())[0], atol=1e-2, rtol=1e-2)
    assert attend_many_small(q[:0], k[:0], v[:0])[0].shape == (0, C, V)
