"""Optional packages: imported where they are used, and named with the command that installs them where they are missing.

    with extra("look"):
        from matplotlib.figure import Figure

pyproject.toml lists the packages of each extra; `pip install 'regard[all]'` brings all of them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType, TracebackType
from typing import Any

from .errors import MissingPackage


class extra:
    """Turns an ImportError of the block into a MissingPackage that names the extra. `hint` is what else can be done."""

    def __init__(self, name: str, hint: str = ""):
        self.name, self.hint = name, hint

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not isinstance(error, ImportError) or isinstance(error, MissingPackage):
            return
        package = (error.name or "").partition(".")[0]
        if package in ("", "regard"):
            raise error
        fault = "cannot be used (too old or damaged)" if sys.modules.get(package) is not None else "is not installed"
        text = f"{package} {fault}; install it with: pip install 'regard[{self.name}]'"
        raise MissingPackage(f"{text}, {self.hint}" if self.hint else text, package) from error


class _LazyModule(ModuleType):
    """Imports the module when an attribute is first asked for."""

    def __init__(self, name: str, extra: str):
        super().__init__(name)
        self._extra = extra

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        with extra(self._extra):
            module = import_module(self.__name__)
        self.__dict__.update({key: value for key, value in vars(module).items() if not key.startswith("__")})
        return getattr(module, name)


def lazy(extra: str, *names: str) -> Any:
    """Modules of an optional package that are imported at their first use: one, or a tuple of several."""
    modules = tuple(_LazyModule(name, extra) for name in names)
    return modules if len(modules) > 1 else modules[0]
