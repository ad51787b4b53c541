"""Runs that were written by each version of the format still load, evaluate and resume; and the format does not change in silence."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

sys.path.insert(0, str(Path(__file__).parent))
import make

from regard.runs import FORMAT, find_runs
from regard.tasks import evaluate, load_run, predict, train
from regard.train import read_metrics

HERE = Path(__file__).parent
VERSIONS = sorted(HERE.glob("format-*"))
GOLDEN = [(version.name, name) for version in VERSIONS for name in make.TASKS if (version / name).is_dir()]


@pytest.fixture(params=GOLDEN, ids="/".join)
def golden(request, tmp_path, monkeypatch):
    """A copy of one, beside its data, as the present folder."""
    version, name = request.param
    shutil.copytree(HERE / version, tmp_path / version)
    monkeypatch.chdir(tmp_path / version)
    return Path(name)


def test_it_loads_evaluates_and_predicts(golden):
    run = load_run(golden)
    final = read_metrics(golden, "final")[-1]
    assert evaluate(run).metrics and predict(run, ["one"])[0].values
    assert run.task == golden.name and final["step"] == 4
    assert {one.state for one in find_runs(golden)} == {"finished"}


def test_it_resumes(golden):
    before = {path: path.read_bytes() for path in golden.rglob("*") if path.is_file()}
    result = train(golden.name, out=golden, resume=True, progress=False)
    assert (result.steps, result.metrics) == (4, {name: read_metrics(golden, "final")[-1][name] for name in result.metrics})
    kept = {path: path.read_bytes() for path in golden.rglob("*") if path.is_file() and "tokens" not in path.parts}
    assert kept == before  # nothing was left to do, so nothing was written
    stored = json.loads((golden / "config.json").read_text())["train"]
    more = make.TRAINING.replace(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()} | {"steps": 6}
    )
    assert train(golden.name, train_options=more, out=golden, resume=True, progress=False).steps == 6
    assert read_metrics(golden, "resume")[-1]["changed"] == {"steps": [4, 6]}


def form(run: Path) -> dict[str, object]:
    """Files, keys and tensors of a run: what a program that reads it relies on. Options have defaults, so they may come and not go."""
    found: dict[str, object] = {}
    for path in sorted(path for path in run.rglob("*") if path.is_file() and "tokens" not in path.parts):
        name = path.relative_to(run).as_posix()
        if path.suffix == ".safetensors":
            with safe_open(path, "pt") as file:
                found[name] = {key: (str(file.get_slice(key).get_dtype()), file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
        elif path.suffix == ".jsonl":
            found[name] = [sorted(line) for line in read_metrics(path)]
        elif path.stem in ("rng", "labels"):
            found[name] = None
        else:
            value = json.loads(path.read_text())
            found[name] = sorted(value) if isinstance(value, dict) else type(value).__name__
    return found


@pytest.mark.parametrize("name", make.TASKS)
def test_the_format_has_not_changed_in_silence(name, tmp_path):
    make.write_data(tmp_path)
    new, kept = form(make.make(tmp_path, name)), form(HERE / f"format-{FORMAT}" / name)
    new["state/step-00000004/config.json"] = kept["state/step-00000004/config.json"]  # options
    assert new == kept, (
        "the format differs: raise FORMAT in run_config.py, make new golden runs with tests/golden/make.py, and read the old ones too"
    )


def test_they_are_small():
    for version, name in GOLDEN:
        assert sum(path.stat().st_size for path in (HERE / version / name).rglob("*") if path.is_file()) < 50_000
    assert f"format-{FORMAT}" in {version.name for version in VERSIONS}
