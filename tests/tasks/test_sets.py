"""What the task sets does beyond the contract of all tasks: every generated source, every kind of target, baselines, names of its maps."""

import json

import numpy as np
import pytest
import torch

from regard.errors import BadFile, NotSupported
from regard.tasks import SetsOptions, SetsTask, attention_maps, evaluate, load_run, predict, task_of, train

SMALL = {"width": 8, "heads": 2, "depth": 1}


def trained(out, steps=2, settings=SMALL, **options):
    given = SetsOptions(batch_size=16, shares=(0.1, 0.1), **options)
    train("sets", given, SetsTask.default_train.replace(steps=steps, schedule="constant"), out, settings=settings, progress=False)
    return load_run(out)


SOURCES = {
    "max:10,count=100": ("mae", {"median", "linear in the mean and the number of items"}),
    "unique:5,count=100": ("accuracy", {"median", "linear in the mean and the number of items"}),
    "odd:4,count=300": ("accuracy", {"chance", "the item farthest from the mean"}),
    "clusters:2,count=60": ("log_likelihood", {"one Gaussian per set", "EM with 2 components, 10 restarts"}),
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_generated_source_is_trained_and_measured(source, tmp_path):
    metric, baselines = SOURCES[source]
    run = trained(tmp_path, data=source, components=2)
    report = evaluate(run)
    assert np.isfinite(report.metrics[metric]) and report.details["baselines"].keys() == baselines
    task = task_of(run)
    text = task.own_input()
    (found,) = predict(run, [text])
    assert found.text and json.dumps(found.values)
    assert (".png" in found.files) == (task.kind == "clusters")
    _, maps = attention_maps(run, text)
    items = len(json.loads(text))
    assert all(len(m.labels()[1]) == items for m in maps.all) and not any(name.startswith("decoder") for name in maps)
    assert maps.points is None if source.startswith("odd") else np.shape(maps.points) == (items, 2)
    _, everything = attention_maps(run, text, "*")
    assert any(name.startswith("decoder") for name in everything) == (task.kind != "index")


def test_inducing_points_and_seeds_are_named(tmp_path):
    run = trained(tmp_path, data="max:5,count=60", settings={**SMALL, "encoder": "isab", "points": 3, "seeds": 2})
    _, maps = attention_maps(run, "[1, 2, 3, 4]")
    named = {m.layer: [side[0] for side in m.labels()] for m in maps.all}
    assert named == {
        "encoder.0.gather.cross.attention": ["inducing point 0", "1"],
        "encoder.0.spread.cross.attention": ["1", "inducing point 0"],
        "pool.cross.cross.attention": ["seed 0", "1"],
    }


def test_baselines_are_what_they_say(tmp_path):
    """The item farthest from the mean, and a linear fit to numbers that are linear, are right; the median has the least absolute error."""
    generator, task = np.random.default_rng(0), SetsTask(SetsOptions(shares=(0.1, 0.1)))
    rows = [generator.normal(size=(4, 2)).tolist() for _ in range(50)]
    path = tmp_path / "sets.jsonl"
    path.write_text("".join(json.dumps({"set": row, "y": float(np.mean(row, 0) @ [2, -1] + 3)}) + "\n" for row in rows))
    task = SetsTask(SetsOptions(data=str(path)))
    data = task.read()
    task.processor = task.make_processor(data, None)
    found = task.baselines(data.train, data.train)
    assert found["linear in the mean and the number of items"]["mae"] < 1e-5
    y = np.array([one.target for one in data.train])
    assert found["median"]["mae"] == pytest.approx(min(np.abs(y - c).mean() for c in y)) and "accuracy" not in found["median"]
    path.write_text("".join(json.dumps({"set": [[9, 9], *row], "y": 0}) + "\n" for row in rows))
    task = SetsTask(SetsOptions(data=str(path), target="index"))
    data = task.read()
    task.processor = task.make_processor(data, None)
    assert task.baselines(data.train, data.valid) == {"chance": {"accuracy": 0.2}, "the item farthest from the mean": {"accuracy": 1.0}}


def test_the_loss_of_clusters_is_the_density_in_other_units(tmp_path):
    run = trained(tmp_path, data="clusters:2,count=60", components=2)
    metrics = evaluate(run).metrics
    std = torch.tensor(run.processor.std)
    assert metrics["log_likelihood"] == pytest.approx(-metrics["loss"] - float(std.log().sum()), abs=1e-4)


def test_labels_and_an_unknown_one(tmp_path):
    path = tmp_path / "sets.jsonl"
    rows = [{"set": [[n % 2, 1], [n, 2]], "y": "odd" if n % 2 else "even"} for n in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = trained(tmp_path / "run", data=str(path))
    assert run.processor.labels == ("even", "odd")
    (found,) = predict(run, ["[[0, 1], [6, 2]]"])
    assert found.values["label"] in ("even", "odd") and sum(found.values["most_likely"].values()) == pytest.approx(1)
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({"set": [[1, 2]], "y": "neither"}) + "\n")
    assert evaluate(run, str(other)).metrics["accuracy"] == 0.0
    other.write_text(json.dumps({"set": [[1, 2, 3]], "y": "odd"}) + "\n")
    with pytest.raises(BadFile, match=r"other.jsonl, line 1: items of another width \(3 numbers per item, the first set has 2\)"):
        evaluate(run, str(other))


@pytest.mark.parametrize(
    ("text", "says"), [("[[1, 2]]", "another width"), ("[]", "an empty set"), ("hello", "not JSON"), ("7", "no list of items")]
)
def test_an_input_that_is_no_set_is_refused(text, says, tmp_path_factory, numbers):
    with pytest.raises(NotSupported, match=says):
        predict(numbers, [text])


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("numbers") / "run", data="max:5,count=60")


def test_a_set_may_be_written_as_in_the_data_and_be_of_one(numbers):
    one, two = predict(numbers, ["[3, 4]", '{"set": [[4], [3]], "y": 4}'])
    assert one.values["y"] == pytest.approx(two.values["y"], abs=1e-4)
    assert np.isfinite(predict(numbers, ["[3]"])[0].values["y"])


def test_a_run_of_another_kind_is_not_continued(numbers, tmp_path):
    options = SetsTask.default_train.replace(steps=1)
    with pytest.raises(NotSupported, match="target of the kind number"):
        train("sets", SetsOptions(data="odd:3,count=60"), options, tmp_path / "run", init_from=numbers.folder, progress=False)
