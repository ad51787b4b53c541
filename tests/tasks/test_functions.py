"""What the task functions does beyond the contract of all tasks: known points, densities in the units of the data, baselines, pictures."""

import io
import math

import numpy as np
import pytest
import torch
from PIL import Image

from regard.baselines import Kernel
from regard.data.functions import Function
from regard.errors import BadConfig, NotSupported, UnknownName
from regard.models import Gaussian
from regard.tasks import FunctionsOptions, FunctionsTask, attention_maps, evaluate, load_run, predict, task_of, train
from regard.tasks.function_baselines import exact, function_baselines
from regard.tasks.function_processor import FunctionProcessor, arranged, collate, drawn
from regard.tasks.functions import moments
from regard.tasks.options.functions import BandOptions

SMALL = {"width": 8, "latent": 4}


def trained(out, data="gp:rbf,count=60,points=12", settings=None, **options):
    given = FunctionsOptions(data=data, batch_size=8, shares=(0.1, 0.1), **{"context": (2, 6), **options})
    short = FunctionsTask.default_train.replace(steps=2, schedule="constant")
    model = options.pop("model", None)
    train("functions", given, short, out, model=model, settings=settings or {**SMALL, "heads": 2}, progress=False)
    return load_run(out)


@pytest.fixture(scope="module")
def curves(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("curves") / "run")


def test_known_points_come_first_and_are_the_same_each_time():
    one = Function(np.arange(10, dtype=np.float32)[:, None], np.arange(10, dtype=np.float32)[:, None] ** 2, "")
    sizes = set()
    for n in range(40):
        a, b = arranged(one, n, (3, 7)), arranged(one, n, (3, 7))
        assert (a.x == b.x).all() and a.context == b.context and sorted(a.x[:, 0]) == list(range(10)) and (a.y == a.x**2).all()
        sizes.add(a.context)
        assert 3 <= drawn(one, (3, 7), 8, torch.Generator().manual_seed(n)).context <= 7
    assert sizes == {3, 4, 5, 6, 7} and arranged(one, 0, (30, 50)).context == 9  # something is left to predict
    short = drawn(one, (3, 50), 6, torch.Generator().manual_seed(0))
    assert len(short.x) == 6 and short.context <= 5


def test_moments_of_a_mixture():
    mean, std = torch.randn(2, 3, 4, 1).double(), 0.1 + torch.rand(2, 3, 4, 1).double()
    found = moments(Gaussian(mean, std))
    drawn_values = torch.cat([torch.randn(200_000, 1) * std[0, s, 0] + mean[0, s, 0] for s in range(3)])
    assert float(found.mean[0, 0]) == pytest.approx(float(drawn_values.mean()), abs=0.01)
    assert float(found.std[0, 0]) == pytest.approx(float(drawn_values.std()), abs=0.01)


def test_density_and_errors_are_in_the_units_of_the_data(tmp_path):
    """Values ten times as large have a density lower by log 10 and errors a hundred times as large; the loss is the same."""
    rows = ["task,x,y"]
    generator = np.random.default_rng(0)
    for n in range(40):
        rows += [f"{n},{x:.3f},{np.sin(3 * x + n):.4f}" for x in generator.uniform(-1, 1, 8)]
    (tmp_path / "one.csv").write_text("\n".join(rows) + "\n")
    larger = [rows[0], *(f"{a},{b},{10 * float(c):.3f}" for a, b, c in (row.split(",") for row in rows[1:]))]
    (tmp_path / "ten.csv").write_text("\n".join(larger) + "\n")
    one, ten = (
        evaluate(
            trained(tmp_path / name, str(tmp_path / f"{name}.csv"), valid=str(tmp_path / f"{name}.csv"), test=str(tmp_path / f"{name}.csv"))
        ).metrics
        for name in ("one", "ten")
    )
    assert ten["loss"] == pytest.approx(one["loss"], abs=1e-3)
    assert ten["log_density"] == pytest.approx(one["log_density"] - math.log(10), abs=1e-3)
    assert ten["mse"] == pytest.approx(100 * one["mse"], rel=1e-3) and ten["context_mse"] == pytest.approx(
        100 * one["context_mse"], rel=1e-3
    )


def test_the_exact_process_is_a_baseline_and_the_best(curves):
    report = evaluate(curves)
    baselines = report.details["baselines"]
    assert baselines.keys() == {"mean and deviation of the training values", "nearest known point", "exact Gaussian process"}
    ceiling = baselines["exact Gaussian process"]["log_density"]
    assert ceiling > max(report.metrics["log_density"], baselines["mean and deviation of the training values"]["log_density"])
    assert report.columns[-1] == "exact log_density" and sum(row[1] for row in report.rows) == report.details["functions"]


def test_the_exact_density_is_torchs():
    one = Function(np.array([[0.0], [0.5], [1.0]], np.float32), np.array([[1.0], [0.2], [-1.0]], np.float32), "", Kernel(noise=0.3), 2)
    x, y = torch.from_numpy(one.x).double(), torch.from_numpy(one.y).double()[:, 0]
    found = one.kernel.posterior(x[:2], y[:2], x[2:])
    expected = torch.distributions.Normal(found.mean_T, found.std_T).log_prob(y[2:]).item()
    assert exact(one)["log_density"] == pytest.approx(expected) and exact(one)["mse"] == pytest.approx(float((found.mean_T - y[2]) ** 2))
    processor = FunctionProcessor((0.5,), (0.5,), (0.0,), (1.0,), (0.0,), (1.0,))
    assert function_baselines(processor, [one])["nearest known point"]["mse"] == pytest.approx(1.44)


def test_predictions_are_at_the_places_asked_for_or_on_a_line(curves):
    (asked,) = predict(curves, ["0 1; 0.5 0.2; 1; 1.5"])
    assert asked.values["known"] == 2 and asked.values["x"] == [[1.0], [1.5]] and len(asked.text.splitlines()) == 2
    (line,) = predict(curves, ["0 1; 0.5 0.2"], BandOptions(kernel="rbf,length=0.4"))
    assert len(line.values["x"]) == 100 and Image.open(io.BytesIO(line.files[".png"])).format == "PNG"
    alone, beside = predict(curves, ["0 1; 1"])[0], predict(curves, ["1 1; 2 2; 3 3; 1", "0 1; 1"])[1]
    np.testing.assert_allclose(alone.values["mean"], beside.values["mean"], atol=1e-5)
    (nothing,) = predict(curves, ["0.3"])
    assert nothing.values["known"] == 0 and np.isfinite(nothing.values["mean"]).all()
    with pytest.raises(NotSupported, match="expected 2 numbers"):
        predict(curves, ["1 2 3"])
    with pytest.raises(UnknownName, match="'linear'"):
        predict(curves, ["0 1"], BandOptions(kernel="linear"))


def test_maps_lead_from_places_to_known_points(curves):
    _, maps = attention_maps(curves, "0 1; 0.5 0.2; 1")
    (found,) = maps.all
    assert found.labels() == (["0", "0.5", "1"], ["0: 1", "0.5: 0.2"]) and np.shape(maps.points) == (2, 2)
    _, line = attention_maps(curves, "0 1; 0.5 0.2")
    assert line.all[0].queries == 27 and line.all[0].keys == 2


def test_pixels_are_completed_as_a_grid(tmp_path):
    run = trained(tmp_path / "run", "digits:,count=60")
    assert run.processor.grid == (8, 8)
    text = task_of(run).own_input()
    assert len(text.split(";")) == 10
    (found,) = predict(run, [text])
    assert len(found.values["mean"]) == 64 and ".png" in found.files
    _, maps = attention_maps(run, text)
    assert maps.all[0].keys == 10 and maps.all[0].queries == 74 and np.shape(maps.points) == (10, 2)
    assert "exact Gaussian process" not in evaluate(run).details["baselines"]


def test_the_plain_process_has_no_attention_to_show(tmp_path):
    options = FunctionsOptions(data="gp:rbf,count=60,points=12", batch_size=8, shares=(0.1, 0.1), context=(2, 6))
    short = FunctionsTask.default_train.replace(steps=1)
    train("functions", options, short, tmp_path / "run", model="neural_process", settings=SMALL, progress=False)
    run = load_run(tmp_path / "run")
    assert math.isfinite(evaluate(run).metrics["log_density"])
    with pytest.raises(NotSupported, match="NeuralProcess holds no attention layer"):
        attention_maps(run, "0 1; 1")


def test_what_does_not_fit_is_refused(curves, tmp_path):
    with pytest.raises(BadConfig, match="--context 6 2"):
        FunctionsTask(FunctionsOptions(context=(6, 2))).read()
    (tmp_path / "two.csv").write_text("task,x1,x2,y\n" + "".join(f"{n},{x},{n},1\n" for n in range(8) for x in range(4)))
    with pytest.raises(NotSupported, match="functions of 2 x and 1 y"):
        evaluate(curves, str(tmp_path / "two.csv"))


def test_a_batch_is_padded(curves):
    short, long = (Function(np.zeros((n, 1), np.float32), np.ones((n, 1), np.float32), "", context=2) for n in (3, 5))
    batch = collate([short, long], curves.processor)
    assert batch.x_BLX.shape == (2, 5, 1) and batch.n_B.tolist() == [3, 5] and (batch.targets, batch.unknown) == (8, 4)
