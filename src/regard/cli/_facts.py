"""Facts that `regard list` and `show` print, read without PyTorch, which takes seconds to import.

Tasks are read from their declarations. Facts of mechanisms, models, recipes and patterns are made by importing them, once, and kept as JSON in the
user's cache folder (`$XDG_CACHE_HOME/regard`), under a name with a hash of the sources' names, sizes and times: whoever changes a source, or installs
another version, gets new ones. Where nothing can be written they are made each time.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from .. import __version__, catalogue, files, registry, tasks
from ..run_config import to_plain

PACKAGE = Path(__file__).parent.parent
HOMES = ("attention", "models", "recipes")  # packages with a dictionary `registered`


def entries(kind: str) -> list[dict[str, Any]]:
    """List all that `show` says about each entry of a kind, those from outside the package last.

    Args:
        kind: mechanisms, models, tasks, recipes or patterns.
    """
    registry.load_plugins()
    if kind == "tasks":
        return [_task(name) for name in tasks.declarations()]
    if _has_registered():
        return catalogue.details(kind)  # type: ignore[arg-type]
    found: list[dict[str, Any]] = stored(kind)
    return found


def picture(name: str) -> str:
    """Draw the weights of a mechanism, or say why there is no picture.

    Args:
        name: name of a mechanism.
    """
    from .show import draw_example

    if _has_registered():
        from ..attention import find_mechanism

        return draw_example(find_mechanism(name))
    return str(stored("pictures")[name])


@cache
def stored(kind: str) -> Any:
    """Read facts from the cache, or make and keep them.

    Args:
        kind: mechanisms, models, recipes, patterns or pictures.
    """
    path = cache_folder() / f"{kind}-{fingerprint()}.json"
    with suppress(OSError, ValueError):
        return json.loads(path.read_text(encoding="utf-8"))
    found = _make(kind)
    with suppress(OSError, files.CannotSave):
        path.parent.mkdir(parents=True, exist_ok=True)
        for old in path.parent.glob(f"{kind}-*.json"):  # of other sources
            old.unlink(missing_ok=True)
        files.write(path, json.dumps(found, ensure_ascii=False))
    return json.loads(json.dumps(found))  # tuples become lists, as when read


def cache_folder() -> Path:
    """Name the user's cache folder for regard; it need not exist."""
    home = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("LOCALAPPDATA") if sys.platform == "win32" else None)
    return (Path(home) if home else Path.home() / ".cache") / "regard"


@cache
def fingerprint() -> str:
    """Hash the names, sizes and times of all sources, and the version."""
    found = hashlib.blake2b(f"{__version__} {PACKAGE}".encode(), digest_size=12)
    for folder in sorted({PACKAGE, *(PACKAGE / name for name in ("attention", "cli", "layers", "look", "models", "patterns", "recipes"))}):
        for entry in sorted((one for one in os.scandir(folder) if one.name.endswith(".py")), key=lambda one: one.name):
            about = entry.stat()
            found.update(f"{entry.path} {about.st_size} {about.st_mtime_ns}".encode())
    return found.hexdigest()


def _make(kind: str) -> Any:
    if kind != "pictures":
        return catalogue.details(kind)  # type: ignore[arg-type]
    from ..attention import MECHANISMS
    from .show import draw_example

    return {mechanism.facts.name: draw_example(mechanism) for mechanism in MECHANISMS}


def _has_registered() -> bool:
    """True if something from outside the package is registered; then PyTorch is imported already."""
    return any(getattr(sys.modules.get(f"regard.{home}"), "registered", None) for home in HOMES)


def _task(name: str) -> dict[str, Any]:
    declared = tasks.find_declaration(name)
    doc = inspect.getdoc(declared) or ""
    about = {"name": name, "class": declared.__name__.removesuffix("Declaration"), "summary": doc.partition("\n")[0]}
    options = {"options": to_plain(declared.Options()), "train": to_plain(declared.default_train)}
    return {**about, "model": declared.default_model, "notes": {}, "doc": doc, **options}
