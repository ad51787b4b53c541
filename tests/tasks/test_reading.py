"""Sentence encoders and ESIM by way of the task: one text or two from the data, transfer, maps with words, embeddings, what is refused."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from regard.cli import main
from regard.data import Tokenizer, Tokenizers
from regard.errors import BadFile, NotSupported
from regard.models import Classifier, build
from regard.tasks import Classify, ClassifyOptions, Embedder, TextProcessor, attention_maps, embed, load_run, make_run, nearest, train
from regard.tasks.embedding import embedder_of
from regard.tasks.sentence_transformers import SentencePooling, read_pooling

SMALL = {"embedding": 8, "width": 8, "hidden": 8}
TRAIN = {"steps": 2, "epochs": None, "seeds": (), "warmup_steps": 0, "schedule": "constant"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    colours = ("red", "blue", "green")
    pairs = [(f"a {a} box {n}", f"the box is {b}") for n in range(8) for a in colours for b in colours]
    (folder / "pairs.tsv").write_text("".join(f"{p}\t{h}\t{'yes' if p.split()[1] == h.split()[-1] else 'no'}\n" for p, h in pairs))
    (folder / "texts.tsv").write_text("".join(f"{p}\t{p.split()[1]}\n" for p, _ in pairs))
    (folder / "lines.txt").write_text("a red box\nthe blue box\na red box 3\na green box\n")
    return folder


def trained(data, out, model, file, **settings):
    options = ClassifyOptions(data=str(data / file), tokenizer="word", max_length=16, batch_size=8)
    train("classify", options, Classify.train_defaults(model).replace(**TRAIN), out, model=model, settings=SMALL | settings, progress=False)
    return load_run(out)


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {
        "esim": trained(data, folder / "esim", "esim", "pairs.tsv"),
        "pairs": trained(data, folder / "pairs", "infersent", "pairs.tsv", pooling="inner", views=2),
        "texts": trained(data, folder / "texts", "self_attentive", "texts.tsv", queries=3, key_size=4),
    }


def test_the_data_says_how_many_texts(runs):
    assert runs["pairs"].model.body.config.texts == 2 and runs["texts"].model.body.config.texts == 1
    assert Classify.train_defaults("esim").lr != Classify.default_train.lr == Classify.train_defaults("bert").lr


def test_maps_have_the_words_of_each_text(runs):
    _, maps = attention_maps(runs["esim"], "a red box 3\tthe box is blue", "*")
    first, second = maps["first_to_second"][0], maps["second_to_first"][0]
    assert first.labels()[0] == second.labels()[1] and len(first.labels()[0]) == 5  # four words and the end
    assert first.labels()[0][1].endswith("red") and first.labels()[1][3].endswith("blue")
    _, maps = attention_maps(runs["pairs"], "a red box 3\tthe box is", "*")
    assert maps.layers == ["attention.attention (text 1)", "attention.attention (text 2)"]
    one, two = (maps[layer][0] for layer in maps.layers)
    assert one.labels()[0] == ["query 1", "query 2"] and (len(one.columns), len(two.columns)) == (5, 4)
    assert torch.allclose(two.weights_BHLM.sum(-1), torch.ones(()))
    _, maps = attention_maps(runs["texts"], "a red box", "*")
    assert maps.all[0].weights_BHLM.shape == (1, 1, 3, 4)


def test_an_encoder_of_pairs_goes_on_with_single_texts(runs, data, tmp_path):
    options = ClassifyOptions(data=str(data / "texts.tsv"), max_length=16, batch_size=8)
    train(
        "classify",
        options,
        Classify.default_train.replace(**TRAIN, lr=1e-9, weight_decay=0.0),
        tmp_path / "on",
        init_from=runs["pairs"],
        progress=False,
    )
    other, before = load_run(tmp_path / "on").model.body, runs["pairs"].model.body
    assert other.config.texts == 1 and other.hidden.weight.shape != before.hidden.weight.shape
    assert all(
        torch.allclose(a, b, atol=1e-6)
        for a, b in ((other.read.weight_2DG, before.read.weight_2DG), (other.token.weight, before.token.weight))
    )


@pytest.mark.parametrize(("name", "file", "says"), [("esim", "texts.tsv", "esim reads 2 texts"), ("texts", "pairs.tsv", "reads one text")])
def test_the_wrong_number_of_texts_is_refused(runs, data, tmp_path, capsys, name, file, says):
    out = tmp_path / "none"
    if name == "esim":
        assert main(["train", "classify", "--model", "esim", "--data", str(data / file), "--out", str(out), "--quiet"]) == 2
    else:
        assert main(["predict", str(runs[name].folder), "a red box\tthe box is"]) == 2
    error = capsys.readouterr().err
    assert says in error and "--fields" in error and error.count("regard:") == 1 and not out.exists()


def test_an_empty_text_of_a_pair_is_named(data, tmp_path, capsys):
    (tmp_path / "bad.tsv").write_text((data / "pairs.tsv").read_text() + "a red box\t\tno\n")
    argv = ["train", "classify", "--model", "esim", "--data", str(tmp_path / "bad.tsv"), "--out", str(tmp_path / "none"), "--quiet"]
    assert main(argv) == 2
    assert "line 73: empty column" in capsys.readouterr().err


# -- embeddings --------------------------------------------------------------------------------------------------------


def test_vectors_of_a_sentence_encoder(runs, data, tmp_path, capsys):
    run, lines = runs["pairs"], (data / "lines.txt").read_text().splitlines()
    assert main(["embed", str(run.folder), str(data / "lines.txt"), "--out", str(tmp_path / "v.npy"), "--quiet"]) == 0
    found = np.load(tmp_path / "v.npy", allow_pickle=False)
    for line, vector in zip(lines, found, strict=True):  # one by one, as the model is called
        tokens = [1, *run.processor.tokenizer.encode(line), 2]
        with torch.no_grad():
            expected = run.model.body.sentence_embeddings(torch.tensor([tokens]))[0]
        assert torch.from_numpy(vector).allclose(expected, atol=1e-6)
    assert main(["embed", str(run.folder), str(data / "lines.txt"), "--out", str(tmp_path / "v.jsonl"), "--quiet"]) == 0
    objects = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()]
    assert [one["text"] for one in objects] == lines
    assert np.allclose([one["embedding"] for one in objects], found, atol=1e-6)
    capsys.readouterr()
    assert main(["embed", str(run.folder), str(data / "lines.txt"), "--neighbors", "2", "--json", "--quiet"]) == 0
    for n, line in enumerate(capsys.readouterr().out.splitlines()):
        similar = found @ found[n]
        similar[n] = -2
        assert [one["row"] for one in json.loads(line)["neighbors"]] == (np.argsort(-similar)[:2] + 1).tolist()
    assert main(["embed", str(run.folder), str(data / "lines.txt"), "--query", "a red box", "--neighbors", "1", "--quiet"]) == 0
    assert "1.000  1  a red box" in capsys.readouterr().out


def test_texts_are_embedded_as_they_are_typed(runs, data, tmp_path, capsys):
    run = str(runs["pairs"].folder)
    texts = ["a red box", "there is a box"]
    (tmp_path / "lines.txt").write_text("".join(f"{text}\n" for text in texts))
    found = {}
    for name, argv in {"file": [str(tmp_path / "lines.txt")], "texts": texts, "text": texts[:1]}.items():
        capsys.readouterr()
        assert main(["embed", run, *argv, "--quiet"]) == 0
        found[name] = capsys.readouterr().out.splitlines()
    assert found["texts"] == found["file"] and found["text"] == found["file"][:1]
    for argv, says in (
        ([*texts, "--field", "1"], "--field 1 is for a file"),
        ([str(tmp_path / "lines.txt"), "a text"], "give one file, or texts only"),
        (["nosuch.txt"], "nosuch.txt: no such file"),
        (["a text", " "], "one of the texts is empty"),
    ):
        assert main(["embed", run, *argv, "--quiet"]) == 2 and says in capsys.readouterr().err


def test_what_embed_refuses(runs, data, tmp_path, capsys):
    lines = str(data / "lines.txt")
    (tmp_path / "empty.txt").write_text("one\n\ntwo\n")
    for argv, says in (
        ([str(runs["esim"].folder), lines], "esim compares two texts and makes no vector of one"),
        ([str(runs["pairs"].folder), str(tmp_path / "empty.txt")], "line 2: empty line"),
        ([str(runs["pairs"].folder), str(tmp_path / "none.txt")], "no such file"),
        ([str(runs["pairs"].folder), lines, "--out", str(tmp_path / "v.txt")], "must end in .npy or .jsonl"),
        ([str(runs["pairs"].folder), str(data / "pairs.tsv"), "--field", "premise"], "no column called 'premise'"),
    ):
        assert main(["embed", *argv]) == 2
        error = capsys.readouterr().err
        assert says in error and error.count("\n") == 1, error
    assert main(["embed", str(runs["pairs"].folder), str(tmp_path / "empty.txt"), "--on-error", "skip", "--quiet"]) == 0
    found = capsys.readouterr()
    assert len(found.out.splitlines()) == 2 and "1 of 3 lines skipped" in found.err


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
@pytest.mark.parametrize("mode", ["mean", "cls", "max", "last"])
def test_poolings_of_features(kind, mode):
    torch.manual_seed(0)
    tokenizer = Tokenizer.train(["the cat sat on the mat"], "char", 40, min_count=1)
    model = build(kind, {"vocab_size": len(tokenizer), "width": 8, "heads": 2, "depth": 1, "dropout": 0.0}).eval()
    embedder, texts = Embedder(model, tokenizer, SentencePooling(mode)), ["the cat", "a", "sat on the mat"]
    found = embedder.vectors([embedder.encode(text) for text in texts])
    for text, y in zip(texts, found, strict=True):
        framed = [1, *tokenizer.encode(text), *([2] if kind == "bert" else [])]
        with torch.no_grad():
            x = model.features(torch.tensor([framed]))[0, int(kind == "gpt2") :]  # a language model's begin token is left out
        expected = {"mean": x.mean(0), "cls": x[0], "max": x.amax(0), "last": x[-1]}[mode]
        torch.testing.assert_close(y, F.normalize(expected, dim=0), atol=1e-5, rtol=0)


def test_long_texts_are_truncated_and_counted(runs):
    counted = []
    ((texts, vectors),) = embed(runs["texts"], ["a red box", "red " * 50], note=lambda done, cut: counted.append((done, cut)))
    assert counted[-1] == (2, 1) and vectors.shape == (2, 3 * 16)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1)


def test_a_document_model_and_a_classifier_of_features():
    tokenizer = Tokenizer.train(["the cat sat. the mat was red."], "word", 40, min_count=1)
    for kind, settings in (("han", {"embedding": 8, "width": 4, "hidden": 4}), ("bert", {"width": 8, "heads": 2, "depth": 1, "hidden": 8})):
        torch.manual_seed(0)
        body = build(kind, {"vocab_size": len(tokenizer), **settings})
        run = make_run("classify", Classifier(body, 2), TextProcessor(Tokenizers(tokenizer), ("a", "b")))
        ((_, vectors),) = embed(run, ["The cat sat. The mat was red.", "The cat."])
        assert vectors.shape == (2, 8) and not np.isnan(vectors).any()


def test_nearest_against_all_pairs():
    vectors = np.random.default_rng(0).standard_normal((3000, 5)).astype(np.float32)
    rows, scores = nearest(vectors, vectors, 3, own=0)
    dots = vectors @ vectors.T
    np.fill_diagonal(dots, -np.inf)
    assert np.allclose(-np.sort(-dots)[:, :3], scores, atol=1e-5) and np.allclose(np.take_along_axis(dots, rows, 1), scores, atol=1e-5)
    assert nearest(vectors[:1], vectors[:1], 3, own=0)[0].shape == (1, 0)


@pytest.mark.parametrize(
    ("files", "mode", "length"),
    [
        ({}, "mean", None),
        ({"1_Pooling/config.json": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}}, "cls", None),
        ({"1_Pooling/config.json": {"pooling_mode_mean_tokens": True}, "sentence_bert_config.json": {"max_seq_length": 7}}, "mean", 7),
        ({"1_Pooling/config.json": {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}}, "cls and max", None),
        ({"modules.json": [{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]}, "mean and Dense", None),
        ({"1_Pooling/config.json": {"pooling_mode_weightedmean_tokens": True}}, "weightedmean_tokens", None),
    ],
)
def test_folders_of_sentence_transformers(tmp_path, files, mode, length):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(content))
    pooling = read_pooling(tmp_path)
    assert (pooling.mode, pooling.max_length) == (mode, length)
    tokenizer = Tokenizer.train(["the cat"], "char", 40, min_count=1)
    model = build("bert", {"vocab_size": len(tokenizer), "width": 8, "heads": 2, "depth": 1, "hidden": 8})
    run = make_run("masked", model, TextProcessor(Tokenizers(tokenizer), pooling=pooling), folder=tmp_path)
    if mode in ("mean", "cls"):
        assert embedder_of(run).max_length == (length or model.max_length)
    else:
        with pytest.raises(NotSupported, match=f"pools by {mode}"):
            embedder_of(run)
    out = tmp_path / "again"
    out.mkdir()
    run.processor.save(out)
    assert TextProcessor.load(out).pooling == pooling


def test_a_pooling_outside_its_folder_is_refused(tmp_path):
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "x.Pooling", "path": "../elsewhere"}]))
    with pytest.raises(BadFile, match="expected the name of a folder"):
        read_pooling(tmp_path)
