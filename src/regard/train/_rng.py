"""Reproducible randomness: one state per batch, and all states to disk and back as JSON values."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import torch


def seed_all(*key: int | str) -> None:
    """Set PyTorch, NumPy and `random` from a key; similar keys give unrelated states."""
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    np.random.seed(int.from_bytes(digest[8:12], "little"))
    random.seed(int.from_bytes(digest[12:20], "little"))


def rng_state() -> dict[str, Any]:
    """The state of the three generators."""
    version, numbers, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "torch": bytes(torch.get_rng_state().tolist()).hex(),
        "random": [version, list(numbers), gauss],
        "numpy": [name, np.asarray(keys).tolist(), position, has_gauss, cached],
    }
    if torch.cuda.is_available():
        state["cuda"] = [bytes(one.tolist()).hex() for one in torch.cuda.get_rng_state_all()]
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore what `rng_state` returned."""
    torch.set_rng_state(_bytes(state["torch"]))
    version, numbers, gauss = state["random"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    if torch.cuda.is_available() and len(state.get("cuda", ())) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([_bytes(one) for one in state["cuda"]])


def _bytes(text: str) -> torch.Tensor:
    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)
