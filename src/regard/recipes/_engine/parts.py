"""Parts of a run, each a variant with one seed: what is finished is noted in its folder and not done again, and where it comes from is noted with it."""

from __future__ import annotations

import ast
import hashlib
import json
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ... import files
from ...errors import Diverged
from ...machine import cpu_model, instruction_sets
from .claims import Proportion

if TYPE_CHECKING:
    from .base import Variant

PACKAGE = Path(__file__).parents[2]


class Parts:
    """Parts of a run, their CPU time, and the modules of the package whose functions ran in them.

    Args:
        log: function that prints a line.
    """

    def __init__(self, log: Callable[[str], None]):
        self.log = log
        self.seconds = 0.0
        self.modules: set[str] = set()
        self.commits: set[str] = set()

    def do(self, name: str, variant: Variant, seed: int, folder: Path, settings: Mapping[str, str], keep: bool = False) -> dict[str, float]:
        """Metrics of a variant with a seed: noted by an earlier process, if the settings are the same, or evaluated now.

        Args:
            name: name of the variant, for the note and the log.
            variant: the variant.
            seed: random seed.
            folder: folder for its files.
            settings: what must be the same for a note to count.
            keep: the folder holds the files of another variant.
        """
        note, key = folder / f"metrics {digest(name)}.json", digest([settings, seed])
        known = _read_note(note, key)
        if known is None:
            if not keep:
                shutil.rmtree(folder, ignore_errors=True)  # a recipe is a measurement: nothing of an earlier run counts
            began = time.process_time()
            with torch.random.fork_rng(devices=[]), _watched() as modules:
                torch.manual_seed(seed)
                try:
                    metrics = dict(variant(seed, folder))
                except Diverged as failed:
                    self.log(f"{name}, seed {seed}: {failed}")
                    metrics = {"validation_loss": float("inf")}
            known = {
                "key": key,
                "metrics": metrics,
                "items": {one: value.items for one, value in metrics.items() if isinstance(value, Proportion)},
                "seconds": time.process_time() - began,
                "modules": sorted(modules),
                "commit": commit(),
            }
            folder.mkdir(parents=True, exist_ok=True)
            files.write_json(note, known)
            self.log(f"{name}, seed {seed}: {_summary(metrics)} ({known['seconds']:.1f} s)")
        self.seconds += known["seconds"]
        self.modules.update(known["modules"])
        self.commits.add(known["commit"])
        return {one: Proportion(value, known["items"][one]) if one in known["items"] else value for one, value in known["metrics"].items()}


def _read_note(path: Path, key: str) -> dict[str, Any] | None:
    if not path.exists():
        return None
    note = files.read_json(path)
    return note if isinstance(note, dict) and note.get("key") == key else None


def _summary(metrics: Mapping[str, float]) -> str:
    shown = [f"{name} {value:.3g}" for name, value in metrics.items()]
    return ", ".join(shown[:4]) + (", …" if len(shown) > 4 else "")


# -- where figures come from ---------------------------------------------------------------------------------------------


def provenance() -> dict[str, Any]:
    """Facts that a figure depends on besides its settings: commit, date, machine, threads and versions."""
    return {
        "commit": commit(),
        "version": version("regard"),
        "date": date.today().isoformat(),
        "machine": describe_machine(),
        "instruction_sets": instruction_sets(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


def describe_machine() -> str:
    """One line about the machine that a result was measured on."""
    return f"{cpu_model()}, {torch.get_num_threads()} threads, Python {platform.python_version()}, torch {torch.__version__}"


@cache
def commit() -> str:
    """The commit that the package is of, with a + if files differ from it; "" if it is not in a repository."""
    told = [_git("rev-parse", "--short=10", "HEAD"), _git("status", "--porcelain", "--", str(PACKAGE))]
    return "" if told[0] is None else told[0] + ("+" if told[1] else "")


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(PACKAGE), *words], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def digest(value: Any) -> str:
    """Hash of a plain value."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()


@cache
def code_digest(module: str) -> str:
    """Hash of the code of a module of the package, without comments and docstrings; "" if there is no such module.

    Args:
        module: path below the package, such as attention/linear.py.
    """
    path = PACKAGE / module
    if not path.is_file():
        return ""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            node.body = body[1:] or [ast.Pass()]  # type: ignore[attr-defined]
    return digest(ast.dump(tree))


@contextmanager
def _watched() -> Iterator[set[str]]:
    """Paths below the package of the modules whose functions are called inside, on any thread that starts there."""
    root, found = f"{PACKAGE}/", set[str]()
    seen: set[str] = set()

    def note(frame: Any, event: str, argument: Any) -> None:
        seen.add(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    threading.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(before)
        threading.setprofile(before)
        found.update(path.removeprefix(root) for path in seen if path.startswith(root))


@contextmanager
def unwatched() -> Iterator[None]:
    """Stop noting which functions are called, which takes time, while something is timed."""
    before = sys.getprofile()
    sys.setprofile(None)
    try:
        yield
    finally:
        sys.setprofile(before)
