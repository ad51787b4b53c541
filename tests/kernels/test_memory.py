import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import torch
from regard.kernels import keep_memory

if sys.argv[1] == "kept" and not keep_memory():
    sys.exit(3)
x = torch.ones(2**24)  # 64 MiB
for _ in range(8):
    x = x + 1
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(8):
    x = x + 1
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_large_tensors_take_memory_that_is_there():
    faults = {}
    for how in ("kept", "given back"):
        done = subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=False)
        if done.returncode == 3:
            pytest.skip("this C library has no mallopt, or does not do as told")
        assert done.returncode == 0, done.stderr
        faults[how] = int(done.stdout)
    assert faults["kept"] < faults["given back"] / 2
