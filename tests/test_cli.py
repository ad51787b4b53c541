"""The command line: thin, helpful, and quiet about its insides."""

import contextlib
import dataclasses
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
import torch
import tyro

import regard
import regard.attention
import regard.tasks
from regard import MECHANISMS, SoftmaxAttention, catalogue
from regard.cli import COMMANDS, GROUPS, _facts, _help, _pages, load_command, main
from regard.cli._command import CONFIG, format_settings, parse_settings
from regard.look.examples import example
from regard.patterns import parse
from regard.tasks import TASKS, Language

ANSI = re.compile(r"\x1b\[[0-9;]*m")


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
    assert json.loads(capsys.readouterr().out) == catalogue.details("mechanisms")


@pytest.mark.parametrize("kind", ["models", "tasks", "recipes", "patterns"])
def test_other_lists(kind, capsys):
    assert main(["list", kind]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in catalogue.listed(kind))
    assert main(["list", kind, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == catalogue.details(kind)


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
    torch.testing.assert_close(weights_LM, example(regard.SoftmaxAttention, 7).view().weights_BHLM[0, 0])
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
    assert f"Examples:\n  regard train {task.name}" in out and "--data" in out and task.default_model in out
    assert main(["show", task.name, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    found = found.get("tasks", found)  # where a model has the same name, both are there
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
    assert all(f"\n{group}:\n" in out for group in GROUPS)
    for name in COMMANDS:
        assert f"\n  {name} " in out
        assert main([name, "--help"]) == 0
        page = capsys.readouterr().out
        assert f"Examples:\n  regard {name}" in page and "None" not in page and "STR" not in page
        assert main(["help", name]) == 0 and capsys.readouterr().out == page


def test_env(capsys):
    assert main(["env", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["regard"] == regard.__version__ and found["torch"] == torch.__version__
    assert set(found["bfloat16"]) == {"usable", "faster", "needs_cap", "note"}
    assert main(["env"]) == 0
    out = capsys.readouterr().out
    assert "bfloat16" in out and found["cpu"]["model"] in out  # measured twice, so the note may differ


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["lst"], "'list'"),
        (["list", "modles"], "'models'"),
        (["list", "--jsn"], "did you mean --json?"),
        (["train", "translation", "--learning-rate", "1"], "did you mean --lr? See regard train translation --help"),
        (["list", "--beam", "4"], "option of regard evaluate, regard predict"),
        (["list", "--zzzzz"], "See regard list --help"),
        (["list", "taks"], "'tasks'"),
        (["train", "--steps", "3"], "expected a task before --steps"),
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
        (["show", "window(-1)"], "0 or more"),
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
    ("typed", "says"),
    [
        ("--block-size 64", "did you mean --context-length?"),
        ("--block_size 64", "did you mean --context-length?"),
        ("--n-layer 2", "did you mean --set depth=…?"),
        ("--num_layers 2", "did you mean --set depth=…?"),
        ("--num-hidden-layers 2", "did you mean --set depth=…?"),
        ("--n-head 2", "did you mean --set heads=…?"),
        ("--n_embd 8", "did you mean --set width=…?"),
        ("--hidden-size 8", "did you mean --set width=…?"),
        ("--dropout 0.1", "did you mean --set dropout=…?"),
        ("--max-iters 9", "did you mean --steps?"),
        ("--max-steps 9", "did you mean --steps?"),
        ("--learning-rate 1", "did you mean --lr?"),
        ("--gpus 1", "did you mean --device cuda"),
        ("--fp16", "did you mean --precision bfloat16?"),
        ("--bf16", "did you mean --precision bfloat16?"),
        ("--eval-interval 5", "did you mean --evaluate-every?"),
        ("--per-device-train-batch-size 8", "did you mean --batch-size?"),
        ("--num-train-epochs 3", "did you mean --epochs?"),
        ("--warmup-iters 9", "did you mean --warmup-steps?"),
        ("--compile=False", "--compile is a switch, which takes no value; leave it out"),
        ("--compile=True", "--compile is a switch, which takes no value; write --compile"),
        ("--steps 1e3", "--steps 1e3: expected a whole number"),
        ("--minutes x", "--minutes x: expected a number"),
        ("--lr=-1", "--lr -1: expected above 0"),
        ("--batch-size 0", "--batch-size 0: expected 1 or more"),
        ("--betas 0.9 2", "--betas 0.9 2.0: expected 0 or more, below 1"),
        ("--set width=abc", "--set width=abc: expected a whole number, 1 or more; regard show gpt2"),
        ("--set depth=0", "--set depth=0: expected a whole number, 1 to 4096"),
        ("--set dropout=2", "--set dropout=2: expected a number, 0 or more, below 1"),
        ("--set n_layer=3", "--set n_layer=3: gpt2 calls it depth; write --set depth=3"),
        ("--set width=10000000", "GiB is available"),
        ("--device gpu", "--device gpu: expected auto, cpu, cuda, cuda:1 or mps"),
    ],
)
def test_names_of_other_programs_are_understood_and_types_stay_inside(typed, says, tmp_path, capsys):
    (tmp_path / "book.txt").write_text("the cat sat on the mat. " * 200)
    argv = ["train", "language", "--data", str(tmp_path / "book.txt"), "--out", str(tmp_path / "run"), "--tokenizer", "byte"]
    assert main([*argv, *typed.split()]) == 2
    captured = capsys.readouterr()
    assert says in captured.err and captured.err.count("\n") == 1
    assert not re.search(r"\{None\}|INT\b|FLOAT|`int`|Options|Config", captured.err) and not (tmp_path / "run").exists()


def test_every_synonym_leads_to_what_there_is():
    flags = {flag for names in _pages.flags().values() for flag in names}
    assert {one.split()[0] for words in _help.SYNONYMS.values() for one in words} <= flags
    settings = {row["name"] for entry in catalogue.details("models") for row in entry["settings"]}
    assert set(_help.SETTING_SYNONYMS.values()) <= settings


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (("--temperature", "-1"), "--temperature -1: expected a number of at least 0"),
        (("--max-tokens", "many"), "--max-tokens many: expected a whole number"),
        (("--top-p", "3"), "--top-p 3: expected more than 0 and at most 1"),
    ],
)
def test_options_of_generation_are_named_as_they_were_typed(typed, says, capsys):
    assert main(["complete", "nowhere", "a prompt", *typed]) == 2
    assert capsys.readouterr().err.startswith(f"regard: {says}")


def test_a_mistyped_run_is_no_model_of_the_hub(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "book").mkdir(parents=True)
    (tmp_path / "runs" / "book" / "config.json").write_text("{}")
    assert main(["complete", "runs/bok", "a prompt"]) == 2
    err = capsys.readouterr().err
    assert "runs/bok: no such run; did you mean runs/book?" in err and "hf download" not in err
    assert main(["complete", "openai-community/gpt2", "a prompt"]) == 2
    assert "hf download openai-community/gpt2" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv", [["--help"], ["list", "--help"], ["show", "--help"], ["env", "--help"], ["compare", "--help"], ["demo", "--help"], []]
)
def test_help_has_an_example(argv, capsys):
    assert main(argv) == 0
    assert "Examples:\n  regard" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [["--version"], ["-V"], ["version"]])
def test_version(argv, capsys):
    assert main(argv) == 0
    assert capsys.readouterr().out == f"regard {regard.__version__}\n"


def test_train_alone_lists_the_tasks(capsys):
    assert main(["train"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {task.name} " in out for task in TASKS)


# -- start-up ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _facts.stored.cache_clear()
    yield tmp_path / "regard"
    _facts.stored.cache_clear()


def test_facts_are_kept_until_a_source_changes(empty_cache, monkeypatch):
    first = _facts.entries("patterns")
    (kept,) = empty_cache.iterdir()
    assert first == json.loads(kept.read_text(encoding="utf-8")) == json.loads(json.dumps(catalogue.details("patterns")))
    monkeypatch.setattr(catalogue, "details", lambda kind: pytest.fail("made again"))
    _facts.stored.cache_clear()
    assert _facts.entries("patterns") == first
    monkeypatch.setattr(catalogue, "details", lambda kind: [{"name": "new"}])
    monkeypatch.setattr(_facts, "fingerprint", lambda: "other")
    _facts.stored.cache_clear()
    assert _facts.entries("patterns") == [{"name": "new"}] and [path.name for path in empty_cache.iterdir()] == ["patterns-other.json"]


def test_facts_without_a_cache(empty_cache):
    empty_cache.write_text("in the way")
    assert _facts.entries("patterns")[0]["name"] == catalogue.details("patterns")[0]["name"]


def test_a_damaged_cache_is_made_again(empty_cache):
    first = _facts.entries("patterns")
    (kept,) = empty_cache.iterdir()
    kept.write_text("[{")
    _facts.stored.cache_clear()
    assert _facts.entries("patterns") == first and json.loads(kept.read_text(encoding="utf-8")) == first


def test_facts_of_tasks_are_those_of_their_classes():
    assert _facts.entries("tasks") == json.loads(json.dumps(catalogue.details("tasks")))


def test_what_is_registered_is_listed(monkeypatch):
    class Elsewhere(SoftmaxAttention):
        """Softmax from elsewhere."""

        facts = dataclasses.replace(SoftmaxAttention.facts, name="elsewhere")

    monkeypatch.setitem(regard.attention.registered, "elsewhere", Elsewhere)
    assert _facts.entries("mechanisms")[-1]["name"] == "elsewhere"


def test_a_registered_task_has_a_help_page(monkeypatch, capsys):
    class Mine(Language):
        """Train mine.

        As in:  regard train mine --out runs/mine
        """

        name = "mine"

    monkeypatch.setitem(regard.tasks.registered, "mine", Mine)
    assert main(["train"]) == 0 and "\n  mine  " in capsys.readouterr().out
    assert main(["train", "mine", "--help"]) == 0 and "--context-length" in capsys.readouterr().out
    assert main(["list", "tasks"]) == 0 and "Train mine." in capsys.readouterr().out
    assert main(["train", "mine", "--print-config"]) == 0 and 'task = "mine"' in capsys.readouterr().out


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_help_shows_what_matters_and_help_all_the_rest(task, capsys):
    assert main(["train", task.name, "--help"]) == 0
    short = re.findall(r"^  (--[a-z-]+)", capsys.readouterr().out, re.M)
    assert main(["train", task.name, "--help-all"]) == 0
    long = re.findall(r"^  (--[a-z-]+)", capsys.readouterr().out, re.M)
    assert {"--data", "--out", "--model", "--minutes", "--steps", "--lr", "--device", "--help-all"} <= set(short)
    assert len(short) <= 16 < len(long) and set(short) - {"--help-all"} <= set(long) and len(set(long)) == len(long)


LIGHT = [
    *(["--version"], ["--help"], ["help", "show"], ["train"], ["list"], ["list", "models", "--json"], ["list", "patterns"]),
    *(["show", "softmax"], ["show", "gpt2"], ["show", "translation"], ["show", "memory2020"], ["completion", "bash"], ["list", "--jsn"]),
    *([name, "--help"] for name in COMMANDS),
    *(["train", task.name, "--help"] for task in TASKS),
]


@pytest.mark.parametrize("argv", LIGHT, ids=" ".join)
def test_what_needs_no_pytorch_does_not_import_it(argv, big_imports):
    """Not one of the big ones. Without a bound in seconds: machines differ."""
    assert big_imports[" ".join(argv)] == []


@pytest.fixture(scope="module")
def big_imports(tmp_path_factory) -> dict[str, list[str]]:
    """Command → what it imports of the big packages. One process for all: after each they are forgotten."""
    code = """
import contextlib, io, json, sys
from regard.cli import main
found = {}
for argv in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        main(argv)
    big = [name for name in ("torch", "numpy", "matplotlib", "rich") if name in sys.modules]
    found[" ".join(argv)] = big
    for name in [name for name in sys.modules if name.partition(".")[0] in big]:
        del sys.modules[name]
print(json.dumps(found))
"""
    home = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(home))
        _facts.stored.cache_clear()
        for kind in ("mechanisms", "models", "recipes", "patterns", "pictures"):  # what the first user of a version waits for
            _facts.stored(kind)
    env = os.environ | {"XDG_CACHE_HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", code], input=json.dumps(LIGHT), capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_options_shown_are_those_that_are_parsed():
    """tyro parses, `_options` explains: both must know the same names."""
    for name in COMMANDS:
        if name == "train":
            continue
        page = io.StringIO()
        with contextlib.redirect_stdout(page), contextlib.suppress(SystemExit):
            tyro.cli(load_command(name).concrete(), args=["--help"], config=CONFIG)
        parsed = set(re.findall(r"^\W{0,4}(?:-h, )?(--[a-z][a-z-]*)", ANSI.sub("", page.getvalue()), re.M)) - {"--help"}
        assert parsed == {option.name for option in _pages.page(name)[1] if not option.positional}, name


def test_text_comes_before_pytorch(monkeypatch, capsys):
    """`show` of a mechanism prints what it knows before it draws what no cache holds."""
    monkeypatch.setitem(sys.modules, "regard.attention", None)  # cannot be imported
    with pytest.raises(ImportError):
        main(["show", "softmax", "--length", "13"])
    assert "Avoid it" in capsys.readouterr().out


LISTEN = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # jobs in the background of a shell ignore it


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
@pytest.mark.parametrize("module", ["regard.compare", "torch", "torch.nn"])
def test_an_interrupt_while_starting_is_quiet(module):
    """At the import of a module: an exception there could surface anywhere."""
    code = f"""
{LISTEN}
import os, sys
from regard.cli import main
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
sys.exit(main(["compare"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 130 and done.stderr.splitlines()[-1:] == ["regard: interrupted"] and "Traceback" not in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_an_interrupt_before_the_command_line_is_imported_is_quiet():
    code = f"""
{LISTEN}
import os, sys
class Interrupt:
    def find_spec(name, *more):
        if name == "regard.cli":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt)
from regard.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


# -- what a terminal shows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", catalogue.KINDS)
def test_tables_fit_80_columns_and_never_cut_a_name(kind, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["list", kind]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    firsts = {line.partition("  ")[0] for line in lines}
    assert all(row["name"] in firsts for row in _facts.entries(kind))


def test_help_fits_80_columns_but_for_examples(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    for name in _pages.names():
        assert main([*name.split(), "--help"]) == 0
        long = [line for line in capsys.readouterr().out.splitlines() if len(line) > 80 and "regard " not in line]
        assert not long or all(line.startswith("  --") for line in long), name  # choices stay whole


def test_no_color(monkeypatch):
    from regard.cli._command import bold

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert bold("x") == "\x1b[1mx\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert bold("x") == "x"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(word in script for word in ("translation", "--evaluate-every".lstrip("-"), "softmax", "memory2020"))


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("line", "found"), [("regard sh", "show"), ("regard train tr", "translation"), ("regard train language --warm", "--warmup-steps")]
)
def test_bash_completes(line, found):
    words = line.split()
    script = subprocess.run([sys.executable, "-m", "regard", "completion", "bash"], capture_output=True, text=True, check=True).stdout
    ask = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _regard; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", script + ask], capture_output=True, text=True, check=True)
    assert found in done.stdout.split(), done.stderr


def test_as_a_process():
    done = run("show", "causal & window(1)", "--length", "3")
    assert (done.returncode, done.stdout, done.stderr) == (0, "causal & window(1)\n■··\n■■·\n·■■\n", "")
    done = run("show", "sofmax")
    assert done.returncode == 2 and "Traceback" not in done.stderr and done.stdout == ""


def test_a_reader_that_leaves():
    process = subprocess.Popen([sys.executable, "-m", "regard", "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 141 and errors == b""


def test_a_terminal_without_the_characters(monkeypatch):
    shown = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", shown)
    assert main(["show", "causal", "--length", "2"]) == 0
    assert shown.buffer.getvalue() == b"causal\n??\n??\n"
