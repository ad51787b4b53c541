"""What all tests share: no luck with memory, and one seed."""

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded():
    """Every test starts from the same random state, and fresh memory is NaN, so that reading it unwritten shows."""
    torch.manual_seed(0)
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True, warn_only=False)
    yield
    torch.use_deterministic_algorithms(False)
