"""The package as a whole: which way imports point, what is public, how long it takes to import, what must not be in the tree."""

import ast
import dataclasses
import doctest
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import regard
import regard.patterns

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "regard"

# From the bottom to the top; a part may import parts of the levels below it, and neighbours of its own level as long as
# they do not import it back.
LEVELS = (
    {"errors", "docstrings", "processes", "_bound", "_extras", "_lazy"},
    {"names"},
    {"files", "machine", "bounds", "metrics", "baselines"},
    {"patterns"},
    {"kernels"},
    {"attention"},
    {"layers"},
    {"models"},
    {"data", "train", "decode", "look"},
    {"run_config", "runs"},
    {"tasks"},
    {"recipes", "compare", "serve", "interop", "testing"},
    {"catalogue", "cli", "registry", "_public", "__main__", "__init__"},
)
LEVEL = {part: level for level, parts in enumerate(LEVELS) for part in parts}


# -- one-way dependencies ----------------------------------------------------------------------------------------------


def imports(path: Path, package: Path) -> set[str]:
    """The parts of the package that a file imports when it runs; `__init__` stands for the package itself."""
    inside = path.relative_to(package).with_suffix("").parts
    here = (package.name, *inside)
    found: set[str] = set()
    for node in _running(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            targets = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            # `from .. import errors` imports a part; `from .. import causal` imports from the package itself
            targets = [(*module, alias.name) if module == (package.name,) else module for alias in node.names]
        else:
            continue
        for target in targets:
            if target[0] == package.name:
                part = target[1] if len(target) > 1 else "__init__"
                is_part = (package / part).is_dir() or (package / f"{part}.py").is_file()
                found.add(part if is_part else "__init__")
    return found - {inside[0]}


def _running(tree: ast.AST):
    """All nodes but those under `if TYPE_CHECKING:`, which never run."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for other in node.orelse:
                yield other
                yield from _running(other)
            continue
        yield node
        yield from _running(node)


def wrong_way(package: Path) -> list[str]:
    """Every import that points up, sideways in a circle, or from or to a part that nobody placed."""
    wrong, sideways = [], set()
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package).with_suffix("").parts
        name = path.relative_to(package).as_posix()
        if inside[0] not in LEVEL:
            wrong.append(f"{name}: no level is given for {inside[0]}")
            continue
        for part in sorted(imports(path, package)):
            if part not in LEVEL:
                wrong.append(f"{name} imports {part}, for which no level is given")
            elif LEVEL[part] > LEVEL[inside[0]]:
                wrong.append(f"{name} imports {part}, which is above it")
            elif LEVEL[part] == LEVEL[inside[0]] and part != "__init__" and inside[0] != "__init__":
                sideways.add((inside[0], part))
    wrong += [f"{a} and {b} import each other" for a, b in sorted(sideways) if (b, a) in sideways and a < b]
    return wrong


def test_imports_point_one_way():
    assert wrong_way(PACKAGE) == []


@pytest.mark.parametrize(
    ("file", "line", "caught"),
    [
        ("kernels/a.py", "from ..attention import Attention", True),
        ("kernels/a.py", "from ..attention._base import Facts", True),
        ("kernels/deep/a.py", "from ...attention import Attention", True),
        ("kernels/a.py", "from .. import attention", True),
        ("kernels/a.py", "from .. import causal", True),
        ("kernels/a.py", "import regard.attention", True),
        ("kernels/a.py", "import regard", True),
        ("kernels/a.py", "from regard.attention import Facts", True),
        ("kernels/a.py", "def f():\n    from ..attention import Attention", True),
        ("kernels/__init__.py", "from ..attention import Attention", True),
        ("errors.py", "from . import patterns", True),
        ("errors.py", "from .patterns import full", True),
        ("elsewhere.py", "", True),
        ("kernels/a.py", "from ..elsewhere import x", True),
        ("kernels/a.py", "from ..patterns import full", False),
        ("kernels/a.py", "from . import b", False),
        ("kernels/a.py", "from .attention import x", False),  # a file of its own folder
        ("kernels/a.py", "import torch.attention", False),
        ("kernels/a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..attention import Attention", False),
        ("kernels/a.py", "if TYPE_CHECKING:\n    pass\nelse:\n    from ..attention import Attention", True),
        ("attention/a.py", "from ..kernels import attend\nfrom ..errors import RegardError", False),
        ("cli.py", "from . import catalogue, __version__", False),
    ],
)
def test_the_checker_itself(tmp_path, file, line, caught):
    package = tmp_path / "regard"
    for folder in ("patterns", "kernels", "attention"):
        (package / folder).mkdir(parents=True)
        (package / folder / "__init__.py").touch()
    for name in ("__init__", "errors", "catalogue", "cli"):
        (package / f"{name}.py").touch()
    if "elsewhere" in line:
        (package / "elsewhere").mkdir()
    path = package / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(line)
    assert bool(wrong_way(package)) == caught


def test_the_checker_sees_circles(tmp_path):
    package = tmp_path / "regard"
    for name, other in (("data", "train"), ("train", "data")):
        (package / name).mkdir(parents=True)
        (package / name / "__init__.py").write_text(f"from .. import {other}")
    assert wrong_way(package) == ["data and train import each other"]


def test_the_architecture_page_draws_the_same_levels():
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    drawn = [set(re.split(" {8,}", line.strip())[0].split()) for line in page.split("```")[1].splitlines()]  # names, then a description
    rows = [next(n for n, words in enumerate(drawn) if part in words) for parts in LEVELS[:-1] for part in sorted(parts)[:1]]
    assert rows == sorted(rows, reverse=True), "ARCHITECTURE.md draws another order than LEVELS"
    assert all(parts <= drawn[row] for parts, row in zip(LEVELS, rows, strict=False)), "ARCHITECTURE.md lacks a part"


# -- private modules ---------------------------------------------------------------------------------------------------

# Imports of a private module by another package. Data, tasks and the engine of the recipes are being made public; this list only shrinks.
PRIVATE_IMPORTS = {
    ("cli/demo.py", "regard.recipes._engine.report"),
    ("interop/_generation.py", "regard.data._vocab_files"),
}
PRIVATE_IN_DOCUMENTS: set[tuple[str, str]] = set()


def private_imports(path: Path, package: Path) -> set[str]:
    """Private modules and names of other packages that a file imports, for type checking too: modules as they are called, names after their module."""
    here = (package.name, *path.relative_to(package).with_suffix("").parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            targets = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            targets = [(*module, alias.name) if _is_private(alias.name) else module for alias in node.names]
        else:
            continue
        for target in targets:
            first = next((n for n, part in enumerate(target) if _is_private(part)), None)
            if target[0] == package.name and first is not None and first > 1 and target[:2] != here[:2]:  # 1: a module of the whole package
                found.add(".".join(target))
    return found


def _is_private(part: str) -> bool:
    return part.startswith("_") and not part.startswith("__")


def test_no_package_imports_private_modules_of_another():
    found = {
        (path.relative_to(PACKAGE).as_posix(), name) for path in sorted(PACKAGE.rglob("*.py")) for name in private_imports(path, PACKAGE)
    }
    assert found - PRIVATE_IMPORTS == set(), "make the module public, or export the name from the package"
    assert PRIVATE_IMPORTS - found == set(), "fixed: take it off the list"


def test_no_document_imports_private_modules():
    found = set()
    for path in (*ROOT.glob("*.md"), *(path for path in (ROOT / "docs").rglob("*") if path.suffix in (".md", ".py"))):
        if path.name != "LOG.md":
            lines = re.findall(r"^\s*(?:from|import) (regard\S*)(?: import (.*))?$", path.read_text(encoding="utf-8"), re.MULTILINE)
            names = {module for module, _ in lines} | {f"{module}.{name}" for module, more in lines for name in re.split(r"[, ()]+", more)}
            found |= {(path.relative_to(ROOT).as_posix(), name) for name in names if re.search(r"\._[a-z]\w*$", name)}
    assert found - PRIVATE_IN_DOCUMENTS == set()
    assert PRIVATE_IN_DOCUMENTS - found == set(), "fixed: take it off the list"


@pytest.mark.parametrize(
    ("line", "caught"),
    [
        ("from ..models._text import Axes", True),
        ("from regard.models._text import Axes", True),
        ("import regard.models._text", True),
        ("from ..models import _text", True),
        ("from ..models.text import _split", True),
        ("if TYPE_CHECKING:\n    from ..models._text import Axes", True),
        ("from ..models.text import Axes", False),
        ("from ._text import Axes", False),  # of its own package
        ("from .. import _bound", False),
        ("from torch._dynamo import config", False),
    ],
)
def test_the_checker_of_private_imports(tmp_path, line, caught):
    path = tmp_path / "regard" / "tasks" / "a.py"
    path.parent.mkdir(parents=True)
    path.write_text(line)
    assert bool(private_imports(path, tmp_path / "regard")) == caught


# -- the public surface ------------------------------------------------------------------------------------------------


def test_facts_steer_no_other_code():
    """A mechanism reads its own facts; other code calls its methods. Facts are printed (`name`, `paper` and all at once), and choose checks."""
    facts = "|".join(
        field.name for field in dataclasses.fields(regard.Facts) if field.name not in ("name", "paper", "formula", "time", "memory")
    )
    steered = re.compile(rf"\bfacts\.({facts}|causal)\b")
    allowed = ("attention/", "testing/", "catalogue.py", "look/lineage.py")  # the last two print them
    for path in PACKAGE.rglob("*.py"):
        if not str(path.relative_to(PACKAGE)).startswith(allowed):
            found = steered.search(path.read_text(encoding="utf-8"))
            assert found is None, f"{path}: {found and found[0]}: ask a method of Attention, such as queries_stand_alone()"


def test_all_is_what_is_visible():
    regard.causal  # noqa: B018  the first name that is used brings all of them
    seen = {name for name, value in vars(regard).items() if not name.startswith("_") and not isinstance(value, types.ModuleType)}
    modules = {name for name in regard.__all__ if isinstance(getattr(regard, name), types.ModuleType)}
    assert set(regard.__all__) == seen | modules | {"__version__"}
    assert len(regard.__all__) == len(set(regard.__all__))


def test_every_mechanism_is_public():
    assert {mechanism.__name__ for mechanism in regard.MECHANISMS} <= set(regard.__all__)


def test_the_legend_is_in_the_package_docstring():
    assert regard.__doc__ is not None
    assert all(re.search(rf"\b{letter}  \w", regard.__doc__) for letter in "BLMDHKVFNC")


@pytest.mark.parametrize("module", [regard, regard.patterns, sys.modules["regard.patterns._parse"]], ids=lambda m: m.__name__)
def test_examples_in_docstrings(module):
    result = doctest.testmod(module)
    assert result.attempted and not result.failed


def test_importing_is_light():
    """Nothing but PyTorch, msgspec and the standard library: no matplotlib, rich, tyro, transformers, starlette, and no more of PyTorch than itself; no models."""
    code = """
import sys, torch
before = set(sys.modules)
import regard
regard.causal
added = {name for name in set(sys.modules) - before if name.partition(".")[0] not in sys.stdlib_module_names | {"regard", "msgspec"} or name == "regard.models"}
print(sorted(added))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


# -- what must not be in the tree --------------------------------------------------------------------------------------

SKIPPED = {
    ".git",
    ".venv",
    "__pycache__",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".hypothesis",
    "build",
    "dist",
    "runs",
    "demo",
    "site",
}
RUNS_TEXT = {"tests/test_docs.py"}  # runs the snippets of the documents: that is what it is for


def tree(*suffixes: str) -> list[Path]:
    found = (path for path in ROOT.rglob("*") if path.is_file() and not SKIPPED & set(path.relative_to(ROOT).parts))
    return sorted(path for path in found if path.suffix in suffixes or not suffixes)


def unsafe(source: str) -> list[str]:
    """Ways of running data as code."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found += [a.name for a in names if a.name.split(".")[0] in ("pickle", "dill", "joblib", "marshal", "shelve", "cloudpickle")]
            case ast.ImportFrom(module=str(module), level=0) if module.split(".")[0] in ("pickle", "dill", "joblib", "marshal", "shelve"):
                found.append(module)
            case ast.Call(func=ast.Name(id="eval" | "exec" as name)):
                found.append(name)
            case ast.Attribute(value=ast.Name(id="torch"), attr="load"):
                found.append("torch.load")
            case ast.ImportFrom(module="torch", names=names) if any(a.name == "load" for a in names):
                found.append("torch.load")
            case ast.keyword(arg="shell", value=ast.Constant(value=True)):
                found.append("shell=True")
    return found


def test_nothing_runs_data_as_code():
    found = {path.relative_to(ROOT).as_posix(): unsafe(path.read_text(encoding="utf-8")) for path in tree(".py")}
    assert {name: what for name, what in found.items() if what and name not in RUNS_TEXT} == {}


@pytest.mark.parametrize("line", ["import pickle", "from pickle import loads", "eval('1')", "torch.load(p)", "from torch import load"])
def test_that_checker_too(line):
    assert unsafe(line)
    assert not unsafe("model.eval(); safetensors.torch.load(p); pattern.eval(3)")


def test_no_machine_and_no_registry_is_named():
    folders = "|".join(("home", "root", "tmp", "work", "Users", "mnt"))
    words = ("/" + f"({folders})" + "/[a-zA-Z]", "index" + "-url", "extra" + "-index", r"https?://[^\s)]*(artifactory|nexus|devpi|simple/)")
    forbidden = re.compile("|".join(words))
    found = []
    for path in tree(".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".json", ".ipynb", ".cfg", ".js", ".html", ""):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}:{n}: {line.strip()}" for n, line in enumerate(lines, 1) if forbidden.search(line)]
    assert found == []
