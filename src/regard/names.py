"""Things by name: the entry called so, or an error that names the nearest. Plugins are loaded before a name is called unknown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from . import _bound
from .errors import UnknownName

Entry = TypeVar("Entry")


def find(kind: str, name: str, known: Callable[[], Mapping[str, Entry]]) -> Entry:
    """The entry called `name`.

    Args:
        kind: Kind of thing, for the message.
        name: Name as the user gave it.
        known: Function that gives all entries by name.
    """
    if name not in known():
        _bound.load_plugins()
    found = known()
    if name not in found:
        raise UnknownName(kind, name, found)
    return found[name]
