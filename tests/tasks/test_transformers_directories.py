"""A directory of transformers is taken wherever a run is: its task follows from its model."""

import json
from dataclasses import replace

import pytest
import torch
from tests.tasks.examples import write_example

import regard
from regard.cli import main
from regard.data import HFTokenizer, Tokenizers
from regard.decode import DecoderTokens
from regard.interop import export
from regard.models import build
from regard.runs import save
from regard.tasks import Classify, Label, Language, Masked, TextProcessor, load_run, make_run, train


@pytest.fixture(params=[Language, Classify, Label], ids=lambda task: task.name)
def both(request, tmp_path):
    """A run, and the same model as transformers writes it."""
    task = request.param
    example = write_example(task, tmp_path)
    options = task.default_train.replace(steps=2, epochs=None, seeds=(), schedule="constant", warmup_steps=0, average=0)
    data = replace(example.options, tokenizer="bpe", vocab_size=300)  # one that transformers has, too
    train(task, data, options, tmp_path / "run", settings={**example.settings, "hidden": 64} if task is not Language else example.settings)
    export(regard.load_run(tmp_path / "run"), tmp_path / "theirs")
    return task, example, data, tmp_path


def test_every_command_takes_it(both, capsys):
    task, example, data, folder = both
    found = []
    for name in ("run", "theirs"):
        capsys.readouterr()
        run = regard.load_run(folder / name)
        assert run.task == task.name and run.folder == folder / name
        assert main(["evaluate", str(folder / name), "--data", data.data, "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert main(["predict", str(folder / name), example.input]) == 0
        found.append((report["loss"], capsys.readouterr().out))
        assert main(["look", str(folder / name), example.input]) == 0 and "softmax" in capsys.readouterr().out
    if task is not Language:  # whose prompts begin without BOS over there
        assert found[0][1] == found[1][1] and found[0][0] == pytest.approx(found[1][0], abs=1e-5)
    assert main(["evaluate", str(folder / "theirs")]) == 2 and "no data of its own" in capsys.readouterr().err
    assert main(["export", str(folder / "theirs"), "--out", str(folder / "again")]) == 0
    ours, again = (regard.load(folder / name).state_dict() for name in ("theirs", "again"))
    assert all(ours[name].equal(again[name]) for name in ours)


def test_a_training_begins_with_it(both):
    task, example, data, folder = both
    settings = [
        "--init-from",
        str(folder / "theirs"),
        "--steps",
        "1",
        "--warmup-steps",
        "1",
        "--schedule",
        "constant",
        "--seeds",
        "--quiet",
    ]
    length = "--context-length" if task is Language else "--max-length"
    argv = ["train", task.name, "--data", data.data, length, "8", *settings, "--out", str(folder / "on")]
    assert main(argv) == 0
    run = load_run(folder / "on")
    assert run.config.init_from == str(folder / "theirs") and run.config.model == regard.load_run(folder / "theirs").config.model


def test_an_imported_one_is_a_run(both, capsys):
    task, example, _, folder = both
    assert main(["import", str(folder / "theirs"), "--out", str(folder / "imported")]) == 0
    assert f"a run of the task {task.name}" in capsys.readouterr().out
    run, direct = load_run(folder / "imported"), regard.load_run(folder / "theirs")
    assert (run.task, run.config.settings, run.processor.labels) == (task.name, direct.config.settings, direct.processor.labels)
    assert all(a.equal(b) for a, b in zip(run.model.parameters(), direct.model.parameters(), strict=True))


def test_a_language_model_completes_from_it(tmp_path, capsys):
    example = write_example(Language, tmp_path)
    data = replace(example.options, tokenizer="bpe", vocab_size=300)
    train(Language, data, Language.default_train.replace(steps=2), tmp_path / "run", settings=example.settings)
    export(load_run(tmp_path / "run"), tmp_path / "theirs")
    capsys.readouterr()
    for name in ("run", "theirs"):
        assert main(["complete", str(tmp_path / name), "The number", "--max-tokens", "4"]) == 0
        assert len(capsys.readouterr().out) > 1


def test_an_encoder_fills_in_masks_and_is_trained_on(tmp_path, capsys):
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "number", "is", "even", "odd", "not", "and", "##s"]
    torch.manual_seed(0)
    export(
        build("bert", {"vocab_size": len(names), "max_length": 16, "width": 16, "heads": 2, "depth": 1, "hidden": 16}), tmp_path / "theirs"
    )
    (tmp_path / "theirs" / "vocab.txt").write_text("\n".join(names) + "\n")
    data = write_example(Masked, tmp_path).options.data
    assert regard.load_run(tmp_path / "theirs").task == "masked"
    assert main(["predict", str(tmp_path / "theirs"), "the number is [MASK]", "--nbest", "3"]) == 0
    assert len(capsys.readouterr().out.split()) == 3
    assert main(["evaluate", str(tmp_path / "theirs"), "--data", data, "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) >= {"loss", "accuracy", "next_sentence_accuracy"}
    argv = ["train", "masked", "--data", data, "--max-length", "8", "--init-from", str(tmp_path / "theirs"), "--steps", "1", "--quiet"]
    assert main([*argv, "--out", str(tmp_path / "on")]) == 0
    assert load_run(tmp_path / "on").config.model == "bert"


def test_a_translator_of_transformers_translates_here(tmp_path, capsys):
    """What we export as Marian gives the same translations when it comes back; its own begin with padding instead of BOS."""
    torch.manual_seed(0)
    pairs = [("one two", "two one"), ("three", "three")] * 3
    tokenizers = Tokenizers.train(pairs, "bpe", 300)
    sizes = {"width": 16, "heads": 2, "depth": (1, 1), "hidden": 16, "placement": "post", "position": "sinusoidal_halves"}
    words = {"source_vocab_size": len(tokenizers.source), "target_vocab_size": len(tokenizers.target)}
    model = build("transformer", {**words, **sizes, "tied": "all", "output_bias": True, "activation": "gelu", "max_length": 64})
    save(make_run("translation", model, TextProcessor(tokenizers)), tmp_path / "run")
    export(load_run(tmp_path / "run"), tmp_path / "theirs")
    said = []
    for name in ("run", "theirs"):
        assert regard.load_run(tmp_path / name).task == "translation"
        assert main(["predict", str(tmp_path / name), "one two", "--beam", "2"]) == 0
        said.append(capsys.readouterr().out)
        assert main(["look", str(tmp_path / name), "one two", "--layer", "*cross*"]) == 0 and "cross" in capsys.readouterr().out
    assert said[0] == said[1]
    tokenizer = regard.load_run(tmp_path / "theirs").processor.tokenizer
    assert DecoderTokens.of(HFTokenizer(tokenizer._native, {"pad": 7, "eos": 5})) == DecoderTokens(first=7, end=5, banned=(7,))
    (tmp_path / "pairs.tsv").write_text("".join(f"one {n * 'two '}\t{n * 'two '}one\n" for n in range(1, 40)))
    argv = [
        "train",
        "translation",
        "--data",
        str(tmp_path / "pairs.tsv"),
        "--init-from",
        str(tmp_path / "theirs"),
        "--out",
        str(tmp_path / "x"),
    ]
    assert main([*argv, "--steps", "2", "--quiet"]) == 0  # with the special tokens of its own tokenizer
    assert isinstance(load_run(tmp_path / "x").processor.tokenizer, HFTokenizer)
