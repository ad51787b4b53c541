"""What follows the colon in the name of an embedded source: `en-de,below=1000,list=3`."""

from __future__ import annotations

from ..errors import NotSupported, UnknownName


def options(text: str, known: dict[str, int]) -> tuple[str, dict[str, int]]:
    """The head (`en-de`) and the whole numbers given, with the defaults of those that were not."""
    head, *given = (part.strip() for part in text.split(","))
    chosen = dict(known)
    for part in given:
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in known:
            raise UnknownName("option of this source", name, known)
        try:
            chosen[name] = int(value)
        except ValueError:
            raise NotSupported(f"{part!r}: expected an integer, as in {name}={known[name]}") from None
    return head, chosen


def between(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise NotSupported(f"{name}={value}: expected {low:,} to {high:,}")
    return value


def two(head: str, example: str) -> tuple[str, str]:
    """`en-de` as two names."""
    names = head.split("-")
    if len(names) != 2 or not all(names):
        raise NotSupported(f"{head!r}: give two languages with a hyphen between them, as in {example}")
    return names[0], names[1]
