"""The documents: every Python snippet runs, every picture of a pattern is what the pattern draws, the table is up to date."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from regard import catalogue
from regard.patterns import parse

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [path.name for path in DOCUMENTS]
NEEDS = {
    "interop.md": "transformers",
    "interchange.md": "transformers",
}  # packages that a document is about, and that the library does without


def blocks(path: Path, language: str) -> list[tuple[int, str]]:
    """(line, text) of each block of a language."""
    text = path.read_text(encoding="utf-8")
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, block.start()) + 2, block[1]) for block in found]


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_snippets_run(path, tmp_path, monkeypatch, capsys):
    """In order, in one namespace, in an empty folder: as one who pastes them does. `x  # → y` promises that x prints as y."""
    if path.name in NEEDS:
        pytest.importorskip(NEEDS[path.name], reason=f"{path.name} is about {NEEDS[path.name]}")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "document"}
    for line, text in blocks(path, "python"):
        exec(compile("\n" * (line - 1) + text, str(path), "exec"), names)
        for promise in re.finditer(r"^(.+?)  # → (.+)$", text, re.MULTILINE):
            assert str(eval(promise[1], names)) == promise[2], f"{path.name}: {promise[0]}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_pictures_are_true(path):
    """A text block of a pattern and its picture: the first line is the pattern, the rest is what it draws."""
    for line, text in blocks(path, "text"):
        first, *picture = text.rstrip("\n").split("\n")
        if picture and set("".join(picture)) <= set("■·"):
            assert parse(first).draw(len(picture)).split("\n") == picture, f"{path.name}:{line}"


def test_there_are_pictures():
    assert sum(len(blocks(path, "text")) for path in DOCUMENTS) >= 5


def test_the_table_is_up_to_date():
    done = subprocess.run([sys.executable, ROOT / "docs" / "table.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}run: make docs-table"
    assert catalogue.markdown_table() in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        if not target.startswith("https://"):
            assert (path.parent / target).exists(), f"{path.name} points to {target}"
