"""Vectors of texts in responses."""

from __future__ import annotations

import base64

from torch import Tensor


def to_base64(vector_D: Tensor) -> str:
    """As OpenAI's clients ask for: float32, little-endian."""
    return base64.b64encode(vector_D.numpy().astype("<f4").tobytes()).decode()
