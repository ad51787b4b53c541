"""The child process: whatever happens in it, the parent hears of it and goes on."""

import pytest

from regard.compare import Child, measure
from regard.errors import ChildFailed

MODULE = """
import os, time
import torch
from regard.compare.measure import peak_memory
from regard.errors import ShapeError

def double(x):
    print("this must not get between the answers")
    return 2 * x

def refuses():
    raise ShapeError("too long")

def breaks():
    raise KeyError("missing")

def dies():
    os.abort()

def leaves():
    os._exit(7)

def sleeps():
    time.sleep(1000)

def takes(mib):
    return peak_memory(lambda: torch.ones(mib, 2**18))

def threads():
    return torch.get_num_threads()
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_functions.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return "own_functions"


def test_one_life(own):
    with Child(threads=1, memory=512) as child:
        assert child.call(f"{own}:double", 600, x=[1, "a"]) == [1, "a", 1, "a"]
        assert child.call(f"{own}:threads", 600) == 1
        assert 60 <= child.call(f"{own}:takes", 600, mib=64) < 80
        assert 28 <= child.call(f"{own}:takes", 600, mib=32) < 48  # the peak before is forgotten
        for name, kind, says in (("refuses", "refused", "too long"), ("breaks", "failed", "KeyError: 'missing'")):
            with pytest.raises(ChildFailed, match=says) as failure:
                child.call(f"{own}:{name}", 600)
            assert failure.value.kind == kind
        with pytest.raises(ChildFailed, match="memory") as failure:
            child.call(f"{own}:takes", 600, mib=4096)
        assert failure.value.kind == "memory"
        assert child.call(f"{own}:double", 600, x=3) == 6  # it lives on after all that
        with pytest.raises(ChildFailed, match=r"0\.5 s") as failure:
            child.call(f"{own}:sleeps", 0.5)
        assert failure.value.kind == "time"
        with pytest.raises(ChildFailed, match="SIGABRT") as failure:  # in a second process
            child.call(f"{own}:dies", 600)
        assert failure.value.kind == "died"


def test_one_that_cannot_start(monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('broken')")
    monkeypatch.syspath_prepend(tmp_path)
    with Child() as child:
        for _ in range(2):  # it is tried again, and says so again
            with pytest.raises(ChildFailed, match="ended with code 1: ImportError: broken") as failure:
                child.call("statistics:mean", 600, data=[1, 2])
            assert failure.value.kind == "died"


def test_memory_where_there_is_no_proc(monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "CLEAR", tmp_path / "missing" / "clear_refs")
    kept: list[bytearray] = []
    seen = measure.peak_memory(lambda: kept.append(bytearray(64 * 2**20)))
    assert seen is None or seen > 0  # only what exceeds the peak of the whole life is seen
    monkeypatch.setattr(measure, "STATUS", tmp_path / "missing")
    measure.limit_memory(1.0)  # nothing happens
