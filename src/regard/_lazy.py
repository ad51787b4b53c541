"""Packages whose names are imported when they are first used. The imports are written once, for type checkers:

    if TYPE_CHECKING:
        from .loop import fit as fit
    else:
        __getattr__, __dir__ = lazy(__name__)

`regard train --help` needs options and no PyTorch, and `regard complete` needs one model of 37: whoever imports such a package pays for what is used.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Generic, TypeVar

Entry = TypeVar("Entry")


def lazy(package: str, more: Mapping[str, Callable[[], Any]] | None = None) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make `__getattr__` and `__dir__` of a package.

    Args:
        package: name of the package, whose source has its imports under `if TYPE_CHECKING:`.
        more: names whose values are made when they are first asked for, such as the list of all models.
    """
    made = dict(more or {})

    def get(name: str) -> Any:
        if name in made:
            value = made[name]()
        elif name in (where := imported_names(package)):
            module, original = where[name]
            value = getattr(import_module(module, package), original)
        elif not name.startswith("_") and find_spec(f"{package}.{name}"):
            return import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *imported_names(package), *made})

    return get, names


class Entries(MutableMapping[str, Entry], Generic[Entry]):
    """Things by name, imported when they are asked for. What is not of the package is kept beside it (`registered`).

    Args:
        package: package of the modules.
        where: "module:attribute" by name.
    """

    def __init__(self, package: str, where: Mapping[str, str]):
        self.package, self.where = package, dict(where)

    def __getitem__(self, name: str) -> Entry:
        module, _, attribute = self.where[name].partition(":")
        found: Entry = getattr(import_module(f".{module}", self.package), attribute)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.where)

    def __len__(self) -> int:
        return len(self.where)

    def __contains__(self, name: object) -> bool:
        return name in self.where

    def __setitem__(self, name: str, value: Entry) -> None:
        raise TypeError("entries of the package are fixed; add to `registered`")

    def __delitem__(self, name: str) -> None:
        raise TypeError("entries of the package are fixed")


@cache
def imported_names(package: str) -> dict[str, tuple[str, str]]:
    """Read where the names of a package come from: (module, name there), of its imports under `if TYPE_CHECKING:`, in order.

    Args:
        package: name of an imported package.
    """
    loader: Any = sys.modules[package].__loader__
    blocks = [node for node in ast.parse(loader.get_source(package)).body if isinstance(node, ast.If) and _for_types(node.test)]
    return {
        alias.asname or alias.name: ("." * node.level + (node.module or ""), alias.name)
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.level and node.module
        for alias in node.names
    }


def _for_types(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"
