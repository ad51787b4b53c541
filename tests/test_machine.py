"""What the machine can do: what the bfloat16 probe concludes from its child process and stores; the allocator; `environment`."""

import json
import signal
import subprocess
import sys

import pytest

from regard import kernels, machine
from regard.machine import CAP, bf16, cache_file

GOOD = {name: {"error": 0.003, "speed": 3.0} for name in ("matmul", "linear", "attention")}
SLOW = GOOD | {"matmul": {"error": 0.003, "speed": 0.002}}
WRONG = GOOD | {"attention": {"error": float("nan"), "speed": 3.0}}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(CAP[0], raising=False)


def children(monkeypatch, plain, capped=None):
    """Children that answer without being started; returns the list of what each was given."""
    given = []

    def child(extra):
        given.append(extra)
        return capped if extra else plain

    monkeypatch.setattr(machine, "_run_child", child)
    return given


@pytest.mark.parametrize(
    ("plain", "capped", "expected", "words"),
    [
        (GOOD, None, (True, True, False), "works, at least 3.0× as fast"),
        (SLOW, None, (True, False, False), "works, but slower than float32: not used"),
        (-signal.SIGILL, GOOD, (True, True, True), f"works only with {CAP[0]}={CAP[1]}"),
        (-signal.SIGILL, SLOW, (True, False, True), "slower than float32"),
        (-signal.SIGILL, -signal.SIGILL, (False, False, False), "crashes (SIGILL)"),
        (WRONG, None, (False, False, False), "results are wrong"),
        (1, None, (False, False, False), "could not be tried"),
    ],
)
def test_conclusions(monkeypatch, plain, capped, expected, words):
    children(monkeypatch, plain, capped)
    answer = bf16()
    assert (answer.usable, answer.faster, answer.needs_cap) == expected
    assert words in answer.note


def test_asked_once_then_kept(monkeypatch):
    given = children(monkeypatch, SLOW)
    first = bf16()
    assert bf16() == first and len(given) == 1
    assert bf16(refresh=True) == first and len(given) == 2


def test_a_cap_set_by_the_user_is_another_question(monkeypatch):
    given = children(monkeypatch, -signal.SIGILL, GOOD)
    assert bf16().needs_cap
    monkeypatch.setenv(*CAP)
    assert not bf16().usable and len(given) == 3  # tried as it is, and no second cap over the first


def test_failures_to_start_are_not_kept(monkeypatch):
    given = children(monkeypatch, 1)
    bf16()
    bf16()
    assert len(given) == 2 and not cache_file().exists()


@pytest.mark.parametrize("content", ["", "[]", "{", '{"x": 3}'])
def test_a_damaged_cache_is_ignored(monkeypatch, content):
    given = children(monkeypatch, GOOD)
    cache_file().parent.mkdir(parents=True)
    cache_file().write_text(content)
    assert bf16().faster and len(given) == 1
    entry = json.loads(cache_file().read_text())
    cache_file().write_text(json.dumps({key: {"usable": "yes"} for key in entry}))
    assert bf16().faster and len(given) == 2


def test_an_unwritable_cache_is_tolerated(monkeypatch, tmp_path):
    children(monkeypatch, GOOD)
    (tmp_path / "regard").write_text("a file where the folder should be")
    assert bf16().faster


def test_relative_cache_paths_are_ignored(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert cache_file().is_absolute()


def test_the_child_is_a_process_whose_death_is_survived(monkeypatch):
    monkeypatch.setattr(machine, "CHILD", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    assert bf16().note.startswith("crashes")
    monkeypatch.setattr(machine, "CHILD", "import time; time.sleep(60)")
    monkeypatch.setattr(machine, "TIMEOUT", 0.2)
    assert "could not be tried" in bf16(refresh=True).note


def test_the_real_probe():
    answer = bf16()
    assert answer.note and "could not be tried" not in answer.note
    assert answer.usable or not answer.faster


def test_importing_asks_nothing(tmp_path):
    subprocess.run([sys.executable, "-c", "import regard"], check=True)
    assert not cache_file().exists()


def test_forms_name_what_is_live():
    assert kernels.forms()["tile"] in ("fused", "plain")


KEEPING = """
import resource, sys
import torch
from regard.machine import keep_memory

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
def test_large_tensors_reuse_freed_memory():
    faults = {}
    for how in ("kept", "given back"):
        done = subprocess.run([sys.executable, "-c", KEEPING, how], capture_output=True, text=True, check=False)
        if done.returncode == 3:
            pytest.skip("this C library has no mallopt, or refuses")
        assert done.returncode == 0, done.stderr
        faults[how] = int(done.stdout)
    assert faults["kept"] < faults["given back"] / 2


def test_the_environment_is_plain_values(monkeypatch):
    children(monkeypatch, GOOD)
    found = machine.environment()
    assert json.loads(json.dumps(found)) == found and found["cpu"]["model"] and found["bfloat16"]["usable"]
