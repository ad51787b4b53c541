"""Language models: the loss, perplexity by a sliding window against brute force, runs, and the command line."""

import json
import math
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
from tests.tasks.processes import check_two_processes

from regard.cli import main
from regard.data import TokenizedText, Tokenizer
from regard.errors import BadConfig, RegardError
from regard.models import LanguageModel, TextEncoder, Translator, build
from regard.tasks import Language, LanguageOptions, load_run, perplexity, task_of
from regard.tasks.language import Windows, summed_loss
from regard.train import OPTIMIZERS, AdamW, TrainOptions, optimizer_of

SMALL = ["--set", "width=32", "--set", "heads=2", "--set", "depth=1", "--context-length", "32", "--batch-size", "8", "--quiet"]
DOCUMENTS = [f"The number {n} is {'even' if n % 2 == 0 else 'odd'}, and {n + 1} is not.\n" for n in range(40)]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.jsonl"
    path.write_text("".join(json.dumps({"text": d}) + "\n" for d in DOCUMENTS))
    return path


def tiny(vocab_size, length=16):
    torch.manual_seed(0)
    return (
        build("gpt2", {"vocab_size": vocab_size, "context_length": length, "width": 16, "heads": 2, "depth": 2, "dropout": 0.0})
        .double()
        .eval()
    )


# -- the loss --------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_the_loss_is_that_of_each_document_alone():
    """Windows longer than all documents together: each token has read its own document from the beginning."""
    tokenizer = Tokenizer.train(DOCUMENTS, "char", 100, min_count=1)
    tokens = TokenizedText.of(DOCUMENTS[:4], tokenizer)
    model = tiny(len(tokenizer), 512)
    item, generator = Windows(tokens, np.array([[0, len(tokens) - 1]])), torch.Generator()
    task = Language(LanguageOptions(context_length=512, batch_size=2))
    found = task.loss(model, task.batch(item, generator))
    alone = 0.0
    for begin, end in zip(tokens.starts, tokens.ends, strict=True):
        ids = torch.from_numpy(tokens.ids[begin:end].astype(np.int64))
        alone += torch.nn.functional.cross_entropy(model(ids[None, :-1])[0], ids[1:], reduction="sum")
    torch.testing.assert_close(found.total, alone, atol=1e-9, rtol=0)
    assert found.count == len(tokens) - tokens.documents
    joined = Language(LanguageOptions(context_length=512, batch_size=2, documents="joined"))
    batch = joined.batch(item, generator)
    assert batch.document_BL is None and abs(float(summed_loss(model, batch)[0] - alone)) > 0.1


@pytest.mark.parametrize("bad", [{"context_length": 0}, {"batch_size": 0}, {"stride": 300}, {"valid_tokens": 0}])
def test_settings_that_make_no_sense(bad):
    with pytest.raises(BadConfig):
        LanguageOptions(**bad)


# -- perplexity ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "stride"), [(8, 8), (8, 4), (8, 1), (8, 3), (7, 5), (16, 16)])
@pytest.mark.parametrize("documents", [True, False])
@torch.no_grad()
def test_sliding_windows_against_each_token_alone(length, stride, documents):
    """Token i of a text has read the k-th window from its beginning, the first that reaches it: k = ⌈(i − length) / stride⌉."""
    texts = ["some words and some more", "x", "", "other words, and so on and on"]
    tokenizer = Tokenizer.train(texts, "char", 100, min_count=1)
    tokens = TokenizedText.of(texts, tokenizer)
    model = tiny(len(tokenizer))
    pairs = list(zip(tokens.starts.tolist(), tokens.ends.tolist(), strict=True)) if documents else [(0, len(tokens))]
    total, count, right, starts = 0.0, 0, 0, set(tokens.starts.tolist())
    for begin, end in pairs:
        ids = torch.from_numpy(tokens.ids[begin:end].astype(np.int64))
        for i in range(1, len(ids)):
            if begin + i in starts:
                continue
            first = max(0, math.ceil((i - length) / stride)) * stride
            assert i - first <= length and (i - first > length - stride or first == 0)
            logits = model(ids[None, first:i])[0, -1]
            total -= float(logits.log_softmax(-1)[ids[i]])
            right += int(logits.argmax() == ids[i])
            count += 1
    found = perplexity(model, tokens, length=length, stride=stride, batch=3, documents=documents)
    assert found.tokens == count == len(tokens) - len(texts)
    assert found.loss == pytest.approx(total / count, abs=1e-9) and found.accuracy == pytest.approx(right / count)
    size = sum(len(text.encode()) for text in texts)
    assert found.bytes == size and found.bits_per_byte == pytest.approx(total / math.log(2) / size, abs=1e-9)
    assert found.perplexity == pytest.approx(math.exp(total / count))


def test_uniform_guesses_are_worth_their_logarithm():
    """A model that knows nothing: nats are log N, and bits a byte of bytes log₂ N (with one end a document)."""
    tokenizer = Tokenizer.train(["x"], "byte", 260)
    model = tiny(len(tokenizer))
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    text = "é" * 50
    found = perplexity(model, TokenizedText.of([text], tokenizer))
    assert found.perplexity == pytest.approx(260) and found.tokens == 101 and found.bytes == 100
    assert found.bits_per_byte == pytest.approx(math.log2(260) * 101 / 100)
    part = perplexity(model, TokenizedText.of([text, text], tokenizer), at_most=40)
    assert part.tokens == 40 and part.bytes == round(200 * 40 / 202)


def test_unknown_characters_are_told():
    tokenizer = Tokenizer.train(["abc"], "char", 260, min_count=1)
    assert perplexity(tiny(len(tokenizer)), TokenizedText.of(["abz"], tokenizer)).unknown == pytest.approx(1 / 5)


@pytest.mark.parametrize(("options", "says"), [({"stride": 9, "length": 8}, "stride of 9"), ({}, "no text")])
def test_perplexity_of_what_cannot_be(options, says):
    tokenizer = Tokenizer.train(["abc"], "byte", 260)
    tokens = TokenizedText.of(["abc"] if options else [], tokenizer)
    with pytest.raises(RegardError, match=says):
        perplexity(tiny(260), tokens, **options)


# -- runs ------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("language")
    (root / "text.jsonl").write_text("".join(json.dumps({"text": d}) + "\n" for d in DOCUMENTS))
    out = root / "run"
    argv = ["train", "language", "--data", str(root / "text.jsonl"), "--tokenizer", "char", "--steps", "60", "--lr", "1e-2"]
    assert main([*argv, "--out", str(out), "--warmup-steps", "10", *SMALL]) == 0
    return out


def test_a_run_learns_and_is_whole(folder):
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [event["loss"] for event in events if event["event"] == "train"]
    assert losses[-1] < 0.6 * losses[0]
    run = load_run(folder, LanguageModel)
    assert run.task == "language" and run.model.config.vocab_size == len(run.processor.tokenizer) and not run.processor.labels
    assert task_of(run).options.context_length == 32 and run.config.digest


def test_a_run_says_what_it_is_not(folder):
    for kind, says in (
        (Translator, "expected a translator, got a causal language model .*: regard train translation"),
        (TextEncoder, "expected a text encoder"),
    ):
        with pytest.raises(RegardError, match=says):
            load_run(folder, kind)


def test_evaluate_prints_loss_perplexity_and_bits(folder, capsys, tmp_path):
    assert main(["evaluate", str(folder)]) == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("loss", "perplexity", "bits_per_byte"))
    (tmp_path / "other.txt").write_text("The number 7 is odd, and 8 is not.\n")
    assert main(["evaluate", str(folder), "--data", str(tmp_path / "other.txt"), "--stride", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bytes"] == 35 and found["tokens"] == 36 and found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert found["bits_per_byte"] == pytest.approx(found["loss"] * 36 / math.log(2) / 35)


def test_resuming_ends_where_going_on_would_have(text, tmp_path):
    argv = ["train", "language", "--data", str(text), "--vocab-size", "300", *SMALL, "--average", "0"]
    assert main([*argv, "--out", str(tmp_path / "once"), "--steps", "9"]) == 0
    assert main([*argv, "--out", str(tmp_path / "twice"), "--steps", "4"]) == 0
    assert main([*argv, "--out", str(tmp_path / "twice"), "--steps", "9", "--resume"]) == 0
    once, twice = (load_run(tmp_path / name).model for name in ("once", "twice"))
    assert all(a.equal(b) for a, b in zip(once.parameters(), twice.parameters(), strict=True))


def test_a_run_may_begin_with_another(folder, text, tmp_path, capsys):
    out = tmp_path / "on"
    assert main(["train", "language", "--data", str(text), "--init-from", str(folder), "--steps", "2", "--out", str(out), *SMALL]) == 0
    assert load_run(out).processor.tokenizer == load_run(folder).processor.tokenizer
    first, second = load_run(folder).model, load_run(out).model
    difference = max(float((a - b).detach().abs().max()) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert 0 < difference < 0.01


@pytest.mark.slow
def test_two_processes_give_what_one_gives(text, tmp_path):
    argv = ["train", "language", "--data", str(text), "--vocab-size", "300", *SMALL, "--steps", "4", "--accumulate", "2"]
    check_two_processes(argv, tmp_path)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["train", "langage", "--out", "x"], "'language'"),
        (["train", "language", "--out", "x", "--data", "nowhere"], "python-docs"),
        (["train", "language", "--out", "x", "--steps", "many"], "--steps"),
        (["train", "language", "--out", "x", "--model", "transformer", "--steps", "1"], "transformer"),
        (["train", "language", "--out", "x", "--model", "bert", "--steps", "1"], "bert is not a model for language; use one of"),
        (["train", "language", "--out", "x", "--set", "context_length=8", "--steps", "1"], "length 8"),
        (["train", "language", "--out", "x", "--context-length", "0"], "--context-length 0: expected 1 or more"),
        (["train", "language"], "--out"),
    ],
)
def test_mistakes_say_what_to_do(argv, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert says in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("task", ["", "translation", "language", "masked", "classify", "label"])
def test_help_has_an_example(task, capsys):
    assert main(["train", *([task] if task else []), "--help"]) == 0
    said = capsys.readouterr().out
    assert f"Examples:\n  regard train {task}" in said


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_by_name(text, tmp_path, optimizer):
    out = tmp_path / "run"
    argv = ["train", "language", "--data", str(text), "--tokenizer", "char", "--steps", "3", "--out", str(out), *SMALL]
    assert main([*argv, "--optimizer", optimizer]) == 0
    stored = TrainOptions(**load_run(out).config.train)
    assert optimizer_of(stored) == OPTIMIZERS[optimizer]()


def test_the_default_optimizer_is_what_it_was():
    assert optimizer_of(Language.default_train) == AdamW(betas=(0.9, 0.98)) and set(
        get_args(get_type_hints(TrainOptions)["optimizer"])
    ) == set(OPTIMIZERS)


def test_another_run_is_not_written_over(folder, text):
    """Nor is any file of it touched, though the vocabulary is made before training would find out."""
    before = {name: (folder / name).read_bytes() for name in ("config.json", "tokenizer.json", "model.safetensors")}
    assert main(["train", "language", "--data", str(text), "--tokenizer", "byte", "--steps", "1", "--out", str(folder), *SMALL]) == 2
    assert {name: (folder / name).read_bytes() for name in before} == before


def test_a_run_goes_on_with_its_own_data_only(text, tmp_path, capsys):
    argv = ["train", "language", "--data", str(text), "--tokenizer", "byte", "--out", str(tmp_path / "run"), *SMALL]
    assert main([*argv, "--steps", "2"]) == 0
    text.write_text(text.read_text() + json.dumps({"text": "one more"}) + "\n")
    assert main([*argv, "--steps", "3", "--resume"]) == 2
    assert "the data differ" in capsys.readouterr().err


def test_a_test_part_that_may_have_been_learned_from(text, tmp_path, capsys):
    assert (
        main(["train", "language", "--data", str(text), "--tokenizer", "byte", "--out", str(tmp_path / "run"), "--steps", "2", *SMALL]) == 0
    )
    text.write_text("".join(json.dumps({"text": d}) + "\n" for d in DOCUMENTS[:12]))  # few enough to be cut by place
    assert main(["evaluate", str(tmp_path / "run")]) == 2
    assert "has changed since it was trained" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "run"), "--data", str(text)]) == 0


def test_perplexity_leaves_the_model_as_it_was():
    model, tokens = tiny(260).train(), TokenizedText.of(["abc"], Tokenizer.train([], "byte", 260))
    model.blocks[0].eval()
    perplexity(model, tokens)
    assert model.training and not model.blocks[0].training
