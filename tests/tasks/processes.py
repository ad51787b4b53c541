"""Training on two processes against training on one."""

import subprocess
import sys

import torch

from regard.cli import main
from regard.tasks import load_run


def check_two_processes(argv, folder):
    """Train on one process and on two, compare the parameters, and return what the latter printed."""
    assert main([*argv, "--out", str(folder / "1")]) == 0
    command = [sys.executable, "-m", "regard", *argv, "--out", str(folder / "2"), "--nproc-per-node", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    found = load_run(folder / "2").model.state_dict()
    for name, one in load_run(folder / "1").model.state_dict().items():
        two = found[name]
        if name.endswith("qkv.bias"):  # the gradient of a key's bias is nothing but rounding, which Adam makes as large as any
            one, two = (torch.cat([x.chunk(3)[0], x.chunk(3)[2]]) for x in (one, two))
        torch.testing.assert_close(two, one, atol=1e-5, rtol=1e-4)
    return done.stdout
