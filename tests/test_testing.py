"""`regard.testing`: the examples of CONTRIBUTING.md hold the contract, and each mistake is named by the fact to change."""

import importlib
import importlib.util
import itertools
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from regard.attention import (
    Attention,
    DotAttention,
    EntmaxAttention,
    Facts,
    GeneralAttention,
    LinearAttention,
    LocalAttention,
    Paper,
    SoftmaxAttention,
)
from regard.attention.helpers import share_heads, softmax_where
from regard.cli import main
from regard.errors import BadConfig, UnknownName
from regard.interop.families import LlamaFamily
from regard.models import GPT2
from regard.patterns import causal, window
from regard.recipes import RECIPES
from regard.testing import CHECKS, check_mechanism, run_checks

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "extend" / "mechanism.md").read_text(encoding="utf-8")
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


class TwiceTheScore(EntmaxAttention):
    """Consistent, and not entmax: every other check passes."""

    facts = replace(EntmaxAttention.facts, name="planted")

    def scores(self, q, k, call):
        return 2 * super().scores(q, k, call)

    def reference(self, q_BLHK, k_BMHK, v_BMHV):
        """Sparsemax by its definition: the projection of a row of scores onto the simplex, found by sorting."""
        scores_BHLM = torch.einsum("blhk,bmhk->bhlm", q_BLHK, k_BMHK) / q_BLHK.shape[-1] ** 0.5
        top, count = scores_BHLM.sort(-1, descending=True).values, torch.arange(1, k_BMHK.shape[1] + 1)
        size = (1 + count * top > top.cumsum(-1)).sum(-1, keepdim=True)
        tau = (top.cumsum(-1).gather(-1, size - 1) - 1) / size
        return torch.einsum("bhlm,bmhv->blhv", (scores_BHLM - tau).clamp(min=0), v_BMHV)


class Entmax(TwiceTheScore):
    def scores(self, q, k, call):
        return EntmaxAttention.scores(self, q, k, call)


class ReferenceOfAnotherShape(Entmax):
    def reference(self, q_BLHK, k_BMHK, v_BMHV):
        return super().reference(q_BLHK, k_BMHK, v_BMHV).transpose(1, 2)


class DetachedReference(Entmax):
    def reference(self, q_BLHK, k_BMHK, v_BMHV):
        return super().reference(q_BLHK.detach(), k_BMHK, v_BMHV)


class Crashes(Planted):
    def _forward(self, q, k, v, call):
        (a, b, c) = q.shape
        return a + b + c


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
    (Crashes, "law", r"ValueError in _forward \(test_testing.py:\d+\): too many values to unpack"),
    (declared(DotAttention, paper=Paper("t", 1999, "w")), "facts", "facts.paper.year is 1999"),
]


@pytest.mark.parametrize(("mechanism", "check", "words"), MISTAKES, ids=lambda x: getattr(x, "__name__", None))
def test_a_failure_names_the_fact(mechanism, check, words):
    (result,) = check_mechanism(mechanism, [check]).results
    if words is None:
        assert result.outcome != "failed", result
    else:
        assert result.outcome == "failed" and re.search(words, result.reason), result


SPARSEMAX = {"alpha": 2.0}
REFERENCES = [
    (TwiceTheScore, SPARSEMAX, "forward is not what `reference` computes"),
    (Entmax, SPARSEMAX, None),
    (Entmax, {"alpha": 1.5}, "forward is not what `reference` computes"),
    (ReferenceOfAnotherShape, SPARSEMAX, r"reference gives \(2, 4, 13, 11\).*return out_BLHV, \(2, 13, 4, 11\)"),
    (DetachedReference, SPARSEMAX, "the gradient of q_BLHK is not that of `reference`"),
]


@pytest.mark.parametrize(("mechanism", "settings", "words"), REFERENCES)
def test_a_wrong_formula_is_found_by_its_reference(mechanism, settings, words):
    (result,) = check_mechanism(mechanism, ["reference"], settings).results
    assert (result.outcome, bool(words and re.search(words, result.reason))) == ("failed" if words else "passed", bool(words)), result


def test_only_the_reference_finds_a_consistent_mistake():
    quick = [name for name in CHECKS if not name.startswith("memory") and name not in ("compile", "law-long", "facts")]
    report = check_mechanism(TwiceTheScore, quick, SPARSEMAX)
    assert [result.check for result in report.failures] == ["reference"]


def test_settings_are_those_of_the_check():
    """A mistake at small blocks only, which the default settings do not show."""

    class WrongWhenNarrow(LocalAttention):
        def _forward(self, q, k, v, call):
            return super()._forward(q, k, v, call) * (2 if self.radius < 4 else 1)

    assert check_mechanism(WrongWhenNarrow, ["law"]).passed
    assert not check_mechanism(WrongWhenNarrow, ["law"], {"radius": 2}).passed
    with pytest.raises(UnknownName, match="radius"):
        check_mechanism(WrongWhenNarrow, ["law"], {"radus": 2})
    with pytest.raises(BadConfig, match="4 heads of size 7"):
        check_mechanism(GeneralAttention, ["law"], {"head_dim": 3})


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
    assert main(["check", "my_mechanism:Mine", "--only", "reference"]) == 0
    assert "no reference" in capsys.readouterr().out
    Path("my_blocks.py").write_text("from regard import LocalAttention\nclass Mine(LocalAttention):\n    pass\n")
    for given in ("my_blocks:Mine(radius=2)", "local(radius=2)"):
        assert main(["check", given, "--only", "law"]) == 0
    for wrong in (
        "my_wrong:Other",
        "nothing:Mine",
        "sofmax",
        "local(radus=2)",
        "local(2)",
        "my_blocks:Mine(radius=",
        "my_blocks:Mine(heads=2)",
    ):
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


# -- other kinds -----------------------------------------------------------------------------------------------------------


def outcomes(thing, **settings):
    return {result.check: (result.outcome, result.reason) for result in run_checks(thing, None, settings)}


SMALL = {"width": 16, "heads": 2, "depth": 1}


def test_models_are_checked():
    found = outcomes(GPT2, vocab_size=50, context_length=32, dropout=0.0, **SMALL)
    assert {outcome for outcome, _ in found.values()} == {"passed"} and set(found) == {"settings", "config", "gradients", "causal", "steps"}

    class Peeking(GPT2):
        def features(self, ids_BL, *args, **kwargs):
            return super().features(ids_BL, *args, **kwargs) + ids_BL[:, -1:, None]

    found = outcomes(Peeking, vocab_size=50, context_length=32, dropout=0.0, **SMALL)
    assert found["causal"][0] == "failed" and "pass `causal`" in found["causal"][1] and found["gradients"][0] == "passed"


def test_patterns_are_checked():
    assert (
        {outcome for outcome, _ in outcomes(window, radius=3).values()}
        == {outcome for outcome, _ in outcomes(causal).values()}
        == {"passed"}
    )

    @dataclass(frozen=True, repr=False)
    class Overclaims(window):
        def bounds(self, b, h, i, j):
            some, every = super().bounds(b, h, i, j)
            return some, torch.ones_like(every)

    found = outcomes(Overclaims, radius=2)
    assert found["blocks"][0] == "failed" and "correct `bounds`" in found["blocks"][1] and found["mask"][0] == "passed"


def test_tasks_are_checked(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "extend" / "task.md").read_text(encoding="utf-8")
    source = tmp_path / "bags_of_the_docs.py"
    source.write_text(re.search(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[1])
    monkeypatch.syspath_prepend(tmp_path)
    names = importlib.import_module("bags_of_the_docs")
    (tmp_path / "bags.jsonl").write_text("".join(f'{{"bag": [[0.{n}], [0.5]], "y": 0.{n}}}\n' for n in range(100)))
    found = outcomes(names.Bags, data=str(tmp_path / "bags.jsonl"), input="[[0.2], [0.7]]")
    assert {outcome for outcome, _ in found.values()} == {"passed"} and len(found) == 6

    class Careless(names.Bags):
        def batch(self, item, generator):
            x, n, y = super().batch(item, generator)
            return x + 0.01 * next(noise), n, y

    noise = itertools.count()
    found = outcomes(Careless, data=str(tmp_path / "bags.jsonl"))
    assert found["resume"][0] == "failed" and "generator" in found["resume"][1] and found["predict"][0] == "not applicable"


def test_families_and_recipes_are_checked():
    found = outcomes(LlamaFamily(), vocab_size=50, context_length=32, hidden=20, kv_heads=1, head_dim=8, **SMALL)
    assert {outcome for outcome, _ in found.values()} == {"passed"} and "round-trip" in found
    assert outcomes(LlamaFamily())["round-trip"][0] == "not applicable"
    assert outcomes(RECIPES[0]) == {"claims": ("passed", "")}
    with pytest.raises(BadConfig, match="a subclass of Model with `facts` or"):
        outcomes(object())
