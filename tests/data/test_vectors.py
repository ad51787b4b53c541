"""Pretrained word vectors: the formats of GloVe and word2vec, what is refused, and models that begin with them."""

import gzip
import re

import numpy as np
import pytest
import torch

from regard.cli import main
from regard.data.vectors import read_vectors, vector_size
from regard.errors import BadConfig, BadFile
from regard.tasks import ClassifyOptions, QuestionAnsweringOptions, load_run, train
from regard.train import TrainOptions

GLOVE = "red 0.5 -1 2\n. . . 9 9 9\n. 7 7 7\nblue 1e-3 0 1\nred 8 8 8\n"
STEP = TrainOptions(steps=1, lr=1e-30, warmup_steps=0, schedule="constant", average=0, weight_decay=0.0)


@pytest.mark.parametrize(("header", "packed"), [("", False), ("5 3\n", False), ("5 3\n", True)])
def test_the_formats_of_glove_and_word2vec(tmp_path, header, packed):
    path = tmp_path / ("vectors.txt.gz" if packed else "vectors.vec")
    path.write_bytes(gzip.compress((header + GLOVE).encode()) if packed else (header + GLOVE).encode())
    words, vector_ND = read_vectors(path, {"red", "blue", ".", "5", "green"})
    assert vector_size(path) == 3 and words == ("red", ".", "blue")
    np.testing.assert_allclose(vector_ND, [[0.5, -1, 2], [7, 7, 7], [1e-3, 0, 1]])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "expected a word and its numbers"),
        ("red\nblue\n", "expected a word and its numbers"),
        ("red 1 2\nblue 1 2\ngreen 3\n", "line 3: expected 'green' and 2 finite numbers"),
        ("red 1 2\nblue 1 two\n", "line 2: expected 'blue' and 2 finite numbers"),
        ("red 1 2\nblue nan 2\n", "line 2: expected 'blue' and 2 finite numbers"),
        ("red 1 2\nblue 1 2\n\0\n", "NUL"),
    ],
)
def test_other_files_are_refused(tmp_path, content, says):
    (tmp_path / "vectors.txt").write_text(content)
    with pytest.raises(BadFile, match=says):
        read_vectors(tmp_path / "vectors.txt", {"red", "blue", "green"})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.tsv").write_text("".join(f"a {colour} box {n} .\t{colour}\n" for n in range(20) for colour in ("Red", "blue")))
    (tmp_path / "vectors.txt").write_text(GLOVE)
    return tmp_path


@pytest.mark.parametrize("model", ["han", "infersent"])
def test_a_classifier_begins_with_them(folder, model):
    options = ClassifyOptions(data="texts.tsv", tokenizer="word", lowercase=True, vectors="vectors.txt", max_length=16)
    train("classify", options, STEP, "run", model=model, settings={"width": 4, "hidden": 4}, progress=False)
    run = load_run("run")
    (embedding,) = (part for part in run.model.modules() if isinstance(part, torch.nn.Embedding))
    vocabulary = [token.strip() for token in run.processor.tokenizer.vocabulary]
    for word, vector in (("red", [0.5, -1, 2]), ("blue", [1e-3, 0, 1]), (".", [7.0, 7, 7])):
        torch.testing.assert_close(embedding.weight[vocabulary.index(word)].detach(), torch.tensor(vector), atol=1e-6, rtol=0)
    assert embedding.weight[vocabulary.index("box")].detach().abs().sum() > 0  # not in the file: at random


def test_a_reader_begins_with_them(folder):
    (folder / "vectors.txt").write_text("lives 1 2 3 4\nin 5 6 7 8\n")
    options = QuestionAnsweringOptions(data="facts:count=30", tokenizer="word", vectors="vectors.txt", max_length=64, shares=(0.2, 0.2))
    train("question-answering", options, STEP, "run", settings={"width": 6, "steps": 2}, progress=False)
    run = load_run("run")
    weight_ND = run.model.get_parameter("token.weight")
    torch.testing.assert_close(weight_ND[run.processor.tokenizer.encode("in")[0]].detach(), torch.tensor([5.0, 6, 7, 8]))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--model", "han"], "use it with --tokenizer word, not bpe"),
        (["--model", "bert", "--tokenizer", "word"], "bert has no word embeddings of a width of their own; models that have: .*esim.*han"),
        (["--model", "han", "--tokenizer", "word", "--set", "embedding=5"], "omit --set embedding=5"),
        (["--model", "han", "--tokenizer", "word", "--vectors", "other.txt"], "perhaps it wants --lowercase"),
        (["--model", "han", "--tokenizer", "word", "--vectors", "none.txt"], "no such file"),
    ],
)
def test_what_does_not_fit(folder, capsys, arguments, says):
    (folder / "other.txt").write_text("RED 1 2\nBLUE 1 2\n")
    assert main(["train", "classify", "--data", "texts.tsv", "--vectors", "vectors.txt", *arguments, "--out", "run", "--quiet"]) == 2
    assert re.search(says, capsys.readouterr().err)
    assert not (folder / "run").exists()


def test_not_with_a_trained_model(folder):
    options = ClassifyOptions(data="texts.tsv", tokenizer="word", max_length=16)
    train("classify", options, STEP, "run", model="han", settings={"width": 4, "hidden": 4, "embedding": 3}, progress=False)
    with pytest.raises(BadConfig, match="is for a new model"):
        train("classify", ClassifyOptions(data="texts.tsv", vectors="vectors.txt"), STEP, "more", init_from="run", progress=False)
