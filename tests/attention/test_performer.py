"""Performer: what its features estimate, and that nothing overflows, vanishes or comes from the future."""

import pytest
import torch

from regard.attention import Performer, SoftmaxAttention
from regard.patterns import causal, full, lengths

K = 32


def inputs(spread, length=256):
    q, k = torch.randn(2, 1, length, 2, K, dtype=torch.float64) * spread
    return q, k, torch.randn(1, length, 2, 8, dtype=torch.float64)


@pytest.mark.parametrize("pattern", [full, causal], ids=str)
def test_error_falls_with_the_root_of_features(pattern):
    q, k, v = inputs(0.25)
    exact, errors = SoftmaxAttention()(q, k, v, pattern), []
    for features in (16, 256, 4096):
        runs = [Performer(head_dim=K, num_features=features, seed=seed).double()(q, k, v, pattern) for seed in range(4)]
        errors.append(sum(((out - exact).norm() / exact.norm()).item() for out in runs) / 4)
    assert 3 < errors[0] / errors[1] < 5.5 and 3 < errors[1] / errors[2] < 5.5, errors


def test_features_estimate_the_exponential_without_bias():
    q, k = torch.randn(2, 1, 1, 1, K, dtype=torch.float64) * 0.5
    wanted = ((q * k).sum() / K**0.5).exp()
    products = []
    for seed in range(300):
        attention = Performer(head_dim=K, num_features=K, seed=seed).double()
        products.append((attention.exponents(q) + attention.exponents(k)).exp().mean())
    products = torch.stack(products)
    assert (products.mean() - wanted).abs() < 4 * products.std() / 300**0.5


def test_directions_are_orthogonal_in_blocks_and_as_long_as_normal_vectors():
    """And lean nowhere: the plain QR decomposition, as others use it, makes the first component of the first row negative each time."""
    omega = Performer(head_dim=8, num_features=8 * 200 + 3, seed=0).omega_FK.double()
    assert omega.shape == (1603, 8)
    unit = omega / omega.norm(dim=-1, keepdim=True)
    for first in (0, 8, 1592):
        torch.testing.assert_close(unit[first : first + 8] @ unit[first : first + 8].T, torch.eye(8).double(), atol=1e-6, rtol=0)
    assert abs(omega.square().sum(-1).mean() - 8) < 0.5
    assert (omega[:1600].view(200, 8, 8).mean(0).abs() < 4.5 * 200**-0.5).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("pattern", [full, causal, causal & lengths([40, 80])], ids=str)
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e2, 1e4])
def test_rows_sum_to_one_however_large(size, pattern, dtype):
    """Values of one come back as one: no denominator vanished, and none was helped by something added."""
    q, k = torch.randn(2, 2, 80, 2, 8, dtype=dtype) * size
    attention = Performer(head_dim=8, seed=0).to(dtype)
    torch.testing.assert_close(attention(q, k, torch.ones(2, 80, 2, 1, dtype=dtype), pattern), torch.ones(2, 80, 2, 1, dtype=dtype))
    state = attention.start(2)
    for t in range(80):
        step = attention(*(x[:, t : t + 1] for x in (q, k, torch.ones(2, 80, 2, 1, dtype=dtype))), pattern, state=state)
        torch.testing.assert_close(step, torch.ones(2, 1, 2, 1, dtype=dtype))


def test_a_large_key_to_come_does_not_drown_the_past():
    """In float32, with the largest exponent of all keys taken from each, keys before a huge one would all be zero."""
    q, k = torch.randn(2, 1, 64, 1, 8)
    v = torch.randn(1, 64, 1, 4)
    attention = Performer(head_dim=8, num_features=64, seed=0)
    before = attention(q, k, v, causal)
    k[:, -1] = attention.omega_FK[0] * 100
    assert attention(q, k, v, causal)[:, :-1].equal(before[:, :-1])


def test_full_steps_see_the_past_and_all_that_is_new():
    q, k, v = inputs(1.0, 30)
    attention = Performer(head_dim=K, seed=0).double()
    state = attention.start(1, full)
    attention(q[:, :20], k[:, :20], v[:, :20], full, state=state)
    out = attention(q[:, 20:], k[:, 20:], v[:, 20:], full, state=state)
    torch.testing.assert_close(out, attention(q[:, 20:], k, v, full))


def test_features_come_from_a_seed():
    before = torch.get_rng_state()
    one, two, other = (Performer(head_dim=K, seed=seed) for seed in (3, 3, 4))
    assert torch.get_rng_state().equal(before) and one.omega_FK.equal(two.omega_FK) and not one.omega_FK.equal(other.omega_FK)
    other.redraw(3)
    assert one.omega_FK.equal(other.omega_FK) and "omega_FK" in one.state_dict() and not list(one.parameters())
    assert one.omega_FK.shape == (110, K)  # ⌊K ln K⌋
