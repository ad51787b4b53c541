"""One folder for all journeys of a module: what one leaves, the next may use."""

import contextlib
import io
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from regard.cli import main


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


class Terminal:
    """The command line in a folder of its own. PyTorch takes seconds to import, so most commands share this process; `process` starts one."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __call__(self, *arguments: str, code: int = 0, given: str = "", process: bool = False) -> Done:
        """Run `regard ARGUMENTS`; the exit code is checked, and nothing may end in a traceback."""
        done = self._start(arguments, given) if process else self._run(arguments, given)
        assert done.returncode == code, f"regard {' '.join(arguments)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        if code == 2:
            assert done.stdout == "" and done.stderr.splitlines()[-1].startswith("regard: "), done.stderr
        return done

    def _start(self, arguments: tuple[str, ...], given: str) -> Done:
        command = [sys.executable, "-m", "regard", *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=120, input=given)
        return Done(done.returncode, done.stdout, done.stderr)

    def _run(self, arguments: tuple[str, ...], given: str) -> Done:
        out, err, stdin, where = io.StringIO(), io.StringIO(), sys.stdin, Path.cwd()
        os.chdir(self.folder)
        sys.stdin = io.StringIO(given)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = main(arguments)
        finally:
            sys.stdin = stdin
            os.chdir(where)
        return Done(code, out.getvalue(), err.getvalue())

    def write(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text, encoding="utf-8", newline="")
        return name


@pytest.fixture(scope="module")
def regard(tmp_path_factory):
    folder = tmp_path_factory.mktemp("journey")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder / "cache"), "COLUMNS": "80", "NO_COLOR": "1"}.items():
            patch.setenv(name, value)
        yield Terminal(folder)
