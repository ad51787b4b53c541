"""Documents from a folder to a picture: how they become tokens, and `regard train classify --model han` on a folder per class."""

import json
import re
from pathlib import Path

import pytest
import torch

from regard.cli import main
from regard.data import EOS, Tokenizer
from regard.errors import BadFile
from regard.look.trees import BAR, MAX_SENTENCES, document_text, pieces
from regard.models import build
from regard.tasks import Classify, ClassifyOptions, attention_maps, evaluate, load_run, predict, train
from regard.tasks.special_tokens import frame, frame_document
from regard.train import TrainOptions

SETTINGS = {"embedding": 8, "width": 4, "hidden": 8, "sentence_length": 12, "max_sentences": 20}
TRAIN = TrainOptions(steps=3, log_every=1, evaluate_every=3, schedule="constant", warmup_steps=0, average=0, lr=1e-2)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(["the film was good. bad, film! Mr. 3"], "word", 100, min_count=1)


def make_folder(path, **labels):
    for part in ("train", "test"):
        for label in labels.get(part, ("pos", "neg")):
            (path / part / label).mkdir(parents=True)
            for n in range(12 if part == "train" else 3):
                text = f"Film {n} begins. It was {'good' if label == 'pos' else 'bad'}!\nMr. Hall paid $3.50."
                (path / part / label / f"{n}.txt").write_text(text)
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("documents")
    options = ClassifyOptions(data=str(make_folder(folder / "docs")), tokenizer="word", lowercase=True, batch_size=8)
    train(Classify, options, TRAIN, folder / "run", model="han", settings=SETTINGS, progress=False)
    return load_run(folder / "run")


# -- documents as tokens -----------------------------------------------------------------------------------------------


def test_a_segment_per_sentence(tokenizer):
    ids, segments = frame_document(tokenizer, "the film was good. Bad film!\nMr. 3", 100, 50, 10)
    assert segments == [5, 3, 3] and tokenizer.decode(ids) == "the film was good. ⟨unk⟩ film! Mr. 3"  # Bad is unknown, bad is not


@pytest.mark.parametrize(
    ("limits", "segments"),
    [((100, 50, 10), [5, 3, 3]), ((100, 2, 10), [2, 2, 1, 2, 1, 2, 1]), ((7, 50, 10), [5, 2]), ((100, 50, 2), [5, 3]), ((100, 2, 4), [2, 2, 1, 2])],
)  # fmt: skip
def test_limits_of_a_document(tokenizer, limits, segments):
    """Tokens per document, tokens per sentence, sentences per document: long sentences become several, the end of a document is lost."""
    found = frame_document(tokenizer, "the film was good. Bad film!\nMr. 3", *limits)
    assert found.segments == segments and len(found.ids) == sum(segments)


def test_an_empty_document_is_the_end_token(tokenizer):
    assert frame_document(tokenizer, " \n ", 100, 50, 10) == ([EOS], [1])


def test_a_hundred_thousand_words(tokenizer):
    han = build("han", {**SETTINGS, "vocab_size": len(tokenizer), "max_length": 500, "max_sentences": 60})
    for text in ("the film was good. " * 25_000, "film " * 100_000, "film" * 100_000, "." * 400_000):
        ids, segments = frame(tokenizer, [text], 500, han)
        assert len(ids) <= 500 and len(segments) <= 60 and max(segments) <= 12 and sum(segments) == len(ids)
    assert len(frame(tokenizer, ["film " * 100_000], 500, han).ids) == 500


def test_spaces_between_sentences_are_those_of_the_text():
    tokenizer = Tokenizer.train(["ab. Cd。Ef"], "char", 30, min_count=1)
    assert tokenizer.decode(frame_document(tokenizer, "ab.\nCd。Ef", 50, 50, 50).ids) == "ab. Cd。Ef"


# -- training and use --------------------------------------------------------------------------------------------------


def test_the_length_follows_from_the_model(trained, tmp_path):
    assert trained.model.max_length == 2048  # documents are long; texts have 128 tokens if nothing is said
    assert Classify().longest(type(trained.model.body)) == 2048 and Classify().longest(type(build("bert", vocab_size=9))) == 128
    assert Classify(ClassifyOptions(max_length=64)).longest(type(trained.model.body)) == 64
    assert trained.config.train["lr"] == TRAIN.lr and Classify.train_defaults("han").lr == 2e-3


def test_folders_are_evaluated(trained):
    whole, part = (evaluate(trained, str(path)) for path in ("", trained_data(trained) / "test"))
    assert whole.details["examples"] == 6 and part.details["examples"] == 6  # the test part; a folder
    assert evaluate(trained, str(trained_data(trained))).details["examples"] == 30
    assert whole.metrics == part.metrics


def trained_data(run):
    return Path(run.config.options["data"])


def test_long_and_empty_documents_are_answered(trained):
    found = predict(trained, ["good film! " * 50_000, "…", "Film 3 begins."])
    assert all(0.5 <= one.values["labels"][0]["probability"] <= 1 for one in found)


def test_a_label_of_the_test_part_alone(tmp_path):
    folder = make_folder(tmp_path / "docs", test=("pos", "neg", "so-so"))
    options = ClassifyOptions(data=str(folder), tokenizer="word", batch_size=8)
    with pytest.raises(
        BadFile, match=r"label that does not occur among the training examples .'so-so'; they have 'neg', 'pos'.*--on-error skip"
    ):
        train(Classify, options, TRAIN, tmp_path / "run", model="han", settings=SETTINGS, progress=False)
    assert not (tmp_path / "run").exists()
    skipping = ClassifyOptions(data=str(folder), tokenizer="word", batch_size=8, on_error="skip")
    train(Classify, skipping, TRAIN, tmp_path / "run", model="han", settings=SETTINGS, progress=False)
    run = load_run(tmp_path / "run")
    assert "3 label that does not occur" in run.config.skipped and evaluate(run).details["examples"] == 6


def test_on_the_command_line(tmp_path, capsys):
    folder = make_folder(tmp_path / "docs")
    (folder / "train" / "neg" / "empty.txt").touch()
    given = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    command = [
        "train",
        "classify",
        "--model",
        "han",
        "--data",
        str(folder),
        "--tokenizer",
        "word",
        "--steps",
        "2",
        "--seeds",
        "--quiet",
        *given,
    ]
    assert main([*command, "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert "empty.txt: empty document; remove it" in error and error.count("\n") == 1
    assert main([*command, "--on-error", "skip", "--out", str(tmp_path / "run")]) == 0
    assert "1 empty document" in capsys.readouterr().err
    text, html = "Film 3 begins. It was good!\nMr. Hall paid.", tmp_path / "look.html"
    assert main(["look", str(tmp_path / "run"), text, "--png", str(tmp_path / "look.png")]) == 0
    shown = capsys.readouterr().out
    assert len(re.findall(r"^\d\.\d{3} ", shown, re.MULTILINE)) == 3 and "without sentence" in shown
    assert (tmp_path / "look.png").read_bytes().startswith(b"\x89PNG")
    assert main(["look", str(tmp_path / "run"), text, "--html", str(html)]) == 0 and html.stat().st_size > 10_000
    assert main(["predict", str(tmp_path / "run"), text.replace("\n", " "), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["labels"]


# -- both levels of attention ------------------------------------------------------------------------------------------


def test_three_maps_of_a_document(trained):
    note, maps = attention_maps(trained, "Film 3 begins. It was good! Mr. Hall paid $3.50.")
    words, sentences, document = (maps.view(layer) for layer in ("words", "sentences", "document"))
    assert maps.layers == ["words", "sentences", "document"] and len(words.rows) == 3 == len(sentences.columns)
    for m in (words, sentences, document):
        torch.testing.assert_close(m.weights_BHLM.sum(-1), torch.ones(1, 1, len(m.rows)))
    spans = document.layout.spans
    assert [end - first for first, end in spans] == [4, 4, 9] and words.layout == document.layout
    for s, (first, end) in enumerate(spans):
        assert not words.weights_BHLM[0, 0, s, :first].any() and not words.weights_BHLM[0, 0, s, end:].any()
        torch.testing.assert_close(document.weights_BHLM[0, 0, 0, first:end].sum(), sentences.weights_BHLM[0, 0, 0, s])
    label, probability = note.splitlines()[0].split("\t")
    assert label in ("neg", "pos") and 0.5 <= float(probability) <= 1
    assert attention_maps(trained, "Film 3 begins.", "sentences")[1].layers == ["sentences"]
    assert attention_maps(trained, "Film 3 begins.", 2)[1].layers == ["document"]


def test_a_document_as_text(trained):
    _, maps = attention_maps(trained, "Film 3 begins. It was good! Mr. Hall paid $3.50.")
    lines = document_text(maps.view("document"), columns=60).splitlines()
    assert "film 3 begins ." in lines[1] and max(map(len, lines[1:-2])) <= 60
    heads = [line for line in lines if re.match(r"\d\.\d{3} ", line)]
    assert len(heads) == 3 and max(line[6 : 6 + BAR].count("█") for line in heads) == BAR  # the bar of the largest weight is full
    assert "█" in "".join(line[13:] for line in lines[2:-2])
    narrow = document_text(maps.view("document"), columns=30).splitlines()
    assert len(narrow) > len(lines) and sum(word in "".join(narrow) for word in ("begins", "good", "hall")) == 3


def test_of_many_sentences_those_of_largest_weight_are_drawn(trained):
    _, maps = attention_maps(trained, "Film 3 begins. It was good! " * 10)
    assert len(maps.view("sentences").columns) == 20
    long = build("han", {**SETTINGS, "vocab_size": trained.model.config.vocab_size, "max_sentences": 100})
    trained.model.body, body = long, trained.model.body
    try:
        _, maps = attention_maps(trained, "Film 3 begins. It was good! " * 40)
    finally:
        trained.model.body = body
    lines = document_text(maps.view("document"), columns=80).splitlines()
    assert sum(bool(re.match(r"\d\.\d{3} ", line)) for line in lines) == MAX_SENTENCES
    assert sum(int(found[1]) for line in lines if (found := re.search(r"… (\d+) sentences? of smaller", line))) == 80 - MAX_SENTENCES


def test_pieces_of_words():
    assert pieces(["the", "film"]) == [(True, "the"), (True, "film")]
    assert pieces(["the", " fil", "m", "."]) == [(False, "the"), (True, "fil"), (False, "m"), (False, ".")]
    assert pieces(["play", "##ing", "."]) == [(True, "play"), (False, "ing"), (True, ".")]
