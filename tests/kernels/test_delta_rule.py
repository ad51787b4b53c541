"""The chunked delta rule equals the loop over time: outputs, last state, every gradient."""

import pytest
import torch
from torch.nn.functional import normalize

from regard.kernels import delta_scan, delta_scan_definition, scan
from regard.kernels.delta_rule import _inverse

B, H, F, V = 2, 3, 5, 7


def given(length: int, decay: int, start: bool = False, dtype: torch.dtype = torch.float64) -> list[torch.Tensor | None]:
    """q, k of length one, v, β between 0 and 1, logarithms of decays (none, one per head, F per head), a state to begin with."""
    q, k, v = (torch.randn(B, length, H, size, dtype=dtype) for size in (F, F, V))
    beta, log_decay = torch.rand(B, length, H, dtype=dtype), -torch.rand(B, length, H, max(decay, 1), dtype=dtype) * 3
    state = torch.randn(B, H, F, V, dtype=dtype) if start else None
    made = [q, normalize(k, dim=-1), v, beta, (log_decay.squeeze(-1) if decay == 1 else log_decay) if decay else None, state]
    return [None if x is None else x.requires_grad_() for x in made]


decays = pytest.mark.parametrize("decay", [0, 1, F], ids=["delta", "gated", "gated per feature"])


@decays
@pytest.mark.parametrize("start", [False, True], ids=["from nothing", "from a state"])
@pytest.mark.parametrize("length", [1, 2, 5, 63, 64, 65, 150])
def test_chunks_equal_steps(length, start, decay):
    inputs = given(length, decay, start)
    wanted = [x for x in inputs if x is not None]
    results = [f(*inputs) for f in (delta_scan, delta_scan_definition)]
    cotangents = [torch.randn_like(x) for x in results[0]]
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(*(torch.autograd.grad(r, wanted, cotangents) for r in results), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("decay", [1, F])
@pytest.mark.parametrize("which", [0, 1], ids=["output", "last state"])
def test_gradients_of_one_result_alone(which, decay):
    inputs = given(70, decay, True)
    results = [f(*inputs)[which] for f in (delta_scan, delta_scan_definition)]
    one, two = (torch.autograd.grad(r.square().sum(), inputs, allow_unused=True) for r in results)
    for got, want in zip(one, two, strict=True):
        torch.testing.assert_close(got, torch.zeros_like(got) if want is None else want, atol=1e-10, rtol=1e-10)


@decays
def test_gradients_are_those_of_differences(decay):
    inputs = [None if x is None else x[:1].detach().requires_grad_() for x in given(9, decay, True)]
    assert torch.autograd.gradcheck(lambda *x: delta_scan(*x, chunk=4), inputs)


@decays
def test_chunk_size_does_not_matter(decay):
    inputs = given(100, decay)
    first, *rest = [delta_scan(*inputs, chunk=c)[0] for c in (1, 7, 16, 100, 1000)]
    for other in rest:
        torch.testing.assert_close(other, first)


def test_orthonormal_keys_add_up():
    """Nothing is written twice to the same place, so nothing is ever erased: linear attention."""
    q, _, v, *_ = given(F, False)
    k = torch.eye(F, dtype=torch.float64).view(1, F, 1, F).expand(B, F, H, F)
    ones, log_decay = torch.ones(B, F, H, dtype=torch.float64), -torch.rand(B, F, H, dtype=torch.float64)
    for decay in (None, log_decay):
        torch.testing.assert_close(delta_scan(q, k, v, ones, decay), scan(q, k, v, decay))


def test_the_last_value_wins():
    """A key written again answers with the new value only; another key still with its own."""
    k = torch.eye(2, dtype=torch.float64)[[0, 1, 0, 0]].view(1, 4, 1, 2)
    v = torch.tensor([10.0, 20, 30, 40], dtype=torch.float64).view(1, 4, 1, 1)
    _, state = delta_scan(k, k, v, torch.ones(1, 4, 1, dtype=torch.float64))
    assert state.flatten().tolist() == [40, 20]
    _, state = delta_scan(k, k, v, torch.full((1, 4, 1), 0.5, dtype=torch.float64))
    assert state.flatten().tolist() == [0.125 * 10 + 0.25 * 30 + 0.5 * 40, 10]


def test_nothing_is_written_without_a_step():
    q, k, v, beta, log_decay, state = given(80, True, True)
    _, last = delta_scan(q, k, v, torch.zeros_like(beta), log_decay, state)
    torch.testing.assert_close(last, state * log_decay.sum(1).exp()[..., None, None])
    per_feature = -torch.rand(B, 80, H, F, dtype=torch.float64)
    _, last = delta_scan(q, k, v, torch.zeros_like(beta), per_feature, state)
    torch.testing.assert_close(last, state * per_feature.sum(1).exp().unsqueeze(-1))


@pytest.mark.parametrize("shape", [(B, 128, H), (B, 128, H, F)], ids=["per head", "per feature"])
@pytest.mark.parametrize("strength", [-8.0, -1e4])
def test_strong_decay_does_not_underflow(strength, shape):
    """exp(−500) inside one chunk: ratios of cumulated products would be 0/0."""
    q, k, v, beta, *_ = given(128, False, dtype=torch.float32)
    g = torch.full(shape, strength, requires_grad=True)
    out, _ = delta_scan(q, k, v, beta, g)
    torch.testing.assert_close(out, delta_scan_definition(q, k, v, beta, g)[0])
    assert all(x.isfinite().all() for x in torch.autograd.grad(out.sum(), (q, k, v, beta, g)))


def test_features_that_decay_alike_are_a_head_that_decays():
    q, k, v, beta, log_decay, state = given(150, 1, True)
    alike = delta_scan(q, k, v, beta, log_decay.unsqueeze(-1).expand(B, 150, H, F), state)
    torch.testing.assert_close(alike, delta_scan(q, k, v, beta, log_decay, state))


def test_features_that_decay_at_once_beside_others_that_stay():
    """Within one chunk one feature falls by exp(−10⁴) per step, another not at all: nothing is divided by what vanished."""
    q, k, v, beta, *_ = given(100, 0, dtype=torch.float32)
    g = torch.zeros(B, 100, H, F)
    g[..., 0] = -1e4
    out = delta_scan(q, k, v, beta, g.requires_grad_())[0]
    torch.testing.assert_close(out, delta_scan_definition(q, k, v, beta, g)[0], atol=1e-5, rtol=1e-5)
    assert all(x.isfinite().all() for x in torch.autograd.grad(out.sum(), (q, k, v, beta, g)))


def test_the_same_key_all_along():
    """The worst case of the triangular system: all pairs at one, in float32."""
    q, _, v, *_ = given(300, False, dtype=torch.float32)
    k, beta = torch.full((B, 300, H, F), F**-0.5), torch.full((B, 300, H), 0.99)
    torch.testing.assert_close(delta_scan(q, k, v, beta)[0], delta_scan_definition(q, k, v, beta)[0], atol=1e-5, rtol=1e-5)


@decays
def test_low_precision_sums_in_float32(decay):
    inputs = [None if x is None else x.detach().bfloat16() for x in given(300, decay)]
    out, state = delta_scan(*inputs)
    exact, last = delta_scan(*(None if x is None else x.float() for x in inputs))
    assert out.dtype == torch.bfloat16 and state.dtype == torch.float32
    assert out.equal(exact.bfloat16()) and state.equal(last)
    grads = torch.autograd.grad(delta_scan(*(None if x is None else x.requires_grad_() for x in inputs))[0].sum(), inputs[:4])
    assert all(x.dtype == torch.bfloat16 for x in grads)


@pytest.mark.parametrize("length", [1, 100])
def test_autocast_changes_nothing(length):
    inputs = given(length, True, True, dtype=torch.float32)
    for kernel, arguments in ((delta_scan, inputs), (scan, [*inputs[:3], *inputs[4:]])):
        plain = kernel(*arguments)[0]
        with torch.autocast("cpu", torch.bfloat16):
            cast = kernel(*arguments)[0]
            if length > 1:  # a single step is PyTorch's own, and its way back under autocast too
                gradients = torch.autograd.grad(cast.square().sum(), arguments)
                torch.testing.assert_close(gradients, torch.autograd.grad(plain.square().sum(), arguments))
        assert cast.equal(plain)


@decays
def test_memory_for_the_way_back_is_linear(decay):
    """Inputs, and the states between chunks; nothing a pair, nothing a feature and value for every token."""
    inputs = given(256, decay, dtype=torch.float32)
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.setdefault(x.data_ptr(), x), lambda x: x):
        delta_scan(*inputs)
    own = {x.data_ptr() for x in inputs if x is not None}
    assert sum(x.numel() for at, x in kept.items() if at not in own) == B * H * F * V * (256 // 64 + 1)


@decays
def test_segments_continue(decay):
    *inputs, _ = given(90, decay)
    whole, last = delta_scan(*inputs)
    state, outs = None, []
    for t in range(0, 90, 30):
        out, state = delta_scan(*(None if x is None else x[:, t : t + 30] for x in inputs), state)
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, 1), whole)
    torch.testing.assert_close(state, last)


@pytest.mark.parametrize("size", [1, 2, 32])
def test_inverse(size):
    lower = torch.randn(7, size, size, dtype=torch.float64).tril(-1) / size
    torch.testing.assert_close(_inverse(lower), torch.linalg.inv(torch.eye(size, dtype=torch.float64) + lower))


@pytest.mark.parametrize("shape", [(0, 100), (B, 0)], ids=["no sequences", "no tokens"])
def test_empty(shape):
    q, v, beta = torch.zeros(*shape, H, F), torch.zeros(*shape, H, V), torch.zeros(*shape, H)
    out, state = delta_scan(q, q, v, beta, beta)
    assert out.shape == v.shape and state.shape == (shape[0], H, F, V) and (state == 0).all()
