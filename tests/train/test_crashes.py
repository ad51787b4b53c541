"""Killed anywhere and resumed, a run ends as if it had been left alone: every weight, every counter, every line of the log."""

import json
from pathlib import Path

import crashes
import pytest


@pytest.fixture(scope="module")
def runs(tmp_path_factory, child):
    process = child(Path(__file__).parent / "crashes.py", tmp_path_factory.mktemp("runs"))
    out, err = process.communicate(timeout=500)
    assert process.returncode == 0, err
    return {run["name"]: run for run in map(json.loads, out.splitlines())}


def as_if_left_alone(runs, name):
    assert runs[name]["again"] == 0
    assert runs[name]["sums"] == runs["left alone"]["sums"]
    assert runs[name]["lines"] == runs["left alone"]["lines"]


def test_the_run_itself_is_not_trivial(runs):
    lines = runs["left alone"]["lines"]
    assert [line["step"] for line in lines if line["event"] == "train"] == [*range(2, 22, 2), 21]
    assert [line["step"] for line in lines if line["event"] == "evaluation"] == [5, 10, 15, 20, 21]
    assert {"model.safetensors", "optimizer.safetensors", "ema.safetensors", "ring.safetensors", "best.safetensors"} <= set(
        runs["left alone"]["sums"]
    )


@pytest.mark.parametrize("name", crashes.KILLS)
def test_killed_and_resumed(runs, name):
    assert runs[name]["code"] == -9  # it was killed, by the signal nobody can catch
    as_if_left_alone(runs, name)


def test_a_killed_export_leaves_nothing_or_all(runs):
    cases = runs["exports"]["cases"]
    assert len(cases) == 4 * runs["exports"]["calls"] > 40
    assert sum(case["code"] == -9 for case in cases) > len(cases) * 0.9  # not at calls that fail, or that only a new folder needs
    assert {case["found"] for case in cases} == {"nothing", "all"} and {case["again"] for case in cases} == {"all"}
    assert not any(case["left"] for case in cases if case["found"] == "nothing")


def test_there_are_enough_places():
    assert len(crashes.KILLS) >= 12


def test_one_run_killed_many_times(runs):
    name = "one run, killed and killed again"
    assert runs[name]["codes"] == [-9] * len(crashes.ONE_RUN)
    as_if_left_alone(runs, name)


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129), ("SIGINT", 130), ("SIGINT twice at once", 130)])
def test_asked_to_stop_it_finishes_the_step_and_saves(runs, name, code):
    assert runs[name]["code"] == code
    assert runs[name]["kept"][-1] == 8  # not a step of the schedule of saving, which is every third
    as_if_left_alone(runs, name)


def test_asked_twice_it_goes_at_once(runs):
    assert runs["SIGTERM twice"]["code"] == 143
    assert runs["SIGTERM twice"]["kept"][-1] == 6
    as_if_left_alone(runs, "SIGTERM twice")
