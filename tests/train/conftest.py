"""The tiny task is beside the tests; they and the processes they start import it from here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


@pytest.fixture(scope="session")
def child():
    """Run a script of this folder as a process of its own with one thread."""

    def start(*argv, **environment):
        paths = [str(HERE), str(HERE.parent.parent / "src"), os.environ.get("PYTHONPATH", "")]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1", **environment}
        return subprocess.Popen([sys.executable, *map(str, argv)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return start
