"""Tensors here are tiny."""

import pytest


@pytest.fixture(autouse=True)
def tiny_tensors(one_thread):
    """On a busy machine two threads would mostly wait for each other."""
