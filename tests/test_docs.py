"""The documents: every snippet runs, every picture is what its pattern draws, tables are up to date, links and commands exist."""

import re
import shlex
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from regard import MECHANISMS, Attention, Facts, Pattern, State
from regard.cli import COMMANDS, load_command
from regard.models import MODELS
from regard.patterns import parse
from regard.tasks import TASKS

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "docs" / "extend").glob("*.md"))
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *EXAMPLES,
]
LINKED = [
    *DOCUMENTS,
    *(ROOT / name for name in ("AGENTS.md", "CHANGELOG.md", "LOG.md", "SECURITY.md", "llms.txt")),
    *sorted((ROOT / "docs" / "log").glob("*.md")),
]
NAMES = [path.name for path in DOCUMENTS]
NEEDS = {
    "transformers-attention.md": "transformers",
    "checkpoints.md": "transformers",
}  # packages that a document is about, and that the library does without


def blocks(path: Path, language: str) -> list[tuple[int, str]]:
    """(line, text) of each block of a language."""
    text = path.read_text(encoding="utf-8")
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, block.start()) + 2, block[1]) for block in found]


def run_snippets(path: Path) -> None:
    """In order, in one namespace: as one who pastes them does. `x  # → y` promises that x prints as y."""
    names: dict[str, object] = {"__name__": "document"}
    for line, text in blocks(path, "python"):
        exec(compile("\n" * (line - 1) + text, str(path), "exec"), names)
        for promise in re.finditer(r"^(.+?)  # → (.+)$", text, re.MULTILINE):
            assert str(eval(promise[1], names)) == promise[2], f"{path.name}: {promise[0]}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_snippets_run(path, tmp_path, monkeypatch):
    if path.name in NEEDS:
        pytest.importorskip(NEEDS[path.name], reason=f"{path.name} is about {NEEDS[path.name]}")
    monkeypatch.chdir(tmp_path)
    run_snippets(path)


def test_every_kind_of_part_has_an_example():
    assert {path.stem for path in EXAMPLES} >= {"mechanism", "model", "recipe", "pattern", "family"}
    assert all(blocks(path, "python") for path in EXAMPLES)
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert all(f"docs/extend/{path.name}" in contributing for path in EXAMPLES)


def test_the_front_pages_count_right():
    for name in ("README.md", "llms.txt", "pyproject.toml", "CITATION.cff"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert f"{len(MECHANISMS)} attention mechanisms" in text, f"{name}: there are {len(MECHANISMS)} mechanisms"
        for number in re.findall(r"(\d+) published models", text):
            assert int(number) == len(MODELS), f"{name}: there are {len(MODELS)} models"


def test_contributing_is_short():
    assert len((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()) <= 80


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_pictures_are_true(path):
    """A text block of a pattern and its picture: the first line is the pattern, the rest is what it draws."""
    for line, text in blocks(path, "text"):
        first, *picture = text.rstrip("\n").split("\n")
        if picture and set("".join(picture)) <= set("■·"):
            assert parse(first).draw(len(picture)).split("\n") == picture, f"{path.name}:{line}"


def test_there_are_pictures():
    assert sum(len(blocks(path, "text")) for path in DOCUMENTS) >= 5


def test_the_tables_are_up_to_date():
    done = subprocess.run([sys.executable, ROOT / "docs" / "table.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}run: make docs-table"


def test_every_mechanism_has_one_row_in_a_family_of_its_kind():
    text = (ROOT / "docs" / "mechanisms.md").read_text(encoding="utf-8")
    for mechanism in MECHANISMS:
        assert text.count(f"\n| `{mechanism.facts.name}` |") == 1
        assert mechanism.facts.paper.title in text
    for table in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        assert len({line.replace("\\|", "").count("|") for line in table.splitlines()}) == 1, table


@pytest.mark.parametrize("kind", [Facts, Attention, State, Pattern], ids=lambda kind: kind.__name__)
def test_the_contract_page_names_every_public_member(kind):
    text = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8")
    members = set(kind.__dataclass_fields__) if kind is Facts else {name for name in vars(kind) if not name.startswith("_")}
    for name in members - {"grows", "extra_repr"}:  # `grows` is for those who write a state; `extra_repr` is nn.Module's
        assert re.search(rf"`{name}\b", text), f"docs/contract.md does not mention {kind.__name__}.{name}"


@pytest.mark.parametrize("path", LINKED, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        if not target.startswith("https://"):
            assert (path.parent / target).exists(), f"{path.name} points to {target}"


def test_documents_named_in_the_source_exist():
    for path in (ROOT / "src").rglob("*.py"):
        for name in re.findall(r"docs/[\w-]+\.md", path.read_text(encoding="utf-8")):
            assert (ROOT / name).exists(), f"{path.relative_to(ROOT)} points to {name}"


# -- commands ----------------------------------------------------------------------------------------------------------


def option_names(kind: object) -> set[str]:
    """The options that a dataclass becomes on the command line, those of its fields' dataclasses included."""
    names = set()
    for field in fields(kind):  # type: ignore[arg-type]
        inner = field.default_factory if is_dataclass(field.default_factory) else None
        names |= option_names(inner) if inner is not None else {f"--{field.name.replace('_', '-')}"}
    return names


def options_of(command: str, task: str) -> set[str]:
    """All options of `regard COMMAND`; of `regard train TASK` those of that task, of commands on a run those of any task."""
    kinds = [load_command(command)]
    for each in TASKS:
        if command == "train" and task == each.name:
            kinds.append(each.Options)
        kinds += {"evaluate": [each.EvaluateOptions], "predict": [each.PredictOptions], "look": [each.LookOptions]}.get(command, [])
    return set().union(*map(option_names, kinds))


def commands() -> list[tuple[str, list[str]]]:
    """(where, arguments) of every line `regard …` in the shell blocks of the documents."""
    found = []
    for path in DOCUMENTS:
        for line, text in blocks(path, "sh"):
            joined = text.replace("\\\n", " ")  # a command may go on in the next line
            for number, words in enumerate(shlex.split(one, comments=True) for one in joined.splitlines()):
                if "regard" in words[:2]:
                    found.append((f"{path.name}:{line + number}", words[words.index("regard") + 1 :]))
    return found


@pytest.mark.parametrize(("where", "arguments"), commands(), ids=lambda x: x if isinstance(x, str) else "")
def test_commands_exist_with_their_options(where, arguments):
    assert arguments[0] in COMMANDS, where
    known = options_of(arguments[0], arguments[1] if len(arguments) > 1 else "")
    for option in (word.replace("--no-", "--") for word in arguments if word.startswith("--")):
        assert option in known, f"{where}: regard {arguments[0]} has no option {option}"
