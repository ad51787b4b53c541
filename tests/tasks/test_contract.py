"""The contract of a task, for every task in TASKS: train, stop, resume, evaluate, predict, look, refuse bad input, read its own config.

Each task brings its tiny data along (`Task.example`), so a new task is tested by being imported in `tasks/__init__.py`.
"""

import inspect
import json
import re
import shutil
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from tests.tasks.examples import write_example

import regard
from regard.cli import main
from regard.cli._command import format_settings
from regard.errors import BadConfig, RegardError, RunExists
from regard.runs import RunConfig, read_config, to_plain
from regard.serve.playground import Playground
from regard.tasks import TASKS, attention_maps, dial, evaluate, load_run, predict, task_of, train
from regard.train import read_metrics
from regard.train.loop import _Loop

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(params=TASKS, ids=lambda task: task.name)
def task(request):
    return request.param


def training(task, steps, **more):
    return task.default_train.replace(
        **{"steps": steps, "epochs": None, "seeds": (), "schedule": "constant", "warmup_steps": 0, "average": 0, **more}
    )


def flags(options):
    """The same options as they are typed."""
    for name, value in to_plain(options).items():
        default = getattr(type(options)(), name)
        if isinstance(value, bool):
            yield from ([f"--{'' if value else 'no-'}{name.replace('_', '-')}"] if value != default else [])
        elif value is not None:
            yield from (f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, list) else [value]))


def command(task, example, out, *more):
    settings = [part for one in format_settings(dict(example.settings)) for part in ("--set", one)]
    return ["train", task.name, *flags(example.options), *settings, "--out", str(out), "--quiet", *more]


STEPS = ["--average", "0", "--schedule", "constant", "--warmup-steps", "0", "--seeds"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run per task, of three steps."""
    made = {}

    def run_of(task):
        if task.name not in made:
            folder = tmp_path_factory.mktemp(task.name)
            example = write_example(task, folder)
            train(task, example.options, training(task, 3), folder / "run", settings=example.settings, progress=False)
            made[task.name] = (example, folder / "run")
        return made[task.name]

    return run_of


# -- what it declares --------------------------------------------------------------------------------------------------


def test_it_declares_itself(task, tmp_path):
    assert task.name.replace("-", "_").isidentifier() and task.default_model in regard.catalogue.models()
    assert f"As in:  regard train {task.name}" in (inspect.getdoc(task) or "")
    task(task.Options()), task.EvaluateOptions(), task.PredictOptions(), task.LookOptions()  # every option has a default
    assert task.Options.__dataclass_params__.frozen


def test_every_option_has_a_help_text(task, capsys):
    assert main(["train", task.name, "--help-all"]) == 0
    text = re.sub(r"\s+", " ", re.sub(r"[│╭╮╰╯─]", " ", capsys.readouterr().out))
    for field in fields(task.Options):
        flag = field.name.replace("_", "-")
        found = re.search(rf"--(?:no-)?{flag} (.*?)\(default", text)
        assert found and re.search(r"[A-Z\w][^.]+", found[1].split("} ")[-1].strip()), f"--{flag} has no help text"


# -- train, stop, resume -----------------------------------------------------------------------------------------------


def test_resuming_ends_where_training_on_would_have(task, tmp_path, monkeypatch):
    example = write_example(task, tmp_path)
    once, twice = (tmp_path / name for name in ("once", "twice"))
    options = training(task, 5, save_every=1)
    train(task, example.options, options, once, settings=example.settings, progress=False)
    step, done = _Loop._step, []

    def stopped(self, size, batches):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(step(self, size, batches))

    monkeypatch.setattr(_Loop, "_step", stopped)
    with pytest.raises(KeyboardInterrupt):
        train(task, example.options, options, twice, settings=example.settings, progress=False)
    monkeypatch.undo()
    assert main(["train", task.name, "--out", str(twice), "--resume", "--quiet"]) == 0  # everything else is in the run
    assert read_metrics(twice, "final")[-1]["step"] == 5
    one, two = (load_run(out).model.state_dict() for out in (once, twice))
    assert all(one[name].equal(two[name]) for name in one)
    assert read_config(twice) == read_config(once)


def test_a_resumed_run_takes_nothing_but_larger_budgets(task, trained, capsys):
    example, out = trained(task)
    argv = ["train", task.name, "--out", str(out), "--resume", "--quiet"]
    before = (out / "config.json").read_bytes()
    capsys.readouterr()
    for more, says in (
        (["--on-error", "skip"], "--on-error is 'skip'"),
        (["--clip", "7"], "--clip is 7.0"),
        (["--set", "width=7"], "--set width is 7"),
        (["--model", "gpt"], "--model is 'gpt'"),
        (["--seed", "5"], "--seed is 5"),
        (["--steps", "1"], "can only be extended"),
    ):
        assert main([*argv, *more]) == 2
        error = capsys.readouterr().err
        assert says in error and error.count("\n") == 1
    assert main(["train", task.name, "--out", str(out / "none"), "--resume"]) == 2
    assert f"nothing to resume in {out / 'none'}" in capsys.readouterr().err
    assert (out / "config.json").read_bytes() == before


def test_a_run_is_not_written_over(task, trained):
    example, out = trained(task)
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    with pytest.raises(RunExists, match="resume it"):
        train(task, example.options, training(task, 3), out, settings=example.settings, progress=False)
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before


def test_several_seeds_leave_the_best(task, tmp_path, capsys):
    example = write_example(task, tmp_path)
    assert main(command(task, example, tmp_path / "run", "--steps", "2", *STEPS, "3", "4")) == 0
    assert "over 2 seeds" in capsys.readouterr().out
    kept = json.loads((tmp_path / "run" / "seeds.json").read_text())
    best, run = load_run(tmp_path / "run" / f"seed-{kept['best']}"), load_run(tmp_path / "run")
    assert set(kept["seeds"]) == {"3", "4"} and run.config.train["seeds"] == [3, 4] and best.config.train["seed"] == kept["best"]
    assert all(a.equal(b) for a, b in zip(best.model.parameters(), run.model.parameters(), strict=True))
    assert main(["train", "--out", str(tmp_path / "run"), "--resume", "--steps", "3", "--quiet"]) == 0  # the run knows its task
    assert {read_metrics(tmp_path / "run" / f"seed-{seed}", "final")[-1]["step"] for seed in (3, 4)} == {3}


def test_it_begins_with_another_run(task, trained, tmp_path):
    example, base = trained(task)
    out = tmp_path / "on"
    assert main(command(task, example, out, "--init-from", str(base), "--steps", "1", *STEPS)) == 0
    run, first = load_run(out), load_run(base)
    assert run.config.init_from == str(base) and processor_files(out) == processor_files(base)
    pairs = [(a, b) for (name, a), b in zip(run.model.named_parameters(), first.model.parameters(), strict=True) if "output" not in name]
    assert max(float((a - b).detach().abs().max()) for a, b in pairs) < 0.1


def processor_files(out):
    """What the processor has saved with a run: tokenizer, labels, sizes of images."""
    others = {"config.json", "model.safetensors", "metrics.jsonl"}
    return {path.name: path.read_bytes() for path in out.iterdir() if path.is_file() and path.name not in others}


# -- use ---------------------------------------------------------------------------------------------------------------


def test_evaluate(task, trained, capsys):
    example, out = trained(task)
    run = load_run(out)
    report = evaluate(run)
    assert report.metrics and all(isinstance(value, float) for value in report.metrics.values())
    assert task.name == run.task and set(report.metrics) & set(read_metrics(out, "final")[-1])  # the same words for the same things
    other = evaluate(run, example.options.data)
    assert set(other.metrics) >= set(report.metrics)
    assert main(["evaluate", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(report.to_json()))
    assert main(["evaluate", str(out)]) == 0
    assert all(name in capsys.readouterr().out for name in list(report.metrics)[:1])


def test_the_test_part_of_changed_data_is_refused(task, tmp_path, capsys):
    example = write_example(task, tmp_path)
    train(task, example.options, training(task, 1), tmp_path / "run", settings=example.settings, progress=False)
    path = Path(example.options.data)
    halve(path)
    assert main(["evaluate", str(tmp_path / "run")]) == 2 and "has changed since" in capsys.readouterr().err
    assert main(["train", task.name, "--out", str(tmp_path / "run"), "--resume", "--steps", "2"]) == 2
    assert "the data differ" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "run"), "--data", str(path)]) == 0


def halve(path):
    """Remove the second half of the data: lines of a text file, files of each folder."""
    if path.is_dir():
        for folder in (path, *(one for one in path.rglob("*") if one.is_dir())):
            for one in sorted(one for one in folder.iterdir() if one.is_file())[1::2]:
                one.unlink()
    else:
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[: len(lines) // 2]))


def test_predict(task, trained, tmp_path, capsys):
    example, out = trained(task)
    run = load_run(out)
    found = predict(run, [example.input, "", example.input])
    assert found[0] == found[2] and found[0].values and found[1].text == ""
    assert main(["predict", str(out), example.input, "--json", "--files", str(tmp_path)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["input"] == example.input
    assert [Path(name).read_bytes() for name in answer.get("files", [])] == list(found[0].files.values())
    assert main(["predict", str(out), example.input, "--files", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{found[0].text}\n"
    if task.inputs == "file":
        assert main(["predict", str(out), str(tmp_path / "missing.png")]) == 2
        assert "missing.png: no such file" in capsys.readouterr().err


def test_attention_maps(task, trained, tmp_path, capsys):
    example, out = trained(task)
    run = load_run(out)
    text = example.input.replace("[MASK]", "7")
    _, maps = attention_maps(run, text)
    _, everything = attention_maps(run, text, "*")
    assert maps.all and len(everything.layers) >= len(maps.layers)
    assert all(m.query_labels and torch.isfinite(m.weights_BHLM).all() for m in maps.all)
    assert main(["look", str(out), text, "--png", str(tmp_path / "map.png")]) == 0
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG") and capsys.readouterr().out


@pytest.mark.parametrize("verb", ["evaluate", "predict", "look"])
def test_help_of_a_run_shows_the_options_of_its_task(task, verb, trained, capsys):
    _, out = trained(task)
    options = {"evaluate": task.EvaluateOptions, "predict": task.PredictOptions, "look": task.LookOptions}[verb]
    assert main([verb, str(out), "--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"--{field.name.replace('_', '-')}" in text for field in fields(options))


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_bad_input_is_one_line(task, tmp_path, capsys):
    example = write_example(task, tmp_path)
    good = Path(example.options.data)
    missing, empty, broken = (good.with_name(f"{name}{good.suffix}") for name in ("missing", "empty", "broken"))
    empty.mkdir() if good.is_dir() else empty.touch()
    shutil.copytree(good, broken) if good.is_dir() else shutil.copy(good, broken)
    if isinstance(example.broken, str):
        broken.write_text(good.read_text() + example.broken)
    else:
        example.broken(broken)
    for path in (missing, empty, broken):
        options = replace(example.options, data=str(path))
        assert main(command(task, replace(example, options=options), tmp_path / "run", "--steps", "1")) == 2
        error = capsys.readouterr().err
        assert path.name in error and error.count("\n") == 1 and "Traceback" not in error
        with pytest.raises(RegardError):
            train(task, options, training(task, 1), tmp_path / "run", settings=example.settings, progress=False)
    assert not (tmp_path / "run" / "config.json").exists()
    skipping = replace(example.options, data=str(broken), on_error="skip")
    train(task, skipping, training(task, 1), tmp_path / "run", settings=example.settings, progress=False)
    assert read_config(tmp_path / "run").skipped


def test_without_data_it_says_so(task, tmp_path):
    with pytest.raises(BadConfig, match="--data"):
        train(task, task.Options(data=""), training(task, 1), tmp_path / "run")


def test_an_unknown_model_or_setting(task, tmp_path, capsys):
    example = write_example(task, tmp_path)
    for more, says in (
        (["--model", "nothing"], "no model is called"),
        (["--set", "nothing=1"], "nothing"),
        (["--on-error", "x"], "--on-error"),
    ):
        assert main(command(task, example, tmp_path / "run", "--steps", "1", *more)) == 2
        error = capsys.readouterr().err
        assert says in error and error.count("\n") == 1


# -- its config --------------------------------------------------------------------------------------------------------


def test_the_config_comes_back_as_it_was(task, tmp_path, capsys, monkeypatch):
    """--print-config, --config, and the config.json of a run are the same options, where the dial chooses none."""
    monkeypatch.setattr(dial, "table", lambda name: ())
    example = write_example(task, tmp_path)
    argv = command(task, example, tmp_path / "run", "--steps", "1", "--lr", "0.25", *STEPS)
    assert main([*argv, "--print-config"]) == 0
    printed = capsys.readouterr().out
    (tmp_path / "options.toml").write_text(printed)
    assert main(["train", "--config", str(tmp_path / "options.toml"), "--print-config"]) == 0
    assert capsys.readouterr().out == printed
    assert main(["train", task.name, "--config", str(tmp_path / "options.toml"), "--out", str(tmp_path / "a"), "--quiet"]) == 0
    assert main([*argv, "--out", str(tmp_path / "b")]) == 0
    assert main(["train", "--config", str(tmp_path / "b" / "config.json"), "--out", str(tmp_path / "c"), "--quiet"]) == 0
    assert read_config(tmp_path / "a") == read_config(tmp_path / "b") == read_config(tmp_path / "c")
    assert main(["train", "--config", str(tmp_path / "options.toml"), "--lr", "0.5", "--print-config"]) == 0
    assert "lr = 0.5\n" in capsys.readouterr().out  # what is typed goes before the file
    run = load_run(tmp_path / "a")
    assert task_of(run).options == example.options and run.config.train["lr"] == 0.25
    assert RunConfig.from_json(run.config.to_json(), "here") == run.config


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("task = ", "not TOML"),
        ("steps = 3", "a task by name"),
        ('task = "langage"', "'language'"),
        ('task = "{name}"\n[options]\non_eror = "skip"', "'on_error'"),
        ('task = "{name}"\n[options]\nshares = "many"', "shares"),
        ('task = "{name}"\n[train]\nsteps = "many"', "steps"),
        ('task = "{name}"\n[models]\nname = "x"', "'model'"),
        ('task = "{name}"\nmodel = 3', "its name and its config"),
    ],
)
def test_a_bad_config_file_is_one_line(task, text, says, tmp_path, capsys):
    (tmp_path / "bad.toml").write_text(text.replace("{name}", task.name))
    assert main(["train", "--config", str(tmp_path / "bad.toml"), "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1


# -- one file ----------------------------------------------------------------------------------------------------------


def test_nothing_but_its_own_file_knows_it(task):
    """No other code compares the name of a task or asks for its class: `if run.task == "translation"` has no place outside the task."""
    source = ROOT / "src" / "regard"
    own = Path(task.__module__.replace(".", "/")).name
    asking = re.compile(rf"""(task|name)\w*\)?\s*(==|!=|in)\s*[("\[{{]*"?{task.name}\b|["']{task.name}["']\s*(==|!=)""")
    for folder in ("cli", "tasks", "interop", "train", "serve", "look", "decode", "data"):
        for path in (source / folder).rglob("*.py"):
            if path.stem not in (own, "__init__"):
                found = [line for line in path.read_text(encoding="utf-8").splitlines() if asking.search(line)]
                assert not found, f"{path.relative_to(ROOT)}: {found}"
    assert not asking.search((source / "runs.py").read_text(encoding="utf-8"))


def test_the_page_shows_its_attention_and_gradients_or_why_there_are_none(task, trained):
    example, out = trained(task)
    first, *_ = Playground.of_run(load_run(out)).record(example.input, [])
    header = first.header()
    assert header["maps"] and json.dumps(header)
    compared = [n for n, one in enumerate(header["maps"]) if one["outputs"] is not None]
    assert bool(compared) != bool(header.get("no_gradients"))
    for n in compared[:1]:
        assert len(first.piece(f"gradients/{n}/0")) == 4 * (1 + 2 * header["maps"][n]["columns"])
