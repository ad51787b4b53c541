"""DRAW: filter banks are normalised and adjoint, an identity where they should be; the terms of the bound are those of torch.distributions."""

import pytest
import torch
from torch.distributions import Bernoulli, Normal, kl_divergence

from regard.errors import ShapeError
from regard.models import Draw, DrawConfig
from regard.models import filter_bank as bank
from regard.models.draw import bernoulli_nll, gaussian_kl
from regard.models.filter_bank import Window

SIZE = (7, 9)


def windows(batch=3, filters=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Window.of(0.5 * torch.randn(batch, 5, generator=generator, dtype=torch.float64), filters, SIZE)


def test_rows_of_filters_sum_to_one_also_outside_the_image():
    for window in (windows(), windows()._replace(centre_x=torch.full((3,), 500.0, dtype=torch.float64), std=torch.full((3,), 0.01))):
        for filters in window.filters(4, SIZE):
            torch.testing.assert_close(filters.sum(-1), torch.ones(3, 4, dtype=torch.float64))
            assert (filters >= 0).all()
        torch.testing.assert_close(window.footprint(4, SIZE).sum((1, 2)), torch.ones(3, dtype=torch.float64))


def test_write_is_the_adjoint_of_read():
    """⟨read(x), w⟩ = γ² ⟨x, write(w)⟩ for one window."""
    window = windows()
    x_BCHW, w_BCNN = torch.randn(3, 2, *SIZE, dtype=torch.float64), torch.randn(3, 2, 4, 4, dtype=torch.float64)
    left = (bank.read(x_BCHW, window, 4) * w_BCNN).sum((1, 2, 3))
    right = window.gain**2 * (x_BCHW * bank.write(w_BCNN, window, SIZE)).sum((1, 2, 3))
    torch.testing.assert_close(left, right, atol=1e-12, rtol=1e-10)


def test_one_filter_per_pixel_reads_the_image():
    size = (5, 5)
    p_B5 = torch.tensor([[0.0, 0.0, -8.0, 0.0, 0.7]], dtype=torch.float64)  # the middle, narrow, stride 1
    x_BCHW = torch.randn(1, 1, *size, dtype=torch.float64)
    window = Window.of(p_B5, 5, size)
    assert float(window.stride) == 1
    torch.testing.assert_close(bank.read(x_BCHW, window, 5), x_BCHW * torch.tensor(0.7, dtype=torch.float64).exp(), atol=1e-6, rtol=1e-6)


def test_a_window_that_moves_with_the_image_sees_the_same():
    x_BCHW = torch.zeros(1, 1, 21, 21, dtype=torch.float64)
    x_BCHW[..., 8:12, 9:13] = torch.randn(4, 4, dtype=torch.float64)
    window = Window(*(torch.tensor([n], dtype=torch.float64) for n in (11.0, 10.0, 1.3, 0.4, 1.0)))
    there = window._replace(centre_x=window.centre_x + 1, centre_y=window.centre_y - 2)
    moved_BCHW = x_BCHW.roll((-2, 1), (2, 3))
    torch.testing.assert_close(bank.read(x_BCHW, window, 3), bank.read(moved_BCHW, there, 3), atol=1e-10, rtol=0)


def test_rows_and_columns_are_not_confused():
    """A filter with its centre in the upper right corner sees the upper right corner."""
    x_BCHW = torch.zeros(1, 1, *SIZE, dtype=torch.float64)
    x_BCHW[..., 0, -1] = 1
    window = Window(*(torch.tensor([n], dtype=torch.float64) for n in (9.0, 1.0, 1.0, 0.1, 1.0)))
    torch.testing.assert_close(bank.read(x_BCHW, window, 1), torch.ones(1, 1, 1, 1, dtype=torch.float64))


def test_gradients_of_windows():
    torch.manual_seed(0)
    p_B5, x_BCHW = torch.randn(2, 5, dtype=torch.float64, requires_grad=True), torch.randn(2, 1, *SIZE, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda p: bank.read(x_BCHW, Window.of(p, 3, SIZE), 3), p_B5)
    assert torch.autograd.gradcheck(lambda p: bank.write(x_BCHW[..., :3, :3], Window.of(p, 3, SIZE), SIZE), p_B5)


def test_terms_of_the_bound():
    torch.manual_seed(0)
    mean_BZ, log_std_BZ = torch.randn(2, 3, 4, dtype=torch.float64)
    wanted = kl_divergence(Normal(mean_BZ, log_std_BZ.exp()), Normal(torch.zeros_like(mean_BZ), torch.ones_like(mean_BZ))).sum(-1)
    torch.testing.assert_close(gaussian_kl(mean_BZ, log_std_BZ), wanted)
    assert float(gaussian_kl(torch.zeros(1, 4), torch.zeros(1, 4))) == 0
    x_BCHW, canvas_BCHW = (torch.rand(3, 1, *SIZE, dtype=torch.float64) > 0.5).double(), torch.randn(3, 1, *SIZE, dtype=torch.float64)
    wanted = -Bernoulli(logits=canvas_BCHW).log_prob(x_BCHW).sum((1, 2, 3))
    torch.testing.assert_close(bernoulli_nll(x_BCHW, canvas_BCHW), wanted)


def small(**settings):
    torch.manual_seed(0)
    return Draw(DrawConfig(**{"image_size": SIZE, "glimpses": 3, "width": 8, "latent": 2, "read_size": 2, "write_size": 3, **settings}))


@pytest.mark.parametrize("attention", ["filter_bank", "none"])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_drawing(attention, channels):
    model, x_BCHW = small(attention=attention, channels=channels), torch.rand(4, channels, *SIZE)
    drawing = model(x_BCHW)
    windows = 5 if attention == "filter_bank" else 0
    assert drawing.canvas_BTCHW.shape == (4, 3, channels, *SIZE) and drawing.kl_BT.shape == (4, 3) and (drawing.kl_BT >= 0).all()
    assert drawing.read_BT5.shape == drawing.write_BT5.shape == (4, 3, windows)
    (bernoulli_nll(x_BCHW, drawing.canvas_BTCHW[:, -1]).sum() + drawing.kl_BT.sum()).backward()
    assert all(parameter.grad is not None and torch.isfinite(parameter.grad).all() for parameter in model.parameters())
    one, two = (model.sample(2, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(one.canvas_BTCHW, two.canvas_BTCHW) and not torch.equal(one.canvas_BTCHW[0], one.canvas_BTCHW[1])


def test_each_step_has_noise_of_its_own():
    """The canvas of step t does not depend on what is drawn later, and z differs from step to step."""
    model = small()
    with torch.no_grad():
        model.posterior.weight.zero_(), model.posterior.bias.zero_()  # z is pure noise
    seen = []
    model.decoder.register_forward_pre_hook(lambda module, args: seen.append(args[0].clone()))
    model(torch.rand(2, 1, *SIZE))
    assert len(seen) == 3 and not torch.equal(seen[0], seen[1]) and not torch.equal(seen[1], seen[2])


def test_a_wrong_size_is_refused():
    with pytest.raises(ShapeError, match=r"Draw takes images \(batch, 1, 7, 9\)"):
        small()(torch.rand(2, 1, 9, 7))
