"""`regard.testing`: the examples of CONTRIBUTING.md hold the contract, and each mistake is named by the fact to change."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from regard.attention import (
    Attention,
    DotAttention,
    Facts,
    LinearAttention,
    LocalAttention,
    Paper,
    SoftmaxAttention,
)
from regard.attention.helpers import share_heads, softmax_where
from regard.cli import main
from regard.errors import BadConfig, UnknownName
from regard.testing import CHECKS, check_mechanism

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
EXAMPLES = next(block for block in re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL) if "class Uniform" in block)
WHOLE, LINE = re.findall(r"^```py\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
NAMES = re.findall(r"^class (\w+)\(", EXAMPLES, re.MULTILINE)


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    path = tmp_path_factory.mktemp("examples") / "contributing_examples.py"
    path.write_text(EXAMPLES, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("contributing_examples", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", NAMES)
def test_examples_hold_the_contract(examples, name):
    report = check_mechanism(getattr(examples, name))
    assert report.passed, "\n".join(map(str, report.failures))
    assert [result.check for result in report.results] == list(CHECKS)


def _link(source: str, target: str) -> None:
    """A file in two folders; mypy replaces files and does not write into them."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@pytest.mark.slow
def test_a_mechanism_added_to_the_package(tmp_path):
    """As a contributor does: a file, a line; then its checks, ruff and mypy."""
    package = tmp_path / "regard"
    shutil.copytree(ROOT / "src" / "regard", package, ignore=shutil.ignore_patterns("__pycache__"))
    file, listed = package / "attention" / "cosformer.py", package / "attention" / "__init__.py"
    file.write_text(WHOLE, encoding="utf-8")
    source = listed.read_text(encoding="utf-8")
    listed.write_text(source.replace("from .cosine import", f"{LINE}from .cosine import", 1), encoding="utf-8")
    config, cache = str(ROOT / "pyproject.toml"), tmp_path / "cache"
    if (ROOT / ".mypy_cache").is_dir():  # of `make test`: what mypy knows of PyTorch takes half a minute to find out
        shutil.copytree(ROOT / ".mypy_cache", cache, copy_function=_link)
    commands = {
        "checks": [
            "-P",
            "-c",
            f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from regard.cli import main; sys.exit(main(['check', 'cosformer']))",
        ],
        "ruff": ["-m", "ruff", "check", "--config", config, str(file), str(listed)],
        "format": ["-m", "ruff", "format", "--check", "--config", config, str(file), str(listed)],
        "mypy": ["-m", "mypy", "--config-file", config, "--cache-dir", str(cache), "-p", "regard.attention.cosformer"],
    }
    for name, command in commands.items():
        done = subprocess.run(
            [sys.executable, *command],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1", "PATH": ""},
        )
        assert done.returncode == 0, f"{name}: {done.stdout[-2000:]}{done.stderr[-2000:]}"


# -- mistakes and wrong facts: the message names the fact ------------------------------------------------------------------


def facts(**changes) -> Facts:
    return replace(SoftmaxAttention.facts, name="planted", **changes)


class Planted(Attention):
    """Softmax of dot products, as a definition only: each test changes one thing."""

    facts = facts()

    def scores(self, q, k, call):
        return torch.einsum("blhk,bmhk->bhlm", q, share_heads(k, q.shape[2])) + call.scores_bias()

    def _weights(self, q, k, call):
        return softmax_where(self.scores(q, k, call), call.mask())


class Unnormalised(Planted):
    def _weights(self, q, k, call):
        return super()._weights(q, k, call) * 0.5


class Positional(Planted):
    def scores(self, q, k, call):
        return super().scores(q, k, call) + torch.arange(call.keys) * 0.1


class FromTheEnd(Planted):
    facts = facts(positional=True)

    def scores(self, q, k, call):
        distance = call.query_positions()[..., None] - call.key_positions()[:, None]
        return super().scores(q, k, call) - distance.abs()[:, None] * 0.1


class DoubledAboveTheThreshold(Planted):
    def _forward(self, q, k, v, call):
        return super()._forward(q, k, v, call) * (2 if call.queries * call.keys > 65_536 else 1)


class WrongUnderWindows(Planted):
    def _forward(self, q, k, v, call):
        return super()._forward(q, k, v, call) * (1 if str(call.pattern) in ("full", "causal") else 2)


class NoBias(Planted):
    def scores(self, q, k, call):
        return torch.einsum("blhk,bmhk->bhlm", q, share_heads(k, q.shape[2]))


class LeaksTheFuture(Planted):
    def scores(self, q, k, call):
        return super().scores(q, k, call) + super().scores(q, k, call).mean(-1, keepdim=True).sin() * k.norm(dim=-1).mT[:, :1, None].mean()


class LeaksPadding(Planted):
    def scores(self, q, k, call):
        return super().scores(q, k, call) * k.detach().mean((1, 2, 3)).sin()[:, None, None, None]


class AllQueries(Planted):
    def scores(self, q, k, call):
        return super().scores(q + q.mean(1, keepdim=True), k, call)


class EarlierQueries(Planted):
    facts = facts(rows="independent")

    def scores(self, q, k, call):
        return super().scores(q.cumsum(1), k, call)


class SameLengths(Planted):
    def scores(self, q, k, call):
        return super().scores(q + k[:, :, : q.shape[2]].mean(2, keepdim=True), k, call)


class OwnPositions(Planted):
    facts = facts(positional=True)

    def scores(self, q, k, call):
        return super().scores(q, k, call) + torch.arange(call.keys).flip(0) * 0.1


class Draws(Planted):
    def scores(self, q, k, call):
        return super().scores(q, k, call) * torch.rand(())


class ForgetsAnArgument(Planted):
    def __init__(self, *, scale: float = 1.0):
        super().__init__()


class Overflows(Planted):
    def _weights(self, q, k, call):
        part = self.scores(q, k, call).exp() * call.mask()
        return part / part.sum(-1, keepdim=True).clamp(min=1e-300)


class FormsAllPairs(Planted):
    def _forward(self, q, k, v, call):
        return torch.einsum("bhlm,bmhv->blhv", self._weights(q, k, call), share_heads(v, q.shape[2]))


def declared(base: type[Attention], **changes) -> type[Attention]:
    """A right mechanism with a wrong fact."""
    return type(base.__name__, (base,), {"facts": replace(base.facts, **changes), "__doc__": base.__doc__})


MISTAKES = [
    (Unnormalised, "weights", r"rows sum to 0\.5.*facts.normalised is True: set normalised=False"),
    (Positional, "order-of-keys", "the order of keys matters but facts.positional is False: set positional=True"),
    (declared(DotAttention, positional=True), "order-of-keys", "does not matter but facts.positional is True: set positional=False"),
    (FromTheEnd, "padding", "padding changes the output, but facts.cross is True.*set cross='last'"),
    (declared(LocalAttention, cross=True), "padding", "facts.cross is True"),
    (DoubledAboveTheThreshold, "law-long", "supports `.*` according to facts.patterns, but forward != weights @ v under it"),
    (WrongUnderWindows, "law", "supports `lengths` according to facts.patterns, but forward != weights @ v"),
    (NoBias, "law-bias", "facts.bias is True, but a bias changes nothing.*set bias=False"),
    (LeaksTheFuture, "future", "facts.rows is 'independent'.*leave 'causal' out of facts.patterns"),
    (LeaksPadding, "padding", "leave 'lengths' out of facts.patterns"),
    (AllQueries, "rows", "later queries change a query's weights but facts.rows is 'independent': set rows='joint'"),
    (EarlierQueries, "rows", "only earlier queries change.*facts.rows is 'independent': set rows='sequential'"),
    (EarlierQueries, "weights-rows", "facts.rows is 'independent', but weights.*set rows="),
    (declared(DotAttention, rows="joint"), "rows", "facts.rows is 'joint': set rows='independent'"),
    (declared(DotAttention, rows="sequential"), "rows", "facts.rows is 'sequential': set rows='independent'"),
    (SameLengths, "cross", "facts.cross is True, but 13 queries over 17 keys fail: set cross=False"),
    (OwnPositions, "stream-steps", "facts.state is Cache: take positions and masks from `call`, or set state=None"),
    (declared(LinearAttention, state=None), "stream-steps", None),
    (Draws, "deterministic", "add a boolean attribute `sample`"),
    (ForgetsAnArgument, "settings", "no attribute scale: constructor arguments are keyword arguments"),
    (Overflows, "huge-scores", "overflow.*subtract the largest score"),
    (FormsAllPairs, "memory", "facts.memory is 'L·K'.*by_rows"),
    (declared(DotAttention, memory="L·M"), "memory", None),
    (declared(DotAttention, memory="some"), "memory", None),
    (declared(DotAttention, memory="a chunk"), "memory", "facts.memory is 'a chunk': expected a formula"),
    (declared(DotAttention, name="two words"), "facts", "facts.name"),
    (declared(DotAttention, paper=Paper("t", 1999, "w")), "facts", "facts.paper.year is 1999"),
]


@pytest.mark.parametrize(("mechanism", "check", "words"), MISTAKES, ids=lambda x: getattr(x, "__name__", None))
def test_a_failure_names_the_fact(mechanism, check, words):
    (result,) = check_mechanism(mechanism, [check]).results
    if words is None:
        assert result.outcome != "failed", result
    else:
        assert result.outcome == "failed" and re.search(words, result.reason), result


def test_the_report():
    report = check_mechanism(Unnormalised, ["weights", "rows", "stream-no-keys"])
    assert not report.passed and [result.outcome for result in report.results] == ["failed", "passed", "not applicable"]
    assert len(str(report).splitlines()) == 3 and str(report).startswith("failed")
    with pytest.raises(UnknownName, match="law"):
        check_mechanism(Planted, ["lav"])
    with pytest.raises(BadConfig, match="subclass of regard"):
        check_mechanism(int)


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("my_mechanism.py").write_text("from regard import DotAttention\nclass Mine(DotAttention):\n    pass\n")
    assert main(["check", "my_mechanism:Mine", "--only", "law", "rows"]) == 0
    assert capsys.readouterr().out.splitlines() == ["passed          law", "passed          rows", "All checks passed"]
    Path("my_wrong.py").write_text(
        "from dataclasses import replace\nfrom regard import DotAttention\n"
        "class Mine(DotAttention):\n    facts = replace(DotAttention.facts, positional=True)\n"
    )
    assert main(["check", "my_wrong:Mine", "--only", "order-of-keys"]) == 1
    assert "set positional=False" in capsys.readouterr().out
    for wrong in ("my_wrong:Other", "nothing:Mine", "sofmax"):
        assert main(["check", wrong]) == 2


@pytest.mark.slow
def test_gaussian_window_of_4096_tokens_stays_small():
    """Without gradients, in a process of its own: it took 1.8 GB where results of chunks lay between their temporaries."""
    code = """
import resource, torch
from regard import GaussianWindow
attention = GaussianWindow(heads=4, head_dim=16)
q, k, v = torch.randn(3, 1, 4096, 4, 16)
with torch.no_grad():
    attention(q[:, :64], k[:, :64], v[:, :64])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    attention(q, k, v)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 400, f"{done.stdout} MB"
