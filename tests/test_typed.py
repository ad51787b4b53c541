"""Types as a user sees them: py.typed is shipped, every public name is exported explicitly, and a strict type checker knows what it is."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "regard"
PENDING = {"cli", "recipes/_engine", "kernels/exact"}  # internal, or still to be written in this form
PROGRAM = """
import torch
import regard
from regard import LinearAttention, MultiHead, SoftmaxAttention, causal, window
from regard.layers import RMSNorm
from regard.look import Maps
from regard.models import GPT2, build
from regard.patterns import Pattern

q, k = torch.randn(2, 1, 8, 2, 4)
pattern: Pattern = causal & window(3)
weights: torch.Tensor = SoftmaxAttention(softcap=50.0).weights(q, k, pattern)
LinearAttention(nonsense=1)
MultiHead("8", heads=2)
reveal_type(regard.load("runs/x"))
"""


def test_the_marker_is_there():
    assert (PACKAGE / "py.typed").is_file()


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("__init__.py")), ids=lambda path: path.parent.relative_to(PACKAGE).as_posix())
def test_names_are_exported_explicitly(path):
    """`from .x import A as A`: without the `as`, a strict type checker says that the package does not export A."""
    name = path.parent.relative_to(PACKAGE).as_posix()
    if name in PENDING | {"."}:
        pytest.skip("not in this form")
    implicit = [
        f"from .{node.module} import {each.name}"
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module
        for each in node.names
        if each.asname is None and not each.name.startswith("_")
    ]
    assert implicit == []


@pytest.mark.slow
def test_a_strict_type_checker_knows_the_types(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text(PROGRAM)
    options = ["--strict", "--follow-imports=silent", "--config-file=", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 2, done.stdout + done.stderr
    assert 'Unexpected keyword argument "nonsense"' in errors[0] and 'incompatible type "str"; expected "int"' in errors[1]
    assert 'Revealed type is "regard.models' in done.stdout
