"""The command line: thin, helpful, and quiet about its insides."""

import json
import subprocess
import sys

import pytest
import torch

import regard
from regard import MECHANISMS, catalogue
from regard.cli import COMMANDS, main, show
from regard.cli._command import format_settings, parse_settings
from regard.patterns import parse
from regard.tasks import TASKS


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "regard", *argv], capture_output=True, text=True, timeout=120)


def test_list(capsys):
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in catalogue.mechanisms())
    assert main(["list", "mechanisms", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == catalogue.rows()


@pytest.mark.parametrize("kind", ["models", "tasks", "recipes"])
def test_other_lists(kind, capsys):
    assert main(["list", kind]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in catalogue.listed(kind))
    assert main(["list", kind, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == catalogue.rows(kind)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: m.facts.name)
def test_show_every_mechanism(mechanism, capsys):
    assert main(["show", mechanism.facts.name, "--length", "6"]) == 0
    out = capsys.readouterr().out
    assert mechanism.__name__ in out and mechanism.facts.paper.where in out and "Use it" in out
    assert main(["show", mechanism.__name__, "--json", "--length", "6"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == mechanism.facts.name


def test_show_softmax_gives_the_weights_it_draws(capsys):
    assert main(["show", "softmax", "--json", "--length", "7"]) == 0
    weights_LM = torch.tensor(json.loads(capsys.readouterr().out)["weights_LM"])
    torch.testing.assert_close(weights_LM, show.example(regard.SoftmaxAttention, 7).view().weights_BHLM[0, 0])
    torch.testing.assert_close(weights_LM.sum(-1), torch.ones(7))


def test_show_draws_a_pattern(capsys, tmp_path):
    text = "causal & (window(2) | tokens(0))"
    picture = tmp_path / "new" / "pattern.png"
    assert main(["show", text, "--length", "6", "--png", str(picture)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(text + "\n" + parse(text).draw(6))
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["show", text, "--length", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mask_HLM"][0][4] == [1, 0, 1, 1, 1]


def test_show_writes_the_weights_as_png(capsys, tmp_path):
    assert main(["show", "softmax", "--png", str(tmp_path / "w.png")]) == 0
    assert (tmp_path / "w.png").read_bytes().startswith(b"\x89PNG")
    assert f"wrote {tmp_path / 'w.png'}" in capsys.readouterr().out


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_show_every_task(task, capsys):
    assert main(["show", task.name]) == 0
    out = capsys.readouterr().out
    assert f"As in:  regard train {task.name}" in out and "--data" in out and task.default_model in out
    assert main(["show", task.name, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["name"] == task.name and found["options"]["on_error"] == "stop" and found["train"]["seed"] == 0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("width=128", 128),
        ("dropout=0.1", 0.1),
        ("tied=true", True),
        ("depth=(2, 2)", (2, 2)),
        ("attention=local", "local"),
        ("attention=sigmoid,local", ("sigmoid", "local")),
        ("attention=local(radius=3), softmax under random_blocks(1, 4)", ("local(radius=3)", "softmax under random_blocks(1, 4)")),
        ("position=rotary", "rotary"),
    ],
)
def test_settings_of_a_model(text, value):
    assert parse_settings([text]) == {text.partition("=")[0]: value}
    assert parse_settings(format_settings(parse_settings([text]))) == parse_settings([text])


def test_every_command_is_explained(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert f"\n  {name} " in out and "As in:  regard " + name in command.__doc__
        assert main([name, "--help"]) == 0
        assert f"As in:  regard {name}" in capsys.readouterr().out


def test_env(capsys):
    assert main(["env", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["regard"] == regard.__version__ and found["torch"] == torch.__version__
    assert set(found["bfloat16"]) == {"usable", "faster", "needs_cap", "note"}
    assert main(["env"]) == 0
    out = capsys.readouterr().out
    assert found["bfloat16"]["note"] in out and found["cpu"]["model"] in out


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["lst"], "'list'"),
        (["list", "modles"], "'models'"),
        (["list", "--jsn"], "--json"),
        (["list", "taks"], "'tasks'"),
        (["train", "--steps", "3"], "no task is called"),
        (["evaluate"], "regard evaluate --help"),
        (["predict", "nowhere", "x"], "not a run"),
        (["look", "nowhere", "x"], "not a run"),
        (["complete", "nowhere", "x"], "not a run"),
        (["export", "nowhere", "--out", "x"], "not a run"),
        (["show"], "regard show --help"),
        (["show", "sofmax"], "'softmax'"),
        (["show", "soft-mx"], "'softmax'"),
        (["show", "windw(3)"], "'window'"),
        (["show", "window"], "window(3)"),
        (["show", "window(3"], "not a pattern"),
        (["show", "window(-1)"], "at least 0"),
        (["show", "softmax", "--length", "x"], "--length"),
        (["show", "softmax", "--length", "100000"], "expected 2 to 200"),
        (["show", "causal", "--png", "picture.gif"], ".png"),
        (["show", "random_blocks(1, 4, 0, 1000000000)"], "at most 16"),
        (["compare", "linea"], "'linear'"),
        (["compare", "--lengths", "0"], "1 to 1,048,576"),
        (["compare", "--heads", "3"], "heads=3"),
        (["compare", "--threads", "0"], "threads=0"),
        (["compare", "--minutes", "nan"], "minutes=nan"),
        (["compare", "--plot", "cost.gif"], ".png"),
        (["compare", "--dtype", "float8"], "float8"),
        (["show", "__import__('os').system('true')"], "not part of a pattern"),
    ],
)
def test_mistakes_take_one_line_and_exit_with_2(argv, says, capsys):
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.count("\n") == 1 and captured.err.startswith("regard: ")


@pytest.mark.parametrize(
    "argv", [["--help"], ["list", "--help"], ["show", "--help"], ["env", "--help"], ["compare", "--help"], ["demo", "--help"], []]
)
def test_help_has_an_example(argv, capsys):
    assert main(argv) == 0
    assert "As in:  regard" in capsys.readouterr().out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"regard {regard.__version__}\n"


def test_as_a_process():
    done = run("show", "causal & window(1)", "--length", "3")
    assert (done.returncode, done.stdout, done.stderr) == (0, "causal & window(1)\n■··\n■■·\n·■■\n", "")
    done = run("show", "sofmax")
    assert done.returncode == 2 and "Traceback" not in done.stderr and done.stdout == ""


def test_a_reader_that_leaves():
    process = subprocess.Popen(
        [sys.executable, "-m", "regard", "show", "causal", "--length", "200"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 141 and errors == b""


def test_a_terminal_without_the_characters(monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = run("show", "causal", "--length", "2")
    assert (done.returncode, done.stdout) == (0, "causal\n??\n??\n")
