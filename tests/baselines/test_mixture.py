"""Mixtures by expectation maximization: a step is scikit-learn's, the density PyTorch's, and clusters are found."""

import math

import numpy as np
import pytest
import torch
from torch import distributions

from regard.baselines import Mixture, fit_mixture
from regard.baselines.mixture import maximize

B, L, C, I = 2, 40, 3, 2  # noqa: E741
N = torch.tensor([L, 25])


def data():
    generator = torch.Generator().manual_seed(0)
    mean_BCI = 4 * torch.randn(B, C, I, generator=generator, dtype=torch.float64)
    which = torch.randint(C, (B, L), generator=generator)
    noise = torch.randn(B, L, I, generator=generator, dtype=torch.float64)
    return mean_BCI.gather(1, which.unsqueeze(-1).expand(-1, -1, I)) + 0.3 * noise


def test_the_density_is_that_of_torch():
    mixture = Mixture.of(torch.randn(B, C, 1 + 2 * I, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    components = distributions.Independent(distributions.Normal(mixture.mean_BCI, mixture.std_BCI), 1)
    theirs = distributions.MixtureSameFamily(distributions.Categorical(logits=mixture.log_share_BC), components)
    x_BLI = data()
    expected = theirs.log_prob(x_BLI.transpose(0, 1)).T
    torch.testing.assert_close(mixture.log_density(x_BLI), expected, rtol=1e-12, atol=1e-12)


def test_a_step_is_scikit_learns():
    sklearn = pytest.importorskip("sklearn.mixture", reason="the oracle")
    x_BLI, mixture = data(), fit_mixture(data(), N, C, restarts=1, steps=3)
    for row, n in enumerate(N.tolist()):
        theirs = sklearn.GaussianMixture(C, covariance_type="diag", max_iter=1, tol=0, means_init=mixture.mean_BCI[row].numpy())
        theirs._initialize_parameters(x_BLI[row, :n].numpy(), np.random.RandomState(0))
        resp = mixture.joint(x_BLI[row : row + 1, :n])[0].softmax(-1)
        theirs._m_step(x_BLI[row, :n].numpy(), resp.log().numpy())
        mine = maximize(x_BLI[row : row + 1, :n], resp[None])
        np.testing.assert_allclose(mine.mean_BCI[0], theirs.means_, rtol=1e-8)
        np.testing.assert_allclose(mine.std_BCI[0].square(), theirs.covariances_, rtol=1e-7)
        np.testing.assert_allclose(mine.log_share_BC[0].exp(), theirs.weights_, rtol=1e-8)


def test_the_best_of_several_fits_is_as_good_as_scikit_learns():
    sklearn = pytest.importorskip("sklearn.mixture", reason="the oracle")
    x_BLI = data()
    mixture = fit_mixture(x_BLI, N, C)
    for row, n in enumerate(N.tolist()):
        theirs = sklearn.GaussianMixture(C, covariance_type="diag", n_init=10, max_iter=200, random_state=0).fit(x_BLI[row, :n].numpy())
        assert mixture.log_density(x_BLI)[row, :n].mean() >= theirs.score(x_BLI[row, :n].numpy()) - 1e-3


def test_padding_and_a_single_item():
    x_BLI = data()
    x_BLI[1, 25:] = 1e6
    together, alone = fit_mixture(x_BLI, N, 1), fit_mixture(x_BLI[1:, :25], N[1:], 1)
    torch.testing.assert_close(together.mean_BCI[1:], alone.mean_BCI)
    one = fit_mixture(x_BLI[:1, :1], torch.tensor([1]), 2, restarts=2)
    assert all(x.isfinite().all() for x in one) and math.isfinite(float(one.log_density(x_BLI[:1, :1]).sum()))
