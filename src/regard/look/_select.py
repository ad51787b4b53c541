"""Selection of the layers, heads and rows that a capture records."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from ..errors import ShapeError, UnknownName

Indices = int | Iterable[int] | slice | None
Layers = str | int | Callable[[str], bool] | Iterable[str | int] | None


def as_tuple(requested: Indices) -> int | slice | tuple[int, ...] | None:
    return requested if requested is None or isinstance(requested, int | slice) else tuple(int(n) for n in requested)


def select(requested: int | slice | tuple[int, ...] | None, size: int, what: str, name: str) -> tuple[int, ...]:
    if requested is None or isinstance(requested, slice):
        chosen = list(range(size)[slice(None) if requested is None else requested])
    else:
        numbers = (requested,) if isinstance(requested, int) else requested
        wrong = [n for n in numbers if not -size <= n < size]
        if wrong:
            raise ShapeError(
                f"{name} has {size} {what}, 0 … {size - 1}; there is no {', '.join(map(str, wrong))}. Narrow layers= if only some layers have it"
            )
        chosen = [n % size for n in numbers]
    if not chosen and requested is not None:
        raise ShapeError(f"{name} has {size} {what}, and {what}={requested} chooses none of them")
    return tuple(sorted(set(chosen)))


def layer_filter(layers: Layers, known: list[str]) -> Callable[[str, int], bool]:
    """A predicate on (path, index in order of first call)."""
    if layers is None:
        return lambda name, number: True
    if callable(layers):
        named = {name for name in known if layers(name)}
        if not named:
            raise UnknownName("layer", getattr(layers, "__name__", "predicate"), known)
        return lambda name, number: name in named
    names: set[str] = set()
    numbers: set[int] = set()
    for requested in [layers] if isinstance(layers, str | int) else layers:
        if isinstance(requested, int):
            if not -len(known) <= requested < len(known):
                raise UnknownName("layer", str(requested), (f"{n}: {name}" for n, name in enumerate(known)))
            numbers.add(requested % len(known))
            continue
        found = {name for name in known if name == requested or name.startswith(requested + ".") or fnmatchcase(name, requested)}
        if not found:
            raise UnknownName("layer", requested, known)
        names |= found
    return lambda name, number: name in names or number in numbers
