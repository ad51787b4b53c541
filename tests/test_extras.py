"""The core install: what works with six packages, and the one sentence that names the extra where another package is needed."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "regard"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
CORE = {"torch", "numpy", "safetensors", "msgspec", "tyro", "rich"}
MODULES = {  # names of distributions that are imported under another name
    "pillow": "PIL",
    "Babel": "babel",
    "Hershey-Fonts": "HersheyFonts",
    "prometheus-client": "prometheus_client",
    "rouge-score": "rouge_score",
}
CARRIED = {"traitlets": "notebook", "huggingface_hub": "data"}  # brought by a package of the extra, and imported beside it


def requirement_name(text: str) -> str:
    found = re.match(r"[\w.-]+", text)
    assert found
    return found[0]


OPTIONAL = {
    MODULES.get(name, name): extra for extra, texts in EXTRAS.items() for text in texts if (name := requirement_name(text)) != "regard"
} | CARRIED
NEEDED = {"networkx"}  # by PyTorch itself, too, in its compiler
BLOCKER = f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {set(OPTIONAL) - NEEDED!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
"""


def run_blocked(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program in a process in which no optional package can be imported."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run([sys.executable, "-c", BLOCKER + code, *arguments], capture_output=True, text=True, env=environment)


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_blocked("from regard.__main__ import main; sys.exit(main())", *arguments)


def test_the_core_has_six_requirements():
    assert {requirement_name(text) for text in PROJECT["dependencies"]} == CORE


def test_all_holds_every_extra_but_the_trackers():
    named = re.fullmatch(r"regard\[(.+)\]", EXTRAS["all"][0])
    assert named and set(named[1].split(",")) == set(EXTRAS) - {"all", "tensorboard", "wandb", "mlflow"}


def test_the_core_works_alone(tmp_path):
    """Mechanisms, layers, models, generation, capture, saving and loading of maps; every package can be imported."""
    code = """
import os
import torch
import regard
from regard import Block, FeedForward, MultiHead, SoftmaxAttention, capture, causal
from regard.models import MODELS, build

q, k, v = torch.randn(3, 1, 8, 2, 4)
SoftmaxAttention()(q, k, v, causal)
model = Block(8, MultiHead(8, heads=2), FeedForward(8, 16))
with capture(model) as maps:
    model(torch.randn(1, 5, 8), causal)
maps.show()
maps.save("maps.safetensors")
regard.Maps.load("maps.safetensors")
gpt = build("gpt2", {"vocab_size": 30, "context_length": 16, "width": 16, "heads": 2, "depth": 1})
assert len(gpt.generate(torch.ones(1, 4, dtype=torch.long), max_tokens=3)[0]) == 3
for name in ("data", "decode", "interop", "look", "recipes", "runs", "serve", "tasks", "train", "compare", "testing", "catalogue"):
    getattr(regard, name)
"""
    done = run_blocked(f"import os; os.chdir({str(tmp_path)!r})" + code)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    "arguments",
    [
        ["list"],
        ["list", "models"],
        ["show", "softmax"],
        ["show", "gpt2"],
        ["check", "softmax", "--only", "law"],
        ["compare", "--help"],
        ["compare", "softmax", "--lengths", "64", "--repeats", "1"],
        ["train", "language", "--help"],
    ],
    ids=" ".join,
)
def test_commands_of_the_core(arguments):
    done = run_command(*arguments)
    assert done.returncode == 0 and done.stdout, done.stderr[-2000:]


USES = {  # package: a use of it
    "matplotlib": "regard.causal.save_png('x.png', 8)",
    "PIL": "from regard.data.images import resize; import numpy; resize(numpy.zeros((4, 4, 3), 'uint8'), 2, 2)",
    "tokenizers": "from regard.data import Tokenizer; Tokenizer.train(['a b'], 'bpe', 300)",
    "sacrebleu": "from regard.metrics import score_translations; score_translations(['a'], ['a'])",
    "num2words": "regard.data.read_pairs('numbers:en-de,below=10')",
    "babel": "regard.data.read_pairs('dates:en-de')",
    "HersheyFonts": "from regard.data.hershey import text_strokes; text_strokes('a', 'cursive')",
    "pyarrow": "from regard.data.arrow import parquet_rows; import pathlib; next(parquet_rows(pathlib.Path('x.parquet')))",
    "datasets": "from regard.data.arrow import open_dataset; open_dataset('hf:x')",
    "llguidance": "from regard.decode import Grammar; Grammar.regex('a')",
    "starlette": "from regard.serve import _check_installed; _check_installed()",
    "transformers": "from regard.interop import register; register()",
    "anywidget": "from regard.look.widget import _widget_class; _widget_class()",
    "rouge_score": "from regard.metrics import Rouge; Rouge()",
    "tensorboard": "from regard.train.log import check_installed; check_installed(['tensorboard'])",
    "wandb": "from regard.train.log import check_installed; check_installed(['wandb'])",
    "mlflow": "from regard.train.log import check_installed; check_installed(['mlflow'])",
}


@pytest.fixture(scope="module")
def messages() -> dict[str, tuple[str, str]]:
    """The type and the message of the error of each use, from one process."""
    code = f"""
import json
import regard

found = {{}}
for package, use in {USES!r}.items():
    try:
        exec(use)
        found[package] = ("nothing", "")
    except Exception as error:
        found[package] = (type(error).__name__, str(error))
print(json.dumps(found))
"""
    done = run_blocked(code)
    assert done.returncode == 0, done.stderr[-2000:]
    return {package: tuple(found) for package, found in json.loads(done.stdout).items()}


@pytest.mark.parametrize("package", USES)
def test_a_missing_package_is_named_with_its_extra(messages, package):
    kind, text = messages[package]
    assert kind == "MissingPackage", text
    named = re.match(r"(\w+) is not installed; install it with: pip install 'regard\[(\w+)\]'", text)
    assert named and "\n" not in text, text
    assert named[2] in EXTRAS and (named[1] == package or package == "starlette")
    distributions = {MODULES.get(requirement_name(one), requirement_name(one)) for one in EXTRAS[named[2]]}
    assert named[1] in distributions, f"regard[{named[2]}] does not bring {named[1]}"


def test_the_command_line_says_it_in_one_line():
    done = run_command("train", "language", "--data", str(ROOT / "README.md"), "--steps", "1", "--out", "never-made")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "regard: tokenizers is not installed; install it with: pip install 'regard[train]'"


# -- every import of an optional package goes through the helper -------------------------------------------------------


def bare_imports(source: str) -> list[str]:
    """Imports of optional packages that are neither in `with extra(…)` nor for the type checker only."""
    found: list[str] = []

    def visit(node: ast.AST, covered: bool) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for other in node.orelse:
                visit(other, covered)
            return
        if isinstance(node, ast.With) and any(ast.unparse(item.context_expr).startswith("extra(") for item in node.items):
            covered = True
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        found.extend(name for name in names if name.partition(".")[0] in OPTIONAL and not covered)
        for child in ast.iter_child_nodes(node):
            visit(child, covered)

    visit(ast.parse(source), False)
    return found


def test_every_optional_import_names_its_extra():
    found = {
        path.relative_to(PACKAGE).as_posix(): bare
        for path in PACKAGE.rglob("*.py")
        if (bare := bare_imports(path.read_text(encoding="utf-8")))
    }
    # the modules of the server are imported after its packages have been asked for, by serve._check_installed
    assert [name for name in found if not name.startswith("serve/")] == []


@pytest.mark.parametrize(
    ("source", "caught"),
    [
        ("import matplotlib", True),
        ("def f():\n    from PIL import Image", True),
        ('with extra("look"):\n    from PIL import Image', False),
        ("if TYPE_CHECKING:\n    import tokenizers\nelse:\n    import tokenizers", True),
        ("if TYPE_CHECKING:\n    import tokenizers", False),
        ("import torch", False),
        ("from .datasets import x", False),
    ],
)
def test_that_checker_too(source, caught):
    assert bool(bare_imports(source)) == caught
