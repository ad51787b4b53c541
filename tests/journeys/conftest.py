"""One folder for all journeys of a session: what one leaves, the next may use."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


class Terminal:
    """The real command line in a folder of its own, in processes of their own, as a user starts it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.environment = os.environ | {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder / "cache"), "COLUMNS": "80", "NO_COLOR": "1"}

    def __call__(self, *arguments: str, code: int = 0, given: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run `regard ARGUMENTS`; the exit code is checked, and nothing may end in a traceback."""
        done = subprocess.run(
            [sys.executable, "-m", "regard", *arguments],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120, input=given or "",
        )  # fmt: skip
        assert done.returncode == code, f"regard {' '.join(arguments)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        if code == 2:
            assert done.stdout == "" and done.stderr.splitlines()[-1].startswith("regard: "), done.stderr
        return done

    def write(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text, encoding="utf-8", newline="")
        return name


@pytest.fixture(scope="module")
def regard(tmp_path_factory) -> Terminal:
    return Terminal(tmp_path_factory.mktemp("journey"))
