"""Attention by exponential features equals its definition, in whatever pieces it goes: outputs, sums, every gradient."""

from functools import partial

import pytest
import torch

from regard.attention import Performer
from regard.kernels import causal_favor, favor, random_features
from regard.patterns import causal

B, H, F, K, V = 2, 3, 10, 5, 7
close = partial(torch.testing.assert_close, atol=1e-10, rtol=1e-10)


@pytest.fixture(params=[1, H * 64 * 2, B * H * 64 * 3])
def rows(request, monkeypatch):
    """A batch row and a chunk at a time; two chunks of a row; three of both."""
    monkeypatch.setattr(random_features, "ROWS", request.param)


def given(length, dtype=torch.float64, size=1.0):
    q, k = (torch.randn(B, length, H, K, dtype=dtype) * size for _ in range(2))
    return (
        q.requires_grad_(),
        k.requires_grad_(),
        torch.randn(B, length, H, V, dtype=dtype, requires_grad=True),
        torch.randn(F, K, dtype=dtype),
    )


def nothing(dtype=torch.float64):
    return torch.zeros(B, H, F, V + 1, dtype=dtype), torch.full((B, H, F), -torch.inf, dtype=dtype)


def exponents(x, omega):
    x = x / K**0.25
    return x @ omega.T - x.square().sum(-1, keepdim=True) / 2


def definition(q, k, v, omega, seen, is_causal):
    scores = (exponents(q, omega).transpose(1, 2).unsqueeze(-2) + exponents(k, omega).transpose(1, 2).unsqueeze(-3)).logsumexp(-1)
    mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool)
    mask = (mask.tril() if is_causal else mask) & (torch.ones(1, 1, dtype=torch.bool) if seen is None else seen)[:, None, None]
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num(0)
    return torch.einsum("bhlm,bmhv->blhv", weights, v)


def masks(length):
    late, early = torch.arange(length) >= torch.tensor([[length // 3], [length - 1]]), torch.arange(length) < torch.tensor([[length], [1]])
    return {"all": None, "late": late, "early": early, "one row": torch.arange(length)[None] % 3 > 0}


@pytest.mark.parametrize("seen", masks(1))
@pytest.mark.parametrize("length", [2, 63, 64, 65, 200])
@pytest.mark.parametrize("call", [favor, causal_favor])
def test_the_definition(call, length, seen, rows):
    q, k, v, omega = given(length)
    seen = masks(length)[seen]
    fast = call(q, k, v, omega, seen, *nothing())[0]
    slow = definition(q, k, v, omega, seen, call is causal_favor)
    close(fast, slow)
    d = torch.randn_like(slow)
    hidden = slow.detach().abs().sum((2, 3), keepdim=True) == 0  # rows of the definition that see nothing have no gradient worth the name
    d = d.masked_fill(hidden, 0)
    if not hidden.any():
        close(*(torch.autograd.grad(out, (q, k, v), d) for out in (fast, slow)))
    else:
        assert all(x.isfinite().all() for x in torch.autograd.grad(fast, (q, k, v), torch.randn_like(slow)))


@pytest.mark.parametrize("size", [1.0, 8.0])
@pytest.mark.parametrize("cut", [1, 64, 100])
@pytest.mark.parametrize("call", [favor, causal_favor])
def test_going_on_from_sums(call, cut, size, rows):
    q, k, v, omega = given(150, size=size)
    _, *past = call(q[:, :cut], k[:, :cut], v[:, :cut], omega, None, *nothing())
    later, *sums = call(q[:, cut:], k[:, cut:], v[:, cut:], omega, None, *past)
    whole, *all_sums = call(q, k, v, omega, None, *nothing())
    close(later, whole[:, cut:])
    close(sums, all_sums)
    close(sums[1], exponents(k, omega).amax(1))
    d, d_sums = torch.randn_like(later), torch.randn_like(sums[0])
    grads = [torch.autograd.grad([out, total], (q, k, v), [d, d_sums]) for out, total in ((later, sums[0]), (whole[:, cut:], all_sums[0]))]
    close(*grads)


def test_what_comes_has_no_influence_to_the_bit():
    """Large exponents to come, in the same chunk, in the same piece and after it."""
    q, k, v, omega = (x.detach() for x in given(400, torch.float32))
    before = causal_favor(q, k, v, omega, None, *nothing(torch.float32))[0]
    for t in (3, 100, 390):
        changed = k.clone()
        changed[:, t:] = omega[torch.randint(F, (B, 400 - t, H))] * K**0.25  # where exponents are largest
        out = causal_favor(q, changed, v, omega, None, *nothing(torch.float32))[0]
        assert out[:, :t].equal(before[:, :t]) and not out[:, t:].equal(before[:, t:])


def test_exponents_that_grow_too_much_get_no_answer_here_but_one_from_performer():
    attention = Performer(head_dim=K, num_features=F, seed=0)
    q, k, v, _ = (x.detach() for x in given(100, torch.float32))
    k[:, :50] *= 12
    assert causal_favor(q, k, v, attention.omega_FK, None, *nothing(torch.float32)) is None
    wanted = attention.double()(*(x.double() for x in (q, k, v)), causal)
    torch.testing.assert_close(attention.float()(q, k, v, causal), wanted.float(), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("call", [favor, causal_favor])
def test_bf16_is_near(call):
    q, k, v, omega = (x.detach().bfloat16() for x in given(90))
    out, sums, top = call(q, k, v, omega, None, *nothing(torch.float32))
    assert out.dtype == torch.bfloat16 and sums.dtype == top.dtype == torch.float32
    wanted = call(*(x.float() for x in (q, k, v, omega)), None, *nothing(torch.float32))[0]
    torch.testing.assert_close(out.float(), wanted, atol=2e-2, rtol=2e-2)
