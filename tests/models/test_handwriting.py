"""Handwriting: the mixture is a density, the window is Graves' window, nothing leaks from later points, and steps equal one pass."""

import pytest
import torch
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

from regard.attention import GaussianWindow
from regard.errors import ShapeError
from regard.look import capture
from regard.models import Handwriting, HandwritingConfig
from regard.models.pen_mixture import LOG_STD, MAX_RHO, PenMixture


def mixture(*shape, components=3, seed=0, spread=0.5):
    generator = torch.Generator().manual_seed(seed)
    return PenMixture.of(spread * torch.randn(*shape, 6 * components + 1, generator=generator, dtype=torch.float64))


def model(**settings):
    torch.manual_seed(0)
    return Handwriting(
        HandwritingConfig(**{"vocab_size": 7, "width": 11, "window_components": 3, "components": 2, "max_length": 40, **settings})
    ).double()


def lines(batch=2, points=9, characters=5):
    torch.manual_seed(1)
    points_BL3 = torch.randn(batch, points, 3, dtype=torch.float64)
    points_BL3[..., 2] = (points_BL3[..., 2] > 0.5).double()
    return points_BL3, torch.randint(1, 8, (batch, characters))


# -- the density -------------------------------------------------------------------------------------------------------


def test_the_density_integrates_to_one():
    found = mixture(3)
    step = 0.1
    axis = torch.arange(-40, 40, step, dtype=torch.float64)
    grid_XY2 = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1)
    for n in range(3):
        one = PenMixture(*(part[n] for part in found))
        mass = one.log_density(grid_XY2).exp().sum() * step**2
        assert float(mass) == pytest.approx(1, abs=1e-6)
        both = sum(one.log_prob(torch.tensor([0.3, -0.2, lifted], dtype=torch.float64)).exp() for lifted in (0, 1))
        torch.testing.assert_close(both, one.log_density(torch.tensor([0.3, -0.2], dtype=torch.float64)).exp())


def test_the_density_is_that_of_torch_distributions():
    found, xy_B2 = mixture(5, components=4), torch.randn(5, 2, dtype=torch.float64)
    std_BM2, rho_BM = found.log_std_M2.exp(), found.rho_M
    covariance = torch.diag_embed(std_BM2**2)
    covariance[..., 0, 1] = covariance[..., 1, 0] = rho_BM * std_BM2.prod(-1)
    wanted = MixtureSameFamily(Categorical(logits=found.log_pi_M), MultivariateNormal(found.mean_M2, covariance)).log_prob(xy_B2)
    torch.testing.assert_close(found.log_density(xy_B2), wanted, atol=1e-10, rtol=1e-10)


def test_gradients_of_the_loss():
    torch.manual_seed(0)
    y_BN = torch.randn(3, 6 * 2 + 1, dtype=torch.float64, requires_grad=True)
    points_B3 = torch.tensor([[0.1, 0.5, 1], [-1.0, 2.0, 0], [0.0, 0.0, 0]], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda y: PenMixture.of(y).log_prob(points_B3), y_BN)


def test_extreme_outputs_stay_finite():
    y_BN = torch.tensor([[1e4, -1e4, 3, 3, -3, -3, 1e4, -1e4, 1e4, -1e4, 1e4, -1e4, 1e4]], requires_grad=True)
    loss = -PenMixture.of(y_BN).log_prob(torch.tensor([[2.0, -3.0, 0.0]])).sum()
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(y_BN.grad).all()
    found = PenMixture.of(y_BN)
    assert float(found.log_std_M2.detach().abs().max()) <= LOG_STD[1] and float(found.rho_M.detach().abs().max()) < (1 + MAX_RHO) / 2


def test_samples_follow_the_density():
    one = mixture(1, components=2, seed=3)
    many = PenMixture(*(part.expand(40_000, *part.shape[1:]) for part in one))
    drawn_E3 = many.sample(torch.Generator().manual_seed(0))
    weight_M1 = one.log_pi_M[0].exp()[:, None]
    mean_2 = (weight_M1 * one.mean_M2[0]).sum(0)
    std_M2, rho_M = one.log_std_M2[0].exp(), one.rho_M[0]
    variance_2 = (weight_M1 * (std_M2**2 + one.mean_M2[0] ** 2)).sum(0) - mean_2**2
    covariance = (weight_M1[:, 0] * (rho_M * std_M2.prod(-1) + one.mean_M2[0].prod(-1))).sum() - mean_2.prod()
    error = float(variance_2.max() / len(drawn_E3)) ** 0.5
    torch.testing.assert_close(drawn_E3[:, :2].mean(0), mean_2, atol=4 * error, rtol=0)
    torch.testing.assert_close(drawn_E3[:, :2].var(0), variance_2, atol=0, rtol=0.05)
    torch.testing.assert_close(drawn_E3[:, :2].T.cov()[0, 1], covariance, atol=0.05 * float(variance_2.max()), rtol=0)
    assert float(drawn_E3[:, 2].mean()) == pytest.approx(float(one.lift[0].sigmoid()), abs=0.01)
    careful_E3 = many.biased(60.0).sample(torch.Generator().manual_seed(0))
    torch.testing.assert_close(careful_E3[:100, :2], one.mean_M2[:, one.log_pi_M[0].argmax()].expand(100, 2), atol=0.01, rtol=0)


# -- the network -------------------------------------------------------------------------------------------------------


def test_later_points_and_later_texts_of_other_rows_do_not_matter():
    network, (points_BL3, text_BM) = model(), lines()
    before = network.features(points_BL3, text_BM)
    changed_BL3 = points_BL3.clone()
    changed_BL3[:, 6:] += 1
    after = network.features(changed_BL3, text_BM)
    assert torch.equal(before[:, :6], after[:, :6]) and not torch.allclose(before[:, 6:], after[:, 6:])
    torch.testing.assert_close(network.features(points_BL3[1:], text_BM[1:]), before[1:])


def test_padding_changes_nothing():
    network, (points_BL3, text_BM) = model(), lines()
    longer_BM = torch.nn.functional.pad(text_BM, (0, 4))
    torch.testing.assert_close(network.features(points_BL3, longer_BM), network.features(points_BL3, text_BM))


@pytest.mark.parametrize("vocab_size", [0, 7])
def test_steps_equal_one_pass(vocab_size):
    network, (points_BL3, text_BM) = model(vocab_size=vocab_size), lines()
    whole, state = network(points_BL3, text_BM), network.start(2)
    parts = [network(part, text_BM, state) for part in points_BL3.split([1, 1, 4, 3], 1)]
    for n, wanted in enumerate(whole):
        torch.testing.assert_close(torch.cat([part[n] for part in parts], 1), wanted)


def test_the_window_is_the_one_of_the_formula():
    network, (points_BL3, text_BM) = model(), lines()
    assert type(network.window) is GaussianWindow
    with capture(network) as maps:
        h_BLW = network.features(points_BL3, text_BM)[..., :11]
    found_BLM = maps.join_calls("window").weights_BHLM[:, 0].double()
    hats_BLP = h_BLW @ network.window.w_HKP[0] + network.window.c_HP[0]
    alpha, beta, step = hats_BLP.exp().chunk(3, -1)
    kappa = step.cumsum(1)
    u_M = torch.arange(1, 6, dtype=torch.float64)
    phi_BLM = (alpha.unsqueeze(2) * torch.exp(-beta.unsqueeze(2) * (kappa.unsqueeze(2) - u_M[:, None]) ** 2)).sum(-1)
    torch.testing.assert_close(found_BLM, phi_BLM.detach(), atol=1e-6, rtol=1e-6)
    assert (kappa.diff(dim=1) > 0).all()


def test_the_text_steers_and_the_prediction_network_knows_none():
    points_BL3, text_BM = lines()
    network, blind = model(), model(vocab_size=0)
    assert not torch.allclose(network.features(points_BL3, text_BM), network.features(points_BL3, text_BM.flip(1)))
    assert blind.window is None and torch.equal(blind.features(points_BL3, text_BM), blind.features(points_BL3))


@pytest.mark.parametrize(("points", "text"), [((2, 9), (2, 5)), ((2, 9, 2), (2, 5)), ((2, 9, 3), (3, 5)), ((2, 9, 3), None)])
def test_wrong_shapes_are_refused(points, text):
    with pytest.raises(ShapeError, match="Handwriting takes"):
        model()(torch.zeros(points), None if text is None else torch.ones(text, dtype=torch.long))
