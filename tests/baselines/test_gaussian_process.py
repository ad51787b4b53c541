"""Gaussian processes: the posterior by Cholesky against a direct solve and scikit-learn's, kernels against scikit-learn's, draws against them."""

import numpy as np
import pytest
import torch

from regard.baselines import Kernel
from regard.baselines.gaussian_process import KERNELS
from regard.errors import NotSupported, UnknownName

C, T, X = 7, 5, 2


def places(count, seed=0, width=X):
    return torch.rand(count, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", KERNELS)
def test_the_posterior_is_a_direct_solve(kind):
    kernel, x, at, y = Kernel(kind=kind, length=0.7, noise=0.2), places(C), places(T, 1), torch.randn(C, dtype=torch.float64)
    inverse = torch.linalg.inv(kernel(x, x) + (0.2**2 + 1e-8) * torch.eye(C, dtype=torch.float64))
    across = kernel(at, x)
    found = kernel.posterior(x, y, at)
    torch.testing.assert_close(found.mean_T, across @ inverse @ y, rtol=1e-8, atol=1e-8)
    variance = kernel(at, at).diag() - (across @ inverse @ across.T).diag() + 0.2**2
    torch.testing.assert_close(found.std_T.square(), variance, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", ["rbf", "matern"])
def test_it_is_scikit_learns(kind):
    gp = pytest.importorskip("sklearn.gaussian_process", reason="the oracle")
    theirs = gp.kernels.RBF(0.5) if kind == "rbf" else gp.kernels.Matern(0.5, nu=2.5)
    x, at, y = places(C), places(T, 1), torch.randn(C, dtype=torch.float64)
    fitted = gp.GaussianProcessRegressor(theirs, alpha=0.1**2, optimizer=None).fit(x.numpy(), y.numpy())
    mean, std = fitted.predict(at.numpy(), return_std=True)
    found = Kernel(kind=kind, length=0.5, noise=0.1).posterior(x, y, at)
    np.testing.assert_allclose(found.mean_T, mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.std_T.square(), std**2 + 0.1**2, rtol=1e-5, atol=1e-6)


def test_the_periodic_kernel_is_scikit_learns_and_repeats():
    gp = pytest.importorskip("sklearn.gaussian_process", reason="the oracle")
    x = places(C, width=1)
    kernel = Kernel(kind="periodic", length=0.6)
    np.testing.assert_allclose(kernel(x, x), gp.kernels.ExpSineSquared(0.6, 1.0)(x.numpy()), rtol=1e-10)
    torch.testing.assert_close(kernel(x, x + 1), kernel(x, x))


@pytest.mark.parametrize("kind", KERNELS)
def test_draws_have_the_covariance_of_the_kernel(kind):
    kernel, x = Kernel(kind=kind, length=0.4, noise=0.3), places(4, width=1)
    y = kernel.draw(x.expand(40_000, -1, -1), torch.Generator().manual_seed(0))
    expected = kernel(x, x) + 0.3**2 * torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(y.T @ y / len(y), expected, rtol=0, atol=0.03)


def test_without_points_it_is_the_prior_and_at_a_point_it_is_known():
    kernel, x = Kernel(length=0.3, noise=0.0), places(3)
    prior = kernel.posterior(x[:0], torch.zeros(0), x)
    assert not prior.mean_T.any() and torch.allclose(prior.std_T, torch.ones(3, dtype=torch.float64))
    y = torch.tensor([1.0, -2.0, 0.5])
    known = kernel.posterior(x, y, x)
    torch.testing.assert_close(known.mean_T, y.double(), rtol=1e-5, atol=1e-5)
    assert known.std_T.max() < 1e-3
    twice = kernel.posterior(torch.cat([x, x]), torch.cat([y, y]), x)  # the same place twice, without noise
    assert twice.mean_T.isfinite().all() and twice.std_T.isfinite().all()


def test_kernels_are_read_as_they_are_typed():
    assert Kernel.read("matern,length=0.3,noise=0.05") == Kernel(kind="matern", length=0.3, noise=0.05)
    for text, error, says in (
        ("linear", UnknownName, "'linear'"),
        ("rbf,size=1", UnknownName, "'size'"),
        ("rbf,length=x", NotSupported, "expected a number"),
        ("rbf,length=0", NotSupported, "positive length"),
        ("rbf,noise=nan", NotSupported, "noise from 0"),
    ):
        with pytest.raises(error, match=says):
            Kernel.read(text)
