"""Paths of a call, and a switch to force one: for tests and for debugging."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, get_args

from ...errors import UnknownName

Path = Literal["dense", "tiles", "edges", "plain"]

_forced: ContextVar[Path | None] = ContextVar("forced", default=None)
forced = _forced.get  # the path in force here, or None: called once per attention call, so no function around it


@contextmanager
def force(path: Path) -> Iterator[None]:
    """Force exact attention to take this path inside the `with`, whatever is faster:

    - `"dense"`: one call with the whole mask, where the options allow it (a learned bias, a soft cap or dropout need tiles);
    - `"tiles"`: tile by tile, even for a few tokens;
    - `"plain"`: the same in ordinary PyTorch operators, without the fused CPU kernel;
    - `"edges"`: pair by pair, as along the edges of a graph, under any pattern; by tiles where a bias is known by tiles only.

    It holds for the current thread or asyncio task only. The backward pass of `attend` follows the path of its forward pass.

    Args:
        path: "dense", "tiles", "plain" or "edges".
    """
    if path not in get_args(Path):
        raise UnknownName("kernel path", path, list(get_args(Path)))
    token = _forced.set(path)
    try:
        yield
    finally:
        _forced.reset(token)
