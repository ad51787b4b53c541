"""The run directory: configs that are read once and refused by name, folders that are not written over."""

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import regard
from regard import runs
from regard.cli import main
from regard.data import Tokenizer, Tokenizers
from regard.errors import BadConfig, BadFile, CannotSave, MissingFile, RunExists, UnknownName
from regard.models import LanguageModel, build
from regard.runs import RunConfig, checkpoints, create, parse_options, read_config, read_config_file, save, write_config
from regard.tasks import Language, LanguageOptions, TextProcessor, load_run, make_run

CONFIG = RunConfig(
    task="language",
    options={"data": 'a "quoted" name\n', "suffixes": [".txt", ".md"], "stride": None},
    model="gpt2",
    settings={"width": 16, "dropout": 0.1, "tied": True, "attention_overrides": [["blocks.0", "local"]]},
    train={"lr": 1e-05, "seeds": [0, 1], "betas": None},
    init_from="runs/a",
    digest="abc",
)


@pytest.fixture
def run():
    torch.manual_seed(0)
    model = build("gpt2", {"vocab_size": 260, "context_length": 16, "width": 8, "heads": 2, "depth": 1})
    return make_run("language", model, TextProcessor(Tokenizers(Tokenizer.train([], "byte", 260))))


def test_a_config_goes_to_json_and_back():
    assert RunConfig.from_json(json.loads(json.dumps(CONFIG.to_json())), "here") == CONFIG


def test_a_config_goes_to_toml_and_back(tmp_path):
    """But for what is None, which is left out, and what is found out during training."""
    (tmp_path / "options.toml").write_text(CONFIG.to_toml())
    found = read_config_file(tmp_path / "options.toml")
    assert found.options == {"data": 'a "quoted" name\n', "suffixes": [".txt", ".md"]} and found.train == {"lr": 1e-05, "seeds": [0, 1]}
    assert (found.model, found.settings, found.init_from, found.digest) == (CONFIG.model, CONFIG.settings, CONFIG.init_from, None)


def test_a_run_comes_back_as_it_was(run, tmp_path):
    loaded = load_run(save(run, tmp_path / "run"), LanguageModel)
    assert loaded.config == run.config and loaded.processor.tokenizer == run.processor.tokenizer and loaded.folder == tmp_path / "run"
    ids = torch.randint(260, (1, 8))
    assert torch.equal(loaded.model(ids), run.model(ids)) and not loaded.model.training


def test_its_config_is_read_once(run, tmp_path, monkeypatch):
    save(run, tmp_path / "run")
    seen = []
    monkeypatch.setattr(runs, "read_json", lambda folder, read=runs.read_json: seen.append(folder) or read(folder))
    regard.load_run(tmp_path / "run")
    load_run(tmp_path / "run")
    assert len(seen) == 2


def test_a_folder_is_not_written_over(run, tmp_path):
    save(run, tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    for again in (lambda: save(run, tmp_path / "run"), lambda: create(tmp_path / "run", run.config, run.processor)):
        with pytest.raises(RunExists, match="already holds a run"):
            again()
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_of_many_at_the_same_moment_one_writes(tmp_path, monkeypatch):
    """Threads share a process number, so each gets a draft of its own name."""
    numbers = iter(range(100))
    monkeypatch.setattr(runs.os, "getpid", lambda: next(numbers))

    def begin(n):
        try:
            write_config(tmp_path, RunConfig(task=f"t{n}"), new=True)
        except RunExists:
            return 0
        return 1

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(begin, range(40))) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_folder_that_cannot_be_written_to(run, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CannotSave, match="choose another folder"):
        write_config(tmp_path / "file" / "run", run.config, new=True)


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("{", BadFile, "not JSON"),
        ("[]", BadFile, "format_version"),
        ('{"format_version": 1}', BadFile, "this version of regard reads 2"),
        ('{"format_version": 2, "model": 3}', BadFile, "its name and its config"),
        ('{"format_version": 2, "options": {}}', BadConfig, "task"),
        ('{"format_version": 2, "task": "language", "option": {}}', UnknownName, "'options'"),
        ('{"format_version": 2, "task": "langage"}', UnknownName, "'language'"),
        ('{"format_version": 2, "task": "language", "options": {"stride": "x"}}', BadConfig, "stride"),
        ('{"format_version": 2, "task": "language", "options": {"batch_size": 0}}', BadConfig, "batch_size=0, expected 1 or more"),
    ],
)
def test_configs_that_make_no_sense(text, error, says, tmp_path):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(error, match=says):
        load_run(tmp_path)


def test_what_is_not_there(run, tmp_path):
    with pytest.raises(MissingFile, match="not a run"):
        read_config(tmp_path)
    create(tmp_path / "begun", run.config, run.processor)
    with pytest.raises(MissingFile, match="--resume"):
        load_run(tmp_path / "begun")
    (tmp_path / "begun" / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(BadFile, match="not a safetensors file"):
        load_run(tmp_path / "begun")
    with pytest.raises(BadFile, match="is a file"):
        read_config(tmp_path / "begun" / "config.json")


def test_options_are_checked_by_their_annotations():
    assert parse_options(LanguageOptions, {"shares": [0.1, 0.2], "documents": "joined"}, "x") == Language.Options(
        shares=(0.1, 0.2), documents="joined"
    )
    for wrong, says in (({"documents": "apart"}, "documents"), ({"shares": [0.1]}, "shares"), ({"batch_size": 1.5}, "batch_size")):
        with pytest.raises(BadConfig, match=says):
            parse_options(LanguageOptions, wrong, "x")


def test_hostile_folders_are_listed(run, tmp_path, capfd, request):
    """Names that command a terminal or are not UTF-8, links to nothing, pipes, folders deeper than Python's stack, numbers beyond floats."""
    folder = tmp_path / "runs"
    request.addfinalizer(lambda: subprocess.run(["rm", "-rf", folder], check=True))  # too deep for pytest to remove
    for name in ("good", "bad\x1b[2J\nname", os.fsdecode(b"not-utf8-\xff")):
        save(run, folder / "new")
        os.rename(folder / "new", folder / name)  # by others: regard makes none whose name is not UTF-8
    lines = [
        {"event": "start", "metric": "loss\x1b]0;x\x07", "higher": False},
        {"event": "evaluation", "step": 10**400, "loss\x1b]0;x\x07": 10**400},
        {"event": "evaluation", "step": 1, "loss\x1b]0;x\x07": 2},
    ]
    (folder / "good" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "good" / "state" / "step-x9").mkdir(parents=True)
    (folder / "good" / "state" / "step-x9" / "model.safetensors").touch()
    (folder / "link").mkdir()
    (folder / "link" / "config.json").symlink_to("nothing")
    (folder / "pipe").mkdir()
    os.mkfifo(folder / "pipe" / "config.json")
    (folder / "long").mkdir()
    (folder / "long" / "config.json").write_text((folder / "good" / "config.json").read_text())
    (folder / "long" / "metrics.jsonl").touch()
    os.truncate(folder / "long" / "metrics.jsonl", 1 << 40)
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(1200):  # deeper than Python's stack
        os.mkdir("a", dir_fd=descriptor)
        below = os.open("a", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    assert main(["runs", str(folder), "--plot", str(tmp_path / "curves.png")]) == 0
    shown = "".join(capfd.readouterr())
    assert "\x1b" not in shown and "\x07" not in shown and "Traceback" not in shown
    assert "good" in shown and "damaged" in shown and "a line of" in shown
    assert checkpoints(folder / "good") == []
    assert main(["runs", str(folder), "--json"]) == 0
