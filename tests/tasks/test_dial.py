"""The dial: rows of a table by data and budget, what the user gives stays, forecasts; and the tables themselves."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.tasks.examples import write_example

from regard.cli import main
from regard.models import build, find_model
from regard.run_config import RunConfig, parse_options, to_plain
from regard.tasks import TASKS, Classify, LanguageOptions, dial, find_task, load_run, train
from regard.tasks.choosing import fill_in
from regard.tasks.dial import Budget, Row
from regard.train import TrainOptions


def row(minutes=2.0, characters=1e6, model="gpt2", data="a text", results=(2.0, 2.2), lr=1e-2, **more):
    values = {
        "data": data, "profile": {"characters": characters, "tokens": "characters"}, "minutes": minutes, "gflops": 100.0, "model": model,
        "settings": {"width": 16, "heads": 2, "depth": 1}, "options": {"context_length": 24},
        "train": {"optimizer": "muon", "lr": lr, "schedule": "cosine", "average": 0}, "steps": 100, "epochs": 4.0, "metric": "loss",
        "results": list(results),
    }  # fmt: skip
    return Row(**{**values, **more})


PROFILE = {"characters": 1e6, "tokens": "characters"}


def chosen(rows, minutes=2.0, profile=PROFILE, model=None, given=()):
    return dial.choose(rows, profile, Budget(minutes, None, None), model, given)


# -- which row ---------------------------------------------------------------------------------------------------------


def test_the_nearest_budget_is_taken():
    rows = [row(1.0, settings={"width": 1}), row(10.0, settings={"width": 10})]
    assert [chosen(rows, minutes).settings["width"] for minutes in (0.1, 3.0, 3.3, 100.0)] == [1, 1, 10, 10]


def test_the_nearest_data_are_taken():
    rows = [row(settings={"width": 1}, characters=1e5), row(settings={"width": 10}, characters=1e7)]
    assert [chosen(rows, profile={**PROFILE, "characters": n}).settings["width"] for n in (1e3, 9e5, 1.1e6)] == [1, 1, 10]
    assert chosen(rows, profile={**PROFILE, "tokens": "subwords"}) is None and chosen([], 1.0) is None


def test_data_of_another_kind_have_no_row():
    rows = [row(profile={"examples": 100, "pixels": 64})]
    alike = [{"examples": n, "pixels": pixels} for n, pixels in ((1, 64), (10**6, 250), (100, 17))]
    assert all(chosen(rows, profile=one) for one in alike)
    assert chosen(rows, profile={"examples": 100, "pixels": 784}) is None


def test_a_faster_machine_has_more_minutes():
    rows = [row(1.0, settings={"width": 1}), row(10.0, settings={"width": 10})]
    found = [dial.choose(rows, PROFILE, Budget(1.0, None, None, gflops), None, ()) for gflops in (100.0, 1000.0)]
    assert [one.settings["width"] for one in found] == [1, 10]


def test_budgets_of_steps_and_epochs_are_minutes_of_a_row():
    assert Budget(None, 50, None).at(row(2.0)) == 1.0 and Budget(None, None, 8.0).at(row(2.0)) == 4.0
    assert Budget(3.0, 50, None).at(row(2.0)) == 1.0 and Budget(None, None, None).at(row(2.0)) == 60.0  # of 3,000 steps
    assert Budget.of(TrainOptions(minutes=6.0, seeds=(0, 1, 2)), None).minutes == 2.0


def test_a_model_that_is_named_has_rows_of_its_own():
    rows = [row(model="gpt2"), row(model="llama", settings={"width": 7})]
    assert chosen(rows, model="llama").settings == {"width": 7} and chosen(rows, model="rnn_lm") is None


def test_fractions_are_interpolated_between_rows_that_differ_in_nothing_else():
    rows = [row(1.0, lr=1e-2), row(4.0, lr=1e-4)]
    assert chosen(rows, 2.0).train["lr"] == 1e-3 and chosen(rows, 8.0).train["lr"] == 1e-4
    other = replace(rows[1], settings={"width": 99})
    assert chosen([rows[0], other], 1.9).train["lr"] == 1e-2


# -- what is given stays -----------------------------------------------------------------------------------------------


def test_what_the_user_gives_is_not_chosen():
    found = chosen([row()], given=("lr", "context_length"))
    assert found.train == {"optimizer": "muon", "schedule": "cosine", "average": 0} and found.options == {} and found.forecast is None
    assert chosen([row()], given=("width",)).settings == {}  # the other sizes are those of the model
    assert "lr" not in chosen([row()], given=("optimizer",)).train  # it was for muon
    assert chosen([row()], given=("seed", "data")).forecast


# -- forecasts ---------------------------------------------------------------------------------------------------------


def test_a_row_that_ends_early_gives_way_to_an_end_that_is_given():
    rows = [row(train={"lr": 1e-2, "epochs": 10})]
    assert chosen(rows).train == {"lr": 1e-2, "epochs": 10} == chosen(rows, given=("minutes",)).train
    assert all(chosen(rows, given=(name,)).train == {"lr": 1e-2} for name in ("steps", "epochs"))


def test_a_forecast_lies_between_rows_and_is_wider_away_from_them():
    rows = [row(1.0, results=(3.0, 3.2)), row(4.0, results=(2.0, 2.0)), row(1.0, data="another", characters=1e9, results=(9.0,))]
    at, between, beyond = (dial.forecast(rows, PROFILE, Budget(minutes, None, None)) for minutes in (1.0, 2.0, 64.0))
    assert at.value == pytest.approx(3.1) and (at.low, at.high) == pytest.approx((3.0, 3.2))
    assert between.value == pytest.approx(2.55) and between.high - between.low > 0.5
    assert beyond.value == 2.0 and beyond.high - beyond.low > between.high - between.low and beyond.data == "a text"


# -- the tables --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [task.name for task in TASKS if dial.table(task.name)])
def test_the_rows_of_a_table_can_be_trained(task):
    kind = find_task(task)
    for one in dial.table(task):
        assert one.minutes > 0 and one.steps > 0 and one.epochs > 0 and one.gflops > 0 and one.results and one.made["commit"]
        parse_options(kind.Options, one.options, task)
        parse_options(TrainOptions, one.train, task)
        kind(kind.Options()).check_kind(one.model)
        assert one.settings.keys() <= find_model(one.model).Config.__dataclass_fields__.keys()


# -- in a training -----------------------------------------------------------------------------------------------------


@pytest.fixture
def table(monkeypatch):
    """A table of one row for language models."""
    monkeypatch.setattr(dial, "table", lambda task: (row(0.01, 2000.0),) if task == "language" else ())


def test_a_training_takes_what_the_dial_chooses_and_keeps_it_when_it_is_resumed(table, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("regard.tasks.start_message.seconds_per_step", lambda *given: 0.5)
    data, out = write_example("language", tmp_path).options.data, tmp_path / "run"
    command = ["train", "language", "--data", data, "--tokenizer", "char", "--out", str(out), "--quiet"]
    assert main([*command, "--minutes", "0.02", "--batch-size", "4", "--lr", "0.005"]) == 0
    told = capsys.readouterr().err
    assert "for the test" in told and "too few to learn much: --minutes 3 would make 300" in told
    assert "Chosen: gpt2, width 16, heads 2, depth 1, context_length 24, optimizer muon, schedule cosine" in told
    config = load_run(out).config
    assert config.train["optimizer"] == "muon" and config.train["lr"] == 0.005 and config.settings["width"] == 16
    assert config.options["context_length"] == 24 and config.options["batch_size"] == 4
    assert main(["train", "language", "--out", str(out), "--resume", "--minutes", "0.03", "--quiet"]) == 0
    assert load_run(out).config.settings == config.settings and "Chosen" not in capsys.readouterr().err


def test_the_plan_and_the_config_are_printed_without_training(table, tmp_path, capsys):
    data = write_example("language", tmp_path).options.data
    command = ["train", "language", "--data", data, "--tokenizer", "char", "--out", str(tmp_path / "run")]
    assert main([*command, "--plan", "--minutes", "3"]) == 0
    plan = capsys.readouterr().out
    assert all(f"{minutes} " in plan for minutes in (1, 2, 3, 5, 15, 45)) and "muon" in plan and "loss 2.1" in plan
    assert main([*command, "--print-config", "--minutes", "3"]) == 0
    (tmp_path / "config.toml").write_text(printed := capsys.readouterr().out)
    assert 'optimizer = "muon"' in printed and "width = 16" in printed and not (tmp_path / "run").exists()
    assert main([*command, "--config", str(tmp_path / "config.toml"), "--print-config", "--minutes", "3"]) == 0
    assert capsys.readouterr().out == printed


def test_options_of_a_caller_stay_unless_he_leaves_them_to_the_dial(table, tmp_path):
    options = LanguageOptions(data=write_example("language", tmp_path).options.data, tokenizer="char", batch_size=4)
    train("language", options, TrainOptions(steps=2), tmp_path / "mine", settings={"width": 8, "heads": 2, "depth": 1}, progress=False)
    assert json.loads(Path(tmp_path / "mine" / "config.json").read_text())["train"]["optimizer"] == "adamw"
    train("language", options, TrainOptions(steps=2), tmp_path / "its", progress=False, given=("steps", "batch_size"))
    run = load_run(tmp_path / "its").config
    assert run.train["optimizer"] == "muon" and run.options["batch_size"] == 4 and run.settings["width"] == 16


def test_defaults_of_a_task_that_no_tuning_run_had_are_undone():
    """A classifier of the table was tuned without early stopping; the task's own default has it. What the user gives stays."""
    usual = to_plain(Classify.train_defaults("self_attentive"))
    config = RunConfig(task="classify", model="self_attentive", train=usual)
    choice = dial.Choice("self_attentive", {}, {}, {"lr": 2e-3}, None)
    assert usual["patience"] > 0 and fill_in(config, choice, ()).train["patience"] == TrainOptions().patience == 0
    assert fill_in(config, choice, ("patience",)).train["patience"] == usual["patience"]
    assert fill_in(config, choice, ()).train["epochs"] == usual["epochs"]  # a budget
    assert fill_in(config, dial.Choice("self_attentive", {}, {}, {}, None), ("optimizer",)).train["lr"] == usual["lr"]


def test_a_table_is_read(tmp_path):
    assert dial.table("no such task") == ()
    assert build("gpt2", {"vocab_size": 7, **row().settings}).config.width == 16


def test_a_warm_up_of_a_longer_budget_is_left_out():
    row = Row(
        data="a", profile={"examples": 10.0}, minutes=10, gflops=1.0, model="m", settings={}, options={}, train={"warmup_steps": 100, "lr": 0.1},
        steps=1000, epochs=1, metric="loss", results=[1.0],
    )  # fmt: skip
    long, short = (dial.choose([row], {"examples": 10.0}, Budget(None, steps, None), None, ()) for steps in (800, 300))
    assert long is not None and short is not None
    assert long.train == {"warmup_steps": 100, "lr": 0.1} and short.train == {"lr": 0.1}
