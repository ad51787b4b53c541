"""The loop: ragged batches add up, budgets end it, bad steps are skipped, the best weights stay, nothing is logged twice."""

import dataclasses
import itertools
import json
import math
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from tiny import Big, Net, Tiny, config, lines, same

from regard.errors import BadConfig, BadFile, CannotSave, Diverged, RunExists
from regard.train import OPTIMIZERS, Adam, Loss, Metric, fit, loop
from regard.train import checkpoint as checkpoints
from regard.train.log import Log, read_metrics
from regard.train.parameters import Ema, Ring, load_parameters, parameters_of

# -- gradients ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [2, 3])  # 7 batches: the last group is smaller
def test_accumulation_is_the_big_batch(tmp_path, group):
    f64 = {"dtype": torch.float64}
    small, big = Net(dropout=0.0, **f64), Net(dropout=0.0, **f64)
    one = fit(small, Tiny(noise=False, **f64), config(accumulate=group, clip=0.5), tmp_path / "a", progress=False)
    two = fit(big, Big(group, noise=False, **f64), config(clip=0.5), tmp_path / "b", progress=False)
    assert (one.steps, one.tokens) == (two.steps, two.tokens)
    same(small, big, exactly=False)
    assert len({len(x) for x in Tiny().x}) > 2  # it is ragged


def test_a_mean_of_means_would_not_pass(tmp_path):
    class Means(Tiny):
        def loss(self, model, batch):
            loss = super().loss(model, batch)
            return Loss(loss.total / loss.count, 1)

    f64 = {"dtype": torch.float64}
    small, big = Net(dropout=0.0, **f64), Net(dropout=0.0, **f64)
    fit(small, Means(noise=False, **f64), config(accumulate=2), tmp_path / "a", progress=False)
    fit(big, Big(2, noise=False, **f64), config(), tmp_path / "b", progress=False)
    with pytest.raises(AssertionError):
        same(small, big, exactly=False)


def test_what_a_task_does_after_a_step_is_seen_by_averages_and_left_out_when_skipped(tmp_path):
    class Bounded(Tiny):
        calls = 0

        def loss(self, model, batch):
            loss = super().loss(model, batch)
            bad = torch.inf if len(batch[0]) == len(self.x[0]) else 1.0  # batches of this size are skipped
            return Loss(loss.total * bad, loss.count, loss.extra)

        def after_step(self, model):
            self.calls += 1
            with torch.no_grad():
                model.read.weight.clamp_(-0.125, 0.125)

    model, task = Net(), Bounded()
    done = fit(model, task, config(ema=0.5), tmp_path, progress=False)
    assert task.calls == done.steps - done.skipped and done.skipped
    assert model.read.weight.abs().max() < 0.126 < Net().read.weight.abs().max()


def test_an_objective_is_told_the_progress_before_each_step(tmp_path):
    class Told(Tiny):
        def __init__(self):
            super().__init__()
            self.told = []

        def before_step(self, progress):
            self.told.append(progress)
            return 1.0

    task = Told()
    done = fit(Net(), task, config(steps=8), tmp_path, progress=False)
    assert done.steps == 8 and [one.share for one in task.told] == [n / 8 for n in range(8)]
    assert [one.epoch for one in task.told] == [n / 7 for n in range(7)] + [1.0]


def test_an_objective_may_scale_the_learning_rate(tmp_path):
    class Still(Tiny):
        def before_step(self, progress):
            return 0.0

    still, moving = Net(), Net()
    before = [p.detach().clone() for p in still.parameters()]
    for model, task in ((still, Still()), (moving, Tiny())):
        fit(model, task, config(steps=4), tmp_path / type(task).__name__, progress=False)
    assert all(torch.equal(p, b) for p, b in zip(still.parameters(), before, strict=True))
    assert not all(torch.equal(p, b) for p, b in zip(moving.parameters(), before, strict=True))


def test_clipping_bounds_the_gradient(tmp_path, monkeypatch):
    seen = []

    class Watched(torch.optim.SGD):
        def step(self, closure=None):
            seen.append(
                float(torch.nn.utils.get_total_norm([p.grad for g in self.param_groups for p in g["params"] if p.grad is not None]))
            )
            return super().step(closure)

    @dataclasses.dataclass(frozen=True)
    class Sgd(Adam):
        def build(self, model, rates=None):
            return Watched(model.parameters(), lr=0.1)

    monkeypatch.setitem(OPTIMIZERS, "adam", Sgd)
    fit(Net(), Tiny(), config(optimizer="adam", clip=0.1), tmp_path, progress=False)
    assert len(seen) == 21 and max(seen) < 0.1001 and max(seen) > 0.0999


# -- the end -----------------------------------------------------------------------------------------------------------


def test_budgets(tmp_path):
    assert fit(Net(), Tiny(), config(steps=5), tmp_path / "a", progress=False).steps == 5
    result = fit(Net(), Tiny(), config(epochs=2, steps=99), tmp_path / "b", progress=False)
    assert (result.steps, result.epochs, result.ended_by) == (14, 2, "budget")


def test_a_budget_of_time(tmp_path, monkeypatch):
    """By a clock that moves by a second whenever it is read, so that the speed of the machine does not matter."""
    ticks = itertools.count()
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
    result = fit(Net(), Tiny(), config(minutes=0.5), tmp_path, progress=False)
    assert result.ended_by == "budget" and result.steps > 5 and 30 <= result.seconds < 40


def test_a_schedule_ends_with_the_minutes_on_a_machine_that_gets_busy(tmp_path, monkeypatch):
    """The clock runs five times as fast after the tenth step; the learning rate still falls to zero at the end, and the last evaluation fits."""
    now, made = [0.0], []

    class Slow(Tiny):
        def batch(self, item, generator):
            made.append(item)
            now[0] += 1.0 if len(made) < 10 else 5.0
            return super().batch(item, generator)

        def evaluate(self, model):
            now[0] += 7.0
            return super().evaluate(model)

    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: now[0]))
    options = config(minutes=4.0, schedule="cosine", lr=0.1, warmup_steps=0, log_every=1)
    result = fit(Net(), Slow(), options, tmp_path, progress=False, began=-20.0)
    rates = [line["lr"] for line in lines(tmp_path, "train")]
    assert result.ended_by == "budget" and 235 <= result.seconds <= 245
    assert rates == sorted(rates, reverse=True) and rates[0] > 0.095 and rates[-1] < 0.002
    assert 2 <= len(lines(tmp_path, "evaluation")) <= 5  # each takes 7 s, so not more often than every 70 s


def test_learning_happens_and_is_written(tmp_path):
    net = Net(dropout=0.0)
    result = fit(net, Tiny(), config(epochs=12), tmp_path, progress=False)
    errors = [line["error"] for line in lines(tmp_path, "evaluation")]
    assert len(errors) == 12 and errors[-1] < 0.7 * errors[0] and result.metrics["error"] == min(errors)
    train = lines(tmp_path, "train")
    assert [line["step"] for line in train] == list(range(2, 85, 2))
    assert all(line["rows"] == 1.0 and line["lr"] == 0.01 and line["tokens_per_second"] > 0 for line in train)  # rows per row
    saved = load_file(tmp_path / "model.safetensors")
    assert set(saved) == {"read.weight", "read.bias", "norm.weight", "norm.bias", "scale"}
    other = Net()
    load_parameters(other, saved)
    same(net, other)


class Scripted(Tiny):
    """Evaluations that say what they are told."""

    metric = Metric("score", higher=True)

    def __init__(self, scores, **kwargs):
        super().__init__(**kwargs)
        self.scores, self.seen = list(scores), []

    def evaluate(self, model):
        self.seen.append({name: x.clone() for name, x in parameters_of(model).items()})
        return {"score": self.scores[min(len(self.seen), len(self.scores)) - 1]}


def test_patience_and_the_best_weights(tmp_path):
    net, task = Net(), Scripted([1.0, 5.0, float("nan"), 4.0, 2.0, 5.0])
    result = fit(net, task, config(epochs=99, patience=3), tmp_path, progress=False)
    assert (result.ended_by, result.epochs, result.chosen) == ("patience", 5, "best")
    assert all(torch.equal(x, task.seen[1][name]) for name, x in parameters_of(net).items())
    assert [line["score"] for line in lines(tmp_path, "evaluation")] == [1.0, 5.0, None, 4.0, 2.0]


def test_the_average_is_tried_and_kept_only_if_better(tmp_path):
    for score, chosen in ((9.0, "average"), (0.5, "last")):
        net, task = Net(), Scripted([1.0, 2.0, 3.0, 4.0, score])
        result = fit(net, task, config(epochs=4, average=3), tmp_path / chosen, progress=False)
        assert result.chosen == chosen
        mean = {name: torch.stack([w[name] for w in task.seen[1:4]]).mean(0) for name in task.seen[0]}
        expected = mean if chosen == "average" else task.seen[3]
        assert all(torch.equal(task.seen[4][name], mean[name]) for name in mean)
        assert all(torch.equal(x, expected[name]) for name, x in parameters_of(net).items())


def test_the_running_mean_is_its_formula():
    net = Net()
    ema = Ema(net, 0.9)
    expected = net.read.weight.detach().double().clone()
    for n in range(1, 90):
        with torch.no_grad():
            net.read.weight += 1.0
        ema.update(net, n)
        decay = min(0.9, (1 + n) / (10 + n))
        expected = decay * expected + (1 - decay) * net.read.weight.detach().double()
    torch.testing.assert_close(ema.mean["read.weight"].double(), expected, rtol=1e-5, atol=1e-5)


def test_with_a_running_mean_it_is_what_is_evaluated_and_kept(tmp_path):
    plain, smooth = Net(), Net()
    fit(plain, Tiny(), config(), tmp_path / "a", progress=False)
    task = Scripted([1.0, 2.0, 3.0])
    fit(smooth, task, config(ema=0.9), tmp_path / "b", progress=False)
    found = checkpoints.load_latest(tmp_path / "b" / "state")
    own, mean = found.tensors["model"], found.tensors["ema"]
    assert all(torch.equal(own[name], x) for name, x in parameters_of(plain).items())  # the mean only watches
    assert all(torch.equal(mean[name], x) and torch.equal(mean[name], task.seen[2][name]) for name, x in parameters_of(smooth).items())
    assert not torch.equal(own["read.weight"], mean["read.weight"])


def test_a_ring_survives_the_disk():
    ring, net = Ring(3), Net()
    for n in range(5):
        net.read.weight.data.fill_(n)
        ring.push(net)
    other = Ring(3)
    other.fill(ring.flat())
    assert float(ring.mean()["read.weight"][0, 0]) == 3.0 == float(other.mean()["read.weight"][0, 0])
    assert [float(w["read.weight"][0, 0]) for w in other.kept] == [2.0, 3.0, 4.0]


# -- steps that must not be taken --------------------------------------------------------------------------------------


class Spoiled(Tiny):
    def __init__(self, bad, factor):
        super().__init__()
        self.bad, self.factor, self.calls = bad, factor, 0

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        self.calls += 1
        return dataclasses.replace(loss, total=loss.total * self.factor) if self.calls in self.bad else loss


@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_what_is_not_finite_is_skipped(tmp_path, factor):
    net = Net()
    result = fit(net, Spoiled({4, 9}, factor), config(), tmp_path, progress=False)
    assert result.skipped == 2 and result.steps == 21
    assert all(x.isfinite().all() for x in parameters_of(net).values())
    assert [(line["step"], line["reason"], line["loss"]) for line in lines(tmp_path, "skip")] == [
        (4, "not finite", None),
        (9, "not finite", None),
    ]
    json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[1], parse_constant=lambda word: pytest.fail(word))


def test_a_skipped_step_changes_nothing(tmp_path):
    one, two = Net(), Net()
    fit(one, Spoiled({5}, math.nan), config(steps=4), tmp_path / "a", progress=False)
    fit(two, Spoiled({5}, math.nan), config(steps=5), tmp_path / "b", progress=False)
    same(one, two)


def test_outliers_are_skipped_and_a_new_usual_is_learned(tmp_path):
    result = fit(Net(), Spoiled({30}, 1e4), config(steps=40, outlier=20.0), tmp_path / "a", progress=False)
    assert result.skipped == 1
    assert [(line["step"], line["reason"]) for line in lines(tmp_path / "a", "skip")] == [(30, "outlier")]
    assert fit(Net(), Spoiled({30}, 1e4), config(steps=40), tmp_path / "b", progress=False).skipped == 0
    always = Spoiled(range(30, 999), 300.0)
    result = fit(Net(), always, config(steps=80, outlier=20.0), tmp_path / "c", progress=False)
    assert 0 < result.skipped < 15


def test_when_nothing_works_it_stops(tmp_path):
    with pytest.raises(Diverged, match="learning rate"):
        fit(Net(), Spoiled(range(3, 999), math.nan), config(steps=999), tmp_path, progress=False)


# -- resuming ----------------------------------------------------------------------------------------------------------


def test_a_run_is_not_overwritten(tmp_path):
    fit(Net(), Tiny(), config(), tmp_path, progress=False)
    with pytest.raises(RunExists, match="resume"):
        fit(Net(), Tiny(), config(), tmp_path, progress=False)


def test_a_longer_budget_goes_on_as_if_it_had_been_given_at_once(tmp_path):
    once, twice = Net(), Net()
    more = {"ema": 0.9, "average": 3, "log_every": 3, "evaluate_every": 5, "save_every": 4}
    fit(once, Tiny(), config(**more), tmp_path / "a", progress=False)
    fit(Net(), Tiny(), config(**more, steps=10), tmp_path / "b", progress=False)
    torch.rand(17)  # whatever happens in between does not matter
    fit(twice, Tiny(), config(**more), tmp_path / "b", resume=True, progress=False)
    same(once, twice)
    finals = [line["step"] for line in lines(tmp_path / "b", "final")]
    assert finals == [21]  # what the shorter run wrote after its last checkpoint is gone


def test_resuming_what_is_finished_changes_nothing(tmp_path):
    one, two = Net(), Net()
    fit(one, Tiny(), config(), tmp_path, progress=False)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    fit(two, Tiny(), config(), tmp_path, resume=True, progress=False)
    same(one, two)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_resuming_with_other_settings_is_refused(tmp_path):
    fit(Net(), Tiny(), config(), tmp_path, progress=False)
    with pytest.raises(BadConfig, match=r"seed 0 → 5.*adamw → adam"):
        fit(Net(), Tiny(), config(seed=5, optimizer="adam"), tmp_path, resume=True, progress=False)
    with pytest.raises(BadFile, match=r"read\.weight is \(7, 5\), not \(9, 5\)"):
        fit(Net(hidden=9), Tiny(), config(), tmp_path, resume=True, progress=False)


def test_a_disk_that_cannot_be_written_is_said_before_training(tmp_path):
    (tmp_path / "state").write_text("in the way")
    task = Tiny()
    task.loss = lambda *_: pytest.fail("it has begun to train")
    with pytest.raises(CannotSave):
        fit(Net(), task, config(), tmp_path, progress=False)


def test_the_log_is_cut_at_whole_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = Log(path)
    log.write("train", {"step": 1, "loss": math.inf})
    length = log.length()
    log.write("train", {"step": 2})
    log.close()
    with path.open("ab") as file:
        file.write(b'{"event": "tr')
    assert [line["step"] for line in read_metrics(path)] == [1, 2]
    for cut in (length, length + 5):
        log = Log(path, cut)
        log.write("train", {"step": 3})
        log.close()
        assert [line["step"] for line in read_metrics(path)] == [1, 3]
        assert read_metrics(path)[0]["loss"] is None


def test_mistakes_of_a_task_are_named(tmp_path):
    task = Tiny()
    task.evaluate = lambda model: {"other": 1.0}
    with pytest.raises(BadConfig, match=r"'error' is the deciding metric.*other"):
        fit(Net(), task, config(), tmp_path / "a", progress=False)
    task = Tiny()
    task.batches = lambda epoch: []
    with pytest.raises(BadConfig, match="no batches"):
        fit(Net(), task, config(), tmp_path / "b", progress=False)


def test_what_is_said(tmp_path, capsys):
    fit(Net(), Tiny(), config(), tmp_path, progress=False)
    said = capsys.readouterr().err
    assert (
        "loss" in said and "tokens/s" in said and "best so far" in said and "Finished (all epochs done) at step 21; best: step 21" in said
    )


def test_the_bar(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    fit(Net(), Tiny(), config(), tmp_path, progress=True)
    assert "best so far" in capsys.readouterr().err
