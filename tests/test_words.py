"""The words: idiomatic technical English, the field's own. Phrases that came back again and again are kept out.

docs/glossary.md has the words to use. Each test lists what is wrong with file and line.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "AGENTS.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "llms.txt")),
    *sorted((ROOT / "docs").glob("*.*")),
    *sorted((ROOT / "docs" / "extend").glob("*.md")),
    *sorted((ROOT / "docs" / "log").glob("*.md")),
]
SOURCES = sorted((ROOT / "src").rglob("*.py"))

COUNTED = "nats|tokens|rows|answers|bits|batches|windows|examples|norm|number|numbers|slope|object|parameters|keys|steps|seconds|bytes|rule|seed|decay|scale|pairs"
UNITS = (
    "token|batch|byte|tile|prompt|step|head|line|row|layer|second|character|position|chunk|sentence|epoch|side|feature|word|mechanism|call"
)
BANNED = {  # pattern → what to write instead
    rf"\b(?:{COUNTED}) an? (?:{UNITS})\b(?!-)": "“per”: tokens per second, a slope per head",
    r"\bthe way back\b|\bon the way (?:forward|back)\b|\bthere and back\b": "backward pass, forward pass, forward + backward",
    r"\bso many\b": "the number of …",
    r"\blooked (?:at )?by\b|\bwhat is looked\b": "attends to; attention",
    r"\bmay look\b|\blooks? at whom\b|\bwhom (?:it|each|they) looks?\b": "may attend, attends to",
    r"\b(?:rotary|learned|sinusoidal|relative|absolute|token|counts?(?: its| no)?|key|query) places?\b|\bplaces? of (?:a )?tokens?\b": "position, positional embedding",
    r"\bgo(?:es|ing)? step by step\b": "streams; step by step, token by token",
    r"\bgo(?:es|ing)? on with\b|\bgoes? on from\b": "continues, resumes",
    r"\bbegins? anew\b|\bmade anew\b": "starts over; is made again",
    r"\bstands? (?:at|before|elsewhere)\b": "is at",
    r"\bmatrix products?\b|\bbatched products?\b": "matmul",
    r"\b(?:the )?weights of the (?:model|file|checkpoint)\b|\bmodel weights\b|\bpublished weights\b": "parameters (weights are attention weights)",
    r"\boptimiser": "optimizer",
    r"\bquantised\b|\blightened\b": "quantized",
    r"(?<!\bthere\s)(?<!\bwhen\s)\b(?:is|are) no (?!longer\b|more\b|less\b|wider\b)[a-z{]": "is not a …",
    r"\bfiles? of (?:safetensors|transformers)\b": "a safetensors file, transformers' files",
    r"\bof ours\b": "our own …, … of regard",
    r"\b(?:drawn|draws|written|trained) anew\b": "again",
    r"\bfew data\b": "little data",
    r"; take (?:[a-z]*float|precision|an? |\d)": "use",
    r"\bthose (?:that can|there are)(?: be)?: ": "name what follows: mechanisms that fit: …",
}


def violations(path: Path) -> list[str]:
    """file:line: the phrase → what to write. Phrases are found across line ends too."""
    text = path.read_text(encoding="utf-8")
    found = []
    for pattern, better in BANNED.items():
        for match in re.finditer(pattern.replace(" ", r"\s+(?:#\s+)?"), text, re.IGNORECASE):
            line = text.count("\n", 0, match.start()) + 1
            found.append((line, f"{path.relative_to(ROOT)}:{line}: “{' '.join(match[0].split())}” → {better}"))
    return [message for _, message in sorted(found)]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_documents_use_the_fields_words(path):
    assert violations(path) == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT / "src" / "regard").as_posix())
def test_sources_use_the_fields_words(path):
    assert violations(path) == []


# -- how docstrings begin ----------------------------------------------------------------------------------------------

RIDDLES = re.compile(r"(?:What|How|Whether|Which|Of|The same|As)\b", re.IGNORECASE)


def riddles(source: str) -> list[str]:
    """Docstrings and help texts that begin with a word which needs the line above to have a subject: "Whether …", "Of the …"."""
    found, lines = [], source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for part in node.body:
            text = ""
            if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) and isinstance(part.value.value, str):
                text = part.value.value
            elif isinstance(node, ast.ClassDef) and isinstance(part, ast.AnnAssign):  # a field, with a comment behind it
                text = lines[part.end_lineno - 1].encode()[part.end_col_offset :].decode().partition("# ")[2]
            if RIDDLES.match(text.strip()):
                found.append(f"{part.lineno}: {text.strip().splitlines()[0]}")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT / "src" / "regard").as_posix())
def test_docstrings_begin_with_a_verb_or_a_noun(path):
    assert riddles(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("source", "caught"),
    [
        ('def f():\n    """Whether it fits."""', True),
        ('def f():\n    """Return whether it fits."""', False),
        ('"""What a mask is."""', True),
        ('class A:\n    x: int\n    """Of the mask."""', True),
        ("class A:\n    x: int = 1  # of the mask", True),
        ("class A:\n    x: int = 1  # size of the mask", False),
        ('def f():\n    """Assigns a mask."""', False),
    ],
)
def test_the_checker_of_beginnings(source, caught):
    assert bool(riddles(source)) == caught


# -- the checker of phrases --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "caught"),
    [
        ("about 40 tokens a second", True),
        ("one number a head", True),
        ("one rule a\nbatch row", True),
        ("32 rows a\n    # tile", True),
        ("kept for the way back", True),
        ("rotary places", True),
        ("tokens per second", False),
        ("the last tokens, a batch of them", False),
        ("in the first place", False),
        ("a scalar is no tensor", True),
        ("there is no tensor", False),
        ("it is no longer read", False),
        ("not supported here; take float32", True),
        ("tokens a row-wise kernel", False),
    ],
)
def test_the_checker_itself(tmp_path, monkeypatch, text, caught):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "x.md").write_text(text, encoding="utf-8")
    assert bool(violations(tmp_path / "x.md")) == caught
