"""What all tests share: no luck with memory, and one seed."""

import sys
from contextlib import nullcontext

import pytest
import torch

from regard.kernels import force


@pytest.fixture(autouse=True)
def seeded():
    """Every test starts from the same random state, and fresh memory is NaN, so that reading it unwritten shows."""
    torch.manual_seed(0)
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True, warn_only=False)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def nothing_stays_registered():
    """What a test or a snippet of the documents registers is gone after it."""
    yield
    for name in ("attention", "models", "tasks", "recipes", "interop.families"):
        if package := sys.modules.get(f"regard.{name}"):
            package.registered.clear()


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["as it comes", "always in tiles"])
def kernel_path(request):
    """Small inputs go to a dense kernel; both paths must hold."""
    with force("tiles") if request.param == "always in tiles" else nullcontext():
        yield
