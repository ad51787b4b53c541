"""A tiny model served from a thread, at a free port."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest.importorskip("uvicorn", reason="the server is an extra: pip install 'regard[serve]'")
pytest.importorskip("prometheus_client", reason="the server is an extra: pip install 'regard[serve]'")

from small_server import KEY, Served


@pytest.fixture(scope="module")
def served():
    """With a key."""
    with Served(KEY) as server:
        yield server


@pytest.fixture(scope="module")
def open_served():
    """Without one."""
    with Served(None) as server:
        yield server


@pytest.fixture
def client(served):
    openai = pytest.importorskip("openai", reason="OpenAI's Python client is not installed")
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client
