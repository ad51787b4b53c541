"""Chance that can be repeated: one state for each batch, and all states to disk and back as plain values."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import torch


def seed_all(*key: int | str) -> None:
    """Set PyTorch, NumPy and `random` from a few numbers or words; near keys give unrelated states."""
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    np.random.seed(int.from_bytes(digest[8:12], "little"))
    random.seed(int.from_bytes(digest[12:20], "little"))


def rng_state() -> dict[str, Any]:
    """Where the three generators stand."""
    version, numbers, gauss = random.getstate()
    name, keys, place, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "torch": bytes(torch.get_rng_state().tolist()).hex(),
        "random": [version, list(numbers), gauss],
        "numpy": [name, np.asarray(keys).tolist(), place, has_gauss, cached],
    }
    if torch.cuda.is_available():
        state["cuda"] = [bytes(one.tolist()).hex() for one in torch.cuda.get_rng_state_all()]
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Back to where they stood."""
    torch.set_rng_state(_bytes(state["torch"]))
    version, numbers, gauss = state["random"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, place, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), place, has_gauss, cached))
    if torch.cuda.is_available() and len(state.get("cuda", ())) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([_bytes(one) for one in state["cuda"]])


def _bytes(text: str) -> torch.Tensor:
    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)
