"""`regard check`: the contract of a mechanism, run on any class."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass

from tyro.conf import Positional

from ..attention import Attention
from ..attention import find_mechanism as find_by_name
from ..errors import BadConfig
from ._command import Command


@dataclass(frozen=True, kw_only=True)
class Check(Command):
    """Run every check of the contract on a mechanism. Exit code 1 if one fails.

    As in:  regard check my_module:MyAttention
            regard check linear --only law memory
    """

    mechanism: Positional[str]
    """module:Class, with the module importable from the current directory, or a name from `regard list`."""
    only: tuple[str, ...] = ()
    """Run these checks only; all by default."""

    def run(self) -> None:
        from ..testing import run_checks

        failed = 0
        for result in run_checks(find_mechanism(self.mechanism), self.only or None):
            print(result, flush=True)
            failed += result.outcome == "failed"
        print(f"{failed} failed" if failed else "All checks passed")
        if failed:
            raise SystemExit(1)


def find_mechanism(name: str) -> type[Attention]:
    """The class called `module:Class`, or a mechanism by its name."""
    module, colon, class_name = name.partition(":")
    if not colon:
        return find_by_name(name)
    sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), class_name)
    except (ImportError, AttributeError) as error:
        raise BadConfig(f"{name}: {error}; expected module:Class, importable from the current directory") from error
    finally:
        sys.path.remove("")
