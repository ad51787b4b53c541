"""Two processes do what one does: same steps, same gradients, same weights; what one cannot take, none takes."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from together import TOGETHER, lines, run, same

from regard.errors import BadConfig
from regard.train import distributed, launch, launcher

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    out = tmp_path_factory.mktemp("alone")
    run(out)
    return out


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """Two launches: in the first a process is asked to stop; the second goes on from there, then does what else there is to see."""
    paths = [str(HERE), str(HERE.parent.parent / "src"), os.environ.get("PYTHONPATH", "")]
    out = tmp_path_factory.mktemp("together")
    plain, spoiled, broken = (str(out / name) for name in ("plain", "spoiled", "broken"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        first = launch(2, [str(HERE / "together.py"), plain, "stopped"], threads=1)
        steps = len(lines(out / "plain", "train"))
        second = launch(2, [str(HERE / "together.py"), plain, "plain", spoiled, "spoiled", broken, "broken"], threads=1)
    return {"codes": (first, second), "steps": steps, "out": out}


def test_asked_of_one_all_stop_and_the_code_says_so(together):
    assert together["codes"][0] == 143
    assert together["steps"] == 3


def test_two_are_one_even_when_stopped_between(together, alone):
    """Seven batches, two to a step: at the end of an epoch one process has nothing to do. Dropout is on."""
    out = together["out"] / "plain"
    same(alone, out)
    ours, theirs = lines(out, "train"), lines(alone, "train")
    assert [line["step"] for line in ours] == list(range(1, 13)) and len(theirs) == 12
    for one, two in zip(ours, theirs, strict=True):
        assert one.pop("event") == two.pop("event") and one == pytest.approx(two, rel=1e-12)  # the norm too: Adam would hide a factor
    assert [line["error"] for line in lines(out, "evaluation")] == pytest.approx([line["error"] for line in lines(alone, "evaluation")])


def test_what_one_cannot_take_none_takes(together):
    out = together["out"] / "spoiled"
    assert [(line["step"], line["reason"]) for line in lines(out, "skip")] == [(3, "not finite")]
    assert all(x.isfinite().all() for x in load_file(out / "model.safetensors").values())


def test_when_one_fails_all_end(together):
    assert together["codes"][1] == 1
    assert not lines(together["out"] / "broken", "final")


def test_shares_cover_every_batch_once():
    for of in (1, 2, 3, 4):
        for size in (1, 2, 5, 8):
            group = list("abcdefgh"[:size])
            shares = [distributed.share(group, mine, of) for mine in range(of)]
            assert len({len(share) for share in shares}) == 1
            counted = sorted((place, item) for share in shares for place, item, counts in share if counts)
            assert counted == list(enumerate(group))


def test_alone_everything_is_trivial():
    assert (distributed.world(), distributed.rank(), distributed.sums([1, 2.5])) == (1, 0, [1, 2.5])
    distributed.barrier()


def test_the_group_is_left_when_no_reducer_holds_it(tmp_path, monkeypatch):
    """Its destructor would join a thread that waits for the interpreter lock, which it holds."""
    from torch import distributed as dist

    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(distributed, "world", lambda: 2)
            wrapped = distributed.parallel(torch.nn.Linear(2, 2))
        assert wrapped.reducer is not None
        distributed.release(wrapped)
        distributed.release(torch.nn.Linear(2, 2))  # of one process there is nothing to release
        assert not any("Reducer" in type(part).__name__ or "Logger" in type(part).__name__ for part in vars(wrapped).values())
    finally:
        dist.destroy_process_group()


def test_more_processes_than_batches_per_step(alone, tmp_path):
    """A run of one process with two batches per step goes on with three: its steps stay what they were, and one process is idle."""
    out = tmp_path / "run"
    run(out, config=TOGETHER.replace(epochs=2))
    paths = [str(HERE), str(HERE.parent.parent / "src"), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        assert launch(3, [str(HERE / "together.py"), str(out), "plain"], threads=1) == 0
    ours, theirs = lines(out, "train"), lines(alone, "train")
    assert [line["tokens"] for line in ours] == [line["tokens"] for line in theirs] and len(ours) == 12
    assert [line["loss"] for line in ours] == pytest.approx([line["loss"] for line in theirs], rel=1e-12)


def test_processes_on_the_cpu_of_a_machine_with_a_gpu(alone, tmp_path, monkeypatch):
    """Their numbers are added up by gloo; NCCL takes no tensor of the CPU."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(HERE.parent.parent / "src")]))
    monkeypatch.setenv("GPU", "1")
    assert launch(2, [str(HERE / "together.py"), str(tmp_path / "run"), "plain"], threads=1) == 0
    same(alone, tmp_path / "run")


def test_at_least_one_process():
    with pytest.raises(BadConfig, match="at least 1"):
        launch(0, [])


CHILD = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {2, 15})
os.write(1, b"ready\\n")
number = signal.sigwait({signal.SIGINT, signal.SIGTERM})
os.write(1, b"got %d\\n" % number)
sys.exit(128 + number)
"""
ORPHAN = """
import os, time
from regard.train.launcher import stop_with_launcher
stop_with_launcher()
print(os.getpid(), flush=True)
time.sleep(500)
"""


@contextmanager
def launched(tmp_path, child):
    """A launcher of two processes, in a process group of its own."""
    (tmp_path / "child.py").write_text(child)
    command = f"import sys; from regard.train import launch; sys.exit(launch(2, [{str(tmp_path / 'child.py')!r}]))"
    process = subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize(("kill", "number"), [(os.killpg, signal.SIGINT), (os.kill, signal.SIGTERM)], ids=["Ctrl-C", "asked to end"])
def test_signals_are_passed_on_once_and_the_code_names_them(tmp_path, number, kill):
    with launched(tmp_path, CHILD) as process:
        assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        kill(process.pid, number)
        assert process.wait(300) == 128 + number
        assert process.stdout.read() == f"got {int(number)}\n" * 2


def test_processes_end_when_their_launcher_is_killed(tmp_path):
    with launched(tmp_path, ORPHAN) as process:
        children = [int(process.stdout.readline()) for _ in range(2)]
        process.kill()
        process.wait(300)
        deadline = time.monotonic() + 300
        while any(Path(f"/proc/{pid}").exists() for pid in children):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_one_that_hangs_ends_with_the_one_that_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(launcher, "GRACE", 0.2)
    (tmp_path / "child.py").write_text("import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(7)\ntime.sleep(500)")
    assert launch(2, [str(tmp_path / "child.py")]) == 7


def test_what_launching_changes_is_put_back(tmp_path):
    (tmp_path / "child.py").write_text("import os, sys; sys.exit(3 + int(os.environ['OMP_NUM_THREADS']))")
    before = dict(os.environ), signal.getsignal(signal.SIGINT)
    assert launch(1, [str(tmp_path / "child.py")], threads=2) == 5
    assert (dict(os.environ), signal.getsignal(signal.SIGINT)) == before
