"""Some of the cases of `make fuzz`: damaged and hostile run directories give typed errors, in bounded memory and time."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_damaged_runs_give_typed_errors():
    """In a process of its own, which forks before it has threads."""
    script = Path(__file__).parent / "fuzz_runs.py"
    done = subprocess.run([sys.executable, script, "--cases", "150", "--seed", "1"], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
