"""docs/promises.md names tests that exist: every file, every function in it, every target of make."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
ROWS = [line for line in TEXT.splitlines() if line.startswith("|") and not line.startswith(("| promise", "|---"))]


def test_every_promise_names_a_test():
    assert len(ROWS) >= 20
    for row in ROWS:
        tested = row.split(" | ")[-1]
        assert re.search(r"`(tests/|make |regard check)|the same", tested), row


def test_what_is_named_exists():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for row in ROWS:
        source = ""
        for name in re.findall(r"`([^`]+)`", row.split(" | ")[-1]):
            if name.startswith("tests/"):
                assert (ROOT / name).is_file(), name
                source = (ROOT / name).read_text(encoding="utf-8")
            elif name.startswith("test_"):
                assert re.search(rf"^def {name}\(", source, re.MULTILINE), f"{name} is not in the file named before it"
            elif name.startswith("make "):
                assert name.removeprefix("make ") in targets, name
    for target in re.findall(r"`make ([a-z]+)`", TEXT):
        assert target in targets
