"""`predict` and `evaluate` as programs: lines as they arrive, files, scores of given outputs, and data that moved."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from tests.tasks.examples import write_example

from regard.cli import main
from regard.cli.runs import arriving
from regard.decode import GNMT
from regard.tasks import Classify, Translation, likelihood, load_run, predict, train
from regard.tasks.seq2seq import beam_of
from regard.tasks.translation import BeamOptions
from regard.train import TrainOptions

TRAIN = TrainOptions(steps=30, evaluate_every=15, average=0, warmup_steps=5, lr=1e-2)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A translator and a classifier, trained on relative paths."""
    folder, before = tmp_path_factory.mktemp("predicting"), os.getcwd()
    os.chdir(folder)
    try:
        for task in (Translation, Classify):
            example = write_example(task, folder)
            options = replace(example.options, data=os.path.relpath(example.options.data))
            train(task, options, TRAIN, task.name, settings=example.settings, progress=False)
    finally:
        os.chdir(before)
    return folder


def test_answers_come_as_lines_arrive(root):
    command = [sys.executable, "-m", "regard", "predict", str(root / "translation"), "--beam", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as child:
        answers = []
        for line in ("two nine\n", "\n", "three one\r\n"):
            child.stdin.write(line)
            child.stdin.flush()
            answers.append(child.stdout.readline())  # standard input is still open
        child.stdin.close()
        assert child.wait(60) == 0 and child.stdout.read() == ""
    run = load_run(root / "translation")
    assert [answer.rstrip("\n") for answer in answers] == [
        one.text for one in predict(run, ["two nine", "", "three one"], Translation.PredictOptions(beam=1))
    ]


def test_lines_that_are_there_come_together_and_errors_come_through():
    assert [line for group in arriving(iter("abc"), at_most=2) for line in group] == ["a", "b", "c"]
    assert list(arriving(iter(()))) == []

    def broken():
        yield "a"
        raise OSError("gone")

    found = arriving(broken())
    with pytest.raises(OSError, match="gone"):
        list(found)


def test_files(root, tmp_path, capsys):
    (tmp_path / "in.txt").write_bytes(b"two nine\r\none\r\n")
    run = str(root / "translation")
    assert main(["predict", run, "--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.txt")]) == 0
    assert capsys.readouterr().out == ""
    assert main(["predict", run, "two nine", "one"]) == 0
    assert (tmp_path / "out.txt").read_text() == capsys.readouterr().out
    assert main(["predict", "--input", str(tmp_path / "in.txt"), "--json", run]) == 0
    assert [json.loads(line)["input"] for line in capsys.readouterr().out.splitlines()] == ["two nine", "one"]
    assert main(["predict", run, str(tmp_path / "in.txt")]) == 0
    assert f"--input {tmp_path / 'in.txt'} takes its lines" in capsys.readouterr().err
    assert main(["predict", run, "--input", str(tmp_path / "none.txt")]) == 2
    assert "none.txt: cannot be read" in capsys.readouterr().err
    assert main(["predict", run, "one", "--input", str(tmp_path / "in.txt")]) == 2


def test_given_outputs_are_scored(root, tmp_path, capsys):
    folder, pairs = root / "translation", [("two nine", "nine two"), ("one", "seven seven one"), ("one two", "two")]
    for name, side in (("in.txt", 0), ("ref.txt", 1)):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in pairs))
    files = ["--input", str(tmp_path / "in.txt"), "--references", str(tmp_path / "ref.txt")]
    assert main(["predict", str(folder), *files, "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for pair, one in zip(pairs, found, strict=True):
        loss, _ = likelihood(load_run(folder), [pair])
        assert one["log_probability"] == pytest.approx(-loss * one["tokens"], rel=1e-4) and one["target"] == pair[1]
    assert main(["predict", str(folder), "two nine", "--score", "nine two"]) == 0
    assert float(capsys.readouterr().out.split("\t")[0]) == pytest.approx(found[0]["log_probability"], abs=1e-3)
    (tmp_path / "ref.txt").write_text("one\n")
    assert main(["predict", str(folder), *files]) == 2 and "fewer lines" in capsys.readouterr().err
    (tmp_path / "ref.txt").write_text("one\n" * 9)
    assert main(["predict", str(folder), *files]) == 2 and "more lines" in capsys.readouterr().err
    assert main(["predict", str(root / "classify"), "item", "--score", "good"]) == 2
    assert "writes no text" in capsys.readouterr().err


def test_a_search_has_a_length_penalty():
    assert beam_of(BeamOptions(length_penalty=1.5), 2).length_penalty == GNMT(1.5) and beam_of(BeamOptions(beam=1), 3).size == 3


def test_evaluate_writes_hypotheses_and_says_what_on(root, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)  # not where it was trained
    run = str(root / "translation")
    assert main(["evaluate", run, "--out", "hyp.txt", "--beam", "2"]) == 0
    out = capsys.readouterr().out
    assert f"test part of {root / 'pairs.tsv'}: " in out and "beam 2" in out
    (tmp_path / "a.src").write_text("one two\nthree\n")
    (tmp_path / "a.tgt").write_text("two one\nthree\n")
    assert main(["evaluate", "--data", "a.src", "a.tgt", "--json", "--out", "hyp.txt", run]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["pairs"] == 2 and found["data"] == "a.src a.tgt" and found["rows"][0]["source_words"] == "1-5"
    assert len((tmp_path / "hyp.txt").read_text().splitlines()) == 2
    assert main(["evaluate", str(root / "classify"), "--beam", "2"]) == 2 and "--beam" in capsys.readouterr().err
    assert main(["evaluate", str(root / "classify"), "--out", "labels.txt"]) == 0
    assert set((tmp_path / "labels.txt").read_text().split()) <= {"good", "bad"}


def test_data_that_is_gone_is_named(root, tmp_path, capsys):
    path = root / "pairs.tsv"
    path.rename(tmp_path / "elsewhere.tsv")
    try:
        assert main(["evaluate", str(root / "translation")]) == 2
        assert f"was trained on {path}, which no longer exists; name other data with --data" in capsys.readouterr().err
    finally:
        (tmp_path / "elsewhere.tsv").rename(path)


def test_two_files_as_two_arguments_and_fields(root, tmp_path, capsys):
    numbers = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    rows = [(a, b) for a in numbers for b in numbers]
    for name, side in (("t.en", 0), ("t.de", 1)):
        (tmp_path / name).write_text("".join(f"{row[side]}\n" for row in rows))
    (tmp_path / "t.csv").write_text("id,de,en\n" + "".join(f"{n},{b},{a}\n" for n, (a, b) in enumerate(rows)) + "bad\n")
    small = [
        "--tokenizer",
        "unigram",
        "--lowercase",
        "--steps",
        "2",
        "--quiet",
        "--set",
        "width=16",
        "--set",
        "heads=2",
        "--set",
        "hidden=16",
    ]
    assert (
        main(["train", "translation", "--data", str(tmp_path / "t.en"), str(tmp_path / "t.de"), "--out", str(tmp_path / "a"), *small]) == 0
    )
    assert main(["train", "translation", "--out", str(tmp_path / "a"), "--resume", "--steps", "3", "--quiet"]) == 0
    capsys.readouterr()
    table = ["--data", str(tmp_path / "t.csv"), "--fields", "en", "de", "--on-error", "skip", "--out", str(tmp_path / "b")]
    assert main(["train", "translation", *table, *small]) == 0
    assert "1 of 101 pairs skipped: 1 too few columns. First: " in capsys.readouterr().err
    assert load_run(tmp_path / "a").config.digest == load_run(tmp_path / "b").config.digest
