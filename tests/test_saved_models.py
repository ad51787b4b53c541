"""Any model becomes a run: `regard.save` and `regard.load`; and `regard runs`, which lists them."""

import json
from dataclasses import replace

import pytest
import torch
from tests.tasks.examples import write_example

import regard
from regard.cli import main
from regard.data import Tokenizer, Tokenizers
from regard.errors import BadConfig, BadFile, NotSupported, RunExists
from regard.layers import add_lora
from regard.models import Classifier, build
from regard.runs import create, find_runs
from regard.tasks import Language, TextProcessor, find_task, load_run, make_run, predict, train
from regard.train.lock import locked

BYTES = Tokenizer.train([], "byte", 260)
SETTINGS = {"vocab_size": 260, "context_length": 16, "width": 8, "heads": 2, "depth": 1}
IDS = torch.arange(8)[None]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return build("gpt2", SETTINGS).eval()


def test_a_swapped_model_is_saved_and_comes_back_with_its_tokenizer(model, tmp_path, capsys):
    regard.save(model, tmp_path / "a", tokenizer=BYTES)
    loaded = regard.load(tmp_path / "a")
    assert loaded.tokenizer == BYTES
    regard.save(loaded.with_attention("linear"), tmp_path / "b")  # it carries the tokenizer along
    again = regard.load(tmp_path / "b")
    assert again.tokenizer == BYTES and [one.attention.facts.name for one in again.attentions().values()] == ["linear"]
    assert torch.equal(again(IDS), model.with_attention("linear").eval()(IDS))
    assert main(["complete", str(tmp_path / "b"), "Once", "--max-tokens", "3"]) == 0
    assert capsys.readouterr().err == ""  # it has finished


def test_a_classifier_is_saved_with_its_labels(model, tmp_path):
    classifier = Classifier(model, 2)
    with pytest.raises(BadConfig, match="0 labels were given for 2 classes"):
        regard.save(classifier, tmp_path / "a", tokenizer=BYTES)
    regard.save(classifier, tmp_path / "a", tokenizer=BYTES, labels=["no", "yes"])
    assert regard.load(tmp_path / "a").labels == ("no", "yes")
    assert predict(regard.load_run(tmp_path / "a"), ["text"])[0].text.split("\t")[0] in ("no", "yes")


def test_a_translator_of_two_vocabularies(tmp_path):
    pair = Tokenizers(BYTES, Tokenizer.train(["a b"], "char", 20, min_count=1))
    sizes = {"source_vocab_size": 260, "target_vocab_size": len(pair.target), "tied": "output", "width": 8, "heads": 2, "depth": (1, 1)}
    regard.save(build("transformer", sizes), tmp_path / "a", tokenizer=pair)
    assert regard.load(tmp_path / "a").tokenizer.target == pair.target


def test_what_could_not_be_used_is_refused_and_leaves_nothing(model, tmp_path):
    class Mine(type(model)):
        pass

    with pytest.raises(NotSupported, match="Mine is not one of `regard list models`"):
        regard.save(Mine(model.config), tmp_path / "a")
    with pytest.raises(BadConfig, match="the tokenizer has 260 tokens, and the model 20"):
        regard.save(build("gpt2", SETTINGS | {"vocab_size": 20}), tmp_path / "a", tokenizer=BYTES)
    assert not (tmp_path / "a").exists()
    regard.save(model, tmp_path / "a")
    with pytest.raises(RunExists):
        regard.save(model, tmp_path / "a")


@pytest.mark.parametrize("change", [{"regression": True}, {"multi_label": True}])
def test_the_options_of_the_task_are_kept(change, tmp_path):
    """Without them a regression would come back as a classifier of one class."""
    labels = ["1.5", "-2"] if "regression" in change else ["red|round", "round"]
    (tmp_path / "data.tsv").write_text("".join(f"thing number {n}\t{labels[n % 2]}\n" for n in range(60)))
    task = find_task("classify")
    example = write_example(task, tmp_path)
    options = replace(example.options, data=str(tmp_path / "data.tsv"), **change)
    train(task, options, replace(task.default_train, steps=1), tmp_path / "run", settings=example.settings, progress=False)
    before = load_run(tmp_path / "run")
    regard.save(regard.load(tmp_path / "run"), tmp_path / "saved")
    after = load_run(tmp_path / "saved")
    name = next(iter(change))
    assert after.config.options[name] is True and after.config.options["data"] == ""
    assert predict(after, ["thing number 3"])[0].values == predict(before, ["thing number 3"])[0].values


# -- regard runs -------------------------------------------------------------------------------------------------------


def test_runs_are_listed_with_their_state(model, tmp_path, capsys):
    example = write_example(Language, tmp_path)
    argv = ["train", "language", "--data", str(example.options.data), "--tokenizer", "char", "--context-length", "8", "--quiet"]
    sizes = [part for name, value in (("width", 8), ("heads", 2), ("depth", 1)) for part in ("--set", f"{name}={value}")]
    assert main([*argv, *sizes, "--steps", "2", "--evaluate-every", "1", "--out", str(tmp_path / "runs" / "trained")]) == 0
    regard.save(model.with_attention("linear"), tmp_path / "runs" / "saved", tokenizer=BYTES)
    assert find_runs(tmp_path / "runs" / "saved")[0].mechanism == "linear"
    run = make_run("language", model, TextProcessor(Tokenizers(BYTES)))
    create(tmp_path / "runs" / "begun", run.config, run.processor)
    create(tmp_path / "runs" / "broken", run.config, run.processor)
    (tmp_path / "runs" / "broken" / "config.json").write_text('{"format_version": 7}')
    (tmp_path / "runs" / "other").mkdir()
    (tmp_path / "runs" / "other" / "config.json").write_text('{"model_type": "gpt2"}')
    with locked(tmp_path / "runs" / "begun"):
        states = {one.folder.name: one.state for one in find_runs(tmp_path / "runs")}
    assert states == {"begun": "running", "broken": "damaged", "saved": "finished", "trained": "finished"}
    assert {one.state for one in find_runs(tmp_path / "runs") if one.folder.name == "begun"} == {"interrupted"}
    capsys.readouterr()
    assert main(["runs", str(tmp_path / "runs"), "--plot", str(tmp_path / "curves.png")]) == 0
    shown = capsys.readouterr()
    assert "mechanism" in shown.out.splitlines()[0]
    assert "format_version 7" in shown.err and (tmp_path / "curves.png").stat().st_size > 5000
    assert main(["runs", str(tmp_path / "runs"), "--json"]) == 0
    trained = next(one for one in json.loads(capsys.readouterr().out) if one["folder"].endswith("trained"))
    assert trained["mechanism"] == "softmax"
    assert (trained["task"], trained["step"], trained["metric"]) == ("language", 2, "loss") and trained["best"] > 0
    assert main(["runs", str(tmp_path / "nowhere")]) == 2 and "no such folder" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["runs", str(tmp_path / "empty")]) == 0 and "no runs in" in capsys.readouterr().out
    assert main(["runs", str(tmp_path / "empty"), "--plot", str(tmp_path / "x.png")]) == 2


def test_adapters_are_merged(model, tmp_path):
    """What is saved is a model like any other: it would not load with adapters."""
    add_lora(model, 2)
    for parameter in model.parameters():
        parameter.data.add_(0.05)
    regard.save(model, tmp_path / "a", tokenizer=BYTES)
    torch.testing.assert_close(regard.load(tmp_path / "a")(IDS), model(IDS))


@pytest.mark.parametrize("labels", [["a", "a"], [1, 2], ["\ud800", "b"], [None, "b"], [["a"], "b"]], ids=ascii)
def test_labels_that_could_not_be_read_again(labels, model, tmp_path):
    with pytest.raises(BadConfig, match="labels"):
        regard.save(Classifier(model, 2), tmp_path / "a", tokenizer=BYTES, labels=labels)
    assert not (tmp_path / "a").exists()


def test_wrong_arguments_are_named(model, tmp_path):
    out = tmp_path / "a"
    for kind, words, call in (
        (NotSupported, "Linear is not a model", lambda: regard.save(torch.nn.Linear(2, 2), out)),
        (BadConfig, "expected a Tokenizer", lambda: regard.save(model, out, tokenizer="bpe")),
        (BadConfig, "which has no classes", lambda: regard.save(model, out, tokenizer=BYTES, labels=["a"])),
        (NotSupported, "meta device", lambda: regard.save(build("gpt2", SETTINGS).to("meta"), out, tokenizer=BYTES)),
        (BadFile, "too long", lambda: regard.save(model, tmp_path / ("a" * 300), tokenizer=BYTES)),
        (BadFile, "null byte", lambda: regard.save(model, f"{out}\0", tokenizer=BYTES)),
        (BadFile, "too long", lambda: regard.load(tmp_path / ("a" * 300))),
        (BadFile, "null byte", lambda: regard.load(f"{out}\0")),
    ):
        with pytest.raises(kind, match=words) as error:
            call()
        assert "\n" not in str(error.value)
    assert not out.exists()


@pytest.mark.parametrize("command", ["runs", "evaluate", "predict", "look", "complete", "serve", "swap", "import", "export"])
def test_names_that_no_file_can_have(command, tmp_path, capsys):
    (tmp_path / "loop").symlink_to("loop")
    more = {"predict": ["text"], "look": ["text"], "complete": ["text"], "swap": ["linear", "--out", str(tmp_path / "b")],
            "import": ["--out", str(tmp_path / "b")], "export": ["--to", "huggingface", "--out", str(tmp_path / "b")]}  # fmt: skip
    for name in ("a" * 300, "loop", "loop/x", "\x1b[2J"):
        assert main([command, str(tmp_path / name), *more.get(command, [])]) == 2
        said = "".join(capsys.readouterr())
        assert "Traceback" not in said and "\x1b" not in said, said
