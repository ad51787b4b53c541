"""Fine-tuning: examples as tokens, figures by hand, what is frozen, seeds, and the command line, from encoders and language models."""

import json
import random

import numpy as np
import pytest
import torch

from regard.cli import main
from regard.data import BOS, EOS, Tokenizer, Tokenizers
from regard.data.examples import Labelled, Tagged
from regard.errors import BadConfig, NotSupported
from regard.metrics import classification_metrics
from regard.models import Classifier, LanguageModel, TextEncoder, build, find_model
from regard.runs import Run, RunConfig
from regard.tasks import Classify, ClassifyOptions, TextProcessor, load_run, measure, predict
from regard.tasks.label_encoding import collate, confusion_of, encode_examples
from regard.tasks.options import ClassesOptions
from regard.tasks.tuning import freeze_layers

SIZES = {"width": 16, "heads": 2, "depth": 4, "dropout": 0.0}


def model(name, vocab_size, labels=3, each=False):
    torch.manual_seed(0)
    return Classifier(build(name, {"vocab_size": vocab_size, find_model(name).length_setting: 32, **SIZES}), labels, each=each).eval()


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(["the cat sat on the mat", "a dog ran"], "char", 100, min_count=1)


# -- examples as tokens ----------------------------------------------------------------------------------------------------


def test_texts_and_pairs_in_their_frame(tokenizer):
    encode = tokenizer.encode
    some = encode_examples([Labelled(("cat",), "b"), Labelled(("a dog", "ran"), "a")], tokenizer, ("a", "b"), 32)
    assert some.ids[0].tolist() == [BOS, *encode("cat"), EOS]
    assert some.ids[1].tolist() == [BOS, *encode("a dog"), EOS, *encode("ran"), EOS]
    batch = collate(some, np.array([0, 1]))
    assert batch.segment_BL.tolist() == [[0] * 11, [0] * 7 + [1] * 4] and batch.label_T.tolist() == [1, 0] and batch.at_T.tolist() == [0, 1]
    with pytest.raises(NotSupported, match="'c' does not occur"):
        encode_examples([Labelled(("cat",), "c")], tokenizer, ("a", "b"), 32)


@pytest.mark.parametrize(("a", "b", "kept"), [(20, 3, (9, 3)), (3, 20, (3, 9)), (20, 20, (6, 6)), (4, 4, (4, 4)), (7, 9, (6, 6))])
def test_long_pairs_lose_the_end_of_the_longer(tokenizer, a, b, kept):
    some = encode_examples([Labelled(("a" * a, "d" * b), "x")], tokenizer, ("x",), 15)
    assert some.ids[0].tolist() == [BOS, *tokenizer.encode("a" * kept[0]), EOS, *tokenizer.encode("d" * kept[1]), EOS]


@pytest.mark.parametrize("kind", ["char", "bpe", "word", "byte"])
@pytest.mark.parametrize("last", [False, True])
def test_words_are_asked_at_their_first_or_last_token(kind, last):
    words = ("the", "cat's", "hat", "fell", "far", "away")
    labels = ("A", "B", "C", "D", "E", "F")
    tokenizer = Tokenizer.train([" ".join(words)] * 2, kind, 300, min_count=1)
    some = encode_examples([Tagged(words, labels)], tokenizer, labels, 12, model("gpt2" if last else "bert", 11).body)
    asked = []
    for n in range(len(some)):
        ids, places = some.ids[n], some.positions[n]
        assert len(ids) <= 12 and ids[0] == BOS and ids[-1] == EOS
        for place, label in zip(places, some.labels[n], strict=True):
            piece = tokenizer.decode([int(ids[place])]).strip()
            word = words[label]
            assert word.endswith(piece) if last else word.startswith(piece)
            asked.append(label)
    assert asked == list(range(6))


def test_a_word_longer_than_a_row_is_asked_once(tokenizer):
    some = encode_examples([Tagged(("catcatcatcat", "dog"), ("A", "B"))], tokenizer, ("A", "B"), 8, False)
    assert [label for n in range(len(some)) for label in some.labels[n].tolist()] == [0, 1]


# -- figures ---------------------------------------------------------------------------------------------------------------


def test_figures_by_hand():
    """Two labels: TP 6, FN 2, FP 1, TN 3. F1 of one is 12/15, of the other 6/9; Matthews by its formula for two."""
    found = classification_metrics(np.array([[3, 1], [2, 6]]), ("no", "yes"))
    assert found["accuracy"] == pytest.approx(9 / 12) and found["f1"] == pytest.approx((12 / 15 + 6 / 9) / 2)
    assert found["matthews"] == pytest.approx((6 * 3 - 1 * 2) / (7 * 8 * 4 * 5) ** 0.5)
    assert found["f1_tokens"] == pytest.approx(9 / 12)  # no label is "O"
    named = classification_metrics(np.array([[50, 1, 0], [2, 6, 1], [0, 1, 4]]), ("O", "B", "I"))
    assert named["f1_tokens"] == pytest.approx(2 * 10 / (14 + 13))
    assert classification_metrics(np.array([[5, 0], [5, 0]]), ("a", "b"))["matthews"] == 0.0


def test_matthews_of_many_labels_is_a_correlation():
    """Of indicator variables, summed over labels: covariance over the root of the variances (Gorodkin 2004)."""
    generator = np.random.default_rng(0)
    right, found = generator.integers(0, 4, 200), generator.integers(0, 4, 200)
    found[:100] = right[:100]
    counts = np.zeros((4, 4), dtype=np.int64)
    np.add.at(counts, (right, found), 1)
    x, y = np.eye(4)[right], np.eye(4)[found]

    def covariance(a, b):
        return ((a - a.mean(0)) * (b - b.mean(0))).sum()

    expected = covariance(x, y) / (covariance(x, x) * covariance(y, y)) ** 0.5
    assert classification_metrics(counts, "abcd")["matthews"] == pytest.approx(expected)


# -- the model -------------------------------------------------------------------------------------------------------------


def test_a_borrowed_vocabulary_keeps_its_own_marks(tmp_path):
    """As a published BERT has them: [CLS] a [SEP] b [SEP], and [MASK]; none of them is ever drawn or hidden."""
    from regard.data import HFTokenizer, TokenizedText
    from regard.tasks.masked_rows import Rows, mask_rows

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat", "dog"]
    (tmp_path / "vocab.txt").write_text("\n".join(names) + "\n")
    borrowed = HFTokenizer.from_directory(tmp_path)
    some = encode_examples([Labelled(("the cats", "sat"), "x")], borrowed, ("x",), 16)
    assert [names[i] for i in some.ids[0]] == ["[CLS]", "the", "cat", "##s", "[SEP]", "sat", "[SEP]"]
    words = encode_examples([Tagged(("the", "cats", "sat"), ("O", "N", "O"))], borrowed, ("N", "O"), 16, model("gpt2", 11).body)
    assert words.positions[0].tolist() == [1, 3, 4]
    assert (borrowed.begin_id, borrowed.end_id, borrowed.mask_id) == (2, 3, 4)
    tokens = TokenizedText.of(["the cats sat the dogs sat"] * 2, borrowed)
    rows = Rows(tokens, borrowed, 12, True)
    assert rows.word_ids.tolist() == [5, 6, 7, 8, 9]
    batch = mask_rows(rows, rows.plan(0), 0.5)
    assert set(batch.wanted_T.tolist()) <= {5, 6, 7, 8, 9} and 4 in batch.ids_BL and (batch.ids_BL[:, 0] == 2).all()


@torch.no_grad()
@pytest.mark.parametrize("name", ["bert", "gpt2"])
@pytest.mark.parametrize("each", [False, True])
def test_padding_changes_nothing(name, each, tokenizer):
    labeller = model(name, 40, each=each).double()
    ids, n = torch.randint(4, 40, (2, 9)), torch.tensor([9, 5])
    whole = labeller(ids, n, torch.zeros_like(ids))
    alone = labeller(ids[1:, :5], n[1:], torch.zeros(1, 5, dtype=torch.long))
    torch.testing.assert_close(whole[1:, :5] if each else whole[1:], alone, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_the_lower_half_is_frozen(name):
    labeller = model(name, 40)
    freeze_layers(labeller, 0.5)
    learning = {parameter for parameter, p in labeller.named_parameters() if p.requires_grad}
    assert not any("embedding" in parameter or ".blocks.0." in parameter or ".blocks.1." in parameter for parameter in learning)
    assert (
        {"output.weight", "output.bias"} <= learning
        and any(".blocks.2." in p for p in learning)
        and any(".blocks.3." in p for p in learning)
    )
    whole = model(name, 40)
    assert freeze_layers(whole, 0.0) == 0 and all(p.requires_grad for p in whole.parameters())


def test_confusion_counts_all(tokenizer):
    some = [Labelled(("cat",), "a")] * 5 + [Labelled(("dog ran",), "b")] * 2
    task = Classify(ClassifyOptions(batch_size=3), TextProcessor(Tokenizers(tokenizer), ("a", "b")))
    sums, answers = measure(task, model("bert", len(tokenizer), 2), some)
    assert confusion_of(answers, ("a", "b")).sum(1).tolist() == [5, 2] and sums["loss"] > 0 and sums["count"] == 7


@pytest.mark.parametrize("bad", [{"freeze": 1.0}, {"layer_lr_decay": 0.0}, {"batch_size": 0}, {"max_length": 2}, {"metric": "bleu"}])
def test_settings_that_make_no_sense(bad):
    with pytest.raises(BadConfig):
        ClassifyOptions(data="x", **bad)


# -- from the command line -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Text, an encoder and a language model that have read it, and examples that can be learned in seconds."""
    root, chance = tmp_path_factory.mktemp("finetune"), random.Random(0)
    happy, sad, other = (["good", "fine", "great", "nice"], ["bad", "poor", "dull", "weak"], ["film", "plot", "cast", "music", "a", "the"])

    def text(words):
        return " ".join(chance.choice(words + other) for _ in range(8)) + " " + chance.choice(words)

    texts = [(text(happy), "yes") if n % 2 else (text(sad), "no") for n in range(160)]
    other_texts = chance.sample(texts, len(texts))
    (root / "text.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t, _ in texts))
    (root / "one.tsv").write_text("".join(f"{t}\t{label}\n" for t, label in texts))
    (root / "two.tsv").write_text(
        "".join(f"{a}\t{b}\t{'same' if x == y else 'other'}\n" for (a, x), (b, y) in zip(texts, other_texts, strict=True))
    )
    words = [[(w, "J" if w in happy + sad else "O") for w in t.split()] for t, _ in texts]
    (root / "tags.tsv").write_text("\n".join("".join(f"{w}\t{tag}\n" for w, tag in sentence) for sentence in words))
    small = [x for s in ("width=32", "heads=2", "depth=2") for x in ("--set", s)]
    shared = ["--data", str(root / "text.jsonl"), "--tokenizer", "word", "--steps", "30", "--quiet", "--batch-size", "8"]
    assert main(["train", "masked", *shared, "--max-length", "32", *small, "--set", "hidden=64", "--out", str(root / "encoder")]) == 0
    assert main(["train", "language", *shared, "--context-length", "32", *small, "--out", str(root / "decoder")]) == 0
    return root


HAPPY, SAD = "nice plot fine nice the nice nice great nice", "bad a bad poor cast bad the music dull"
TUNE = ["--quiet", "--freeze", "0.5", "--epochs", "8", "--lr", "5e-3", "--max-length", "32", "--batch-size", "16"]


@pytest.mark.parametrize("base", ["encoder", "decoder"])
def test_classify(root, tmp_path, capsys, base):
    out = tmp_path / "run"
    assert (
        main(
            [
                "train",
                "classify",
                "--data",
                str(root / "one.tsv"),
                "--init-from",
                str(root / base),
                "--freeze",
                "0.5",
                "--seeds",
                "0",
                "1",
                *TUNE,
                "--out",
                str(out),
            ]
        )
        == 0
    )
    said = capsys.readouterr().out
    assert "over 2 seeds" in said and "accuracy" in said and "matthews" in said
    kept = json.loads((out / "seeds.json").read_text())
    assert set(kept["seeds"]) == {"0", "1"} and kept["seeds"][str(kept["best"])]["accuracy"] >= 0.9
    run = load_run(out, Classifier)
    assert run.processor.labels == ("no", "yes") and run.task == "classify"
    assert isinstance(load_run(out, TextEncoder if base == "encoder" else LanguageModel).model, TextEncoder | LanguageModel)
    found = [one.values["labels"] for one in predict(run, [HAPPY, SAD], ClassesOptions(nbest=2))]
    assert [sum(each["probability"] for each in one) for one in found] == pytest.approx([1.0, 1.0])
    assert [one[0]["label"] for one in found] == ["yes", "no"]
    before, after = dict(load_run(root / base).model.named_parameters()), dict(run.model.body.named_parameters())
    same = {name for name in before if before[name].equal(after[name])}
    assert {name for name in before if "embedding" in name or name.startswith("blocks.0.")} <= same  # frozen
    assert not any(name.startswith("blocks.1.") for name in same)
    assert main(["predict", str(out), HAPPY, SAD]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == ["yes", "no"] and all(0.5 <= float(line[1]) <= 1 for line in lines)
    assert main(["predict", str(out), "great film", "--nbest", "2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main(["evaluate", str(out), "--json"]) == 0
    judged = json.loads(capsys.readouterr().out)
    assert judged["accuracy"] >= 0.8 and np.array(judged["confusion"]).shape == (2, 2)
    assert main(["evaluate", str(out), "--data", str(root / "one.tsv")]) == 0
    assert "precision" in capsys.readouterr().out
    assert main(["look", str(out), "great film", "--layer", "0"]) == 0 and "film" in capsys.readouterr().out


def test_pairs_and_scratch(root, tmp_path, capsys):
    out = tmp_path / "run"
    argv = [
        "train",
        "classify",
        "--data",
        str(root / "two.tsv"),
        "--init-from",
        str(root / "encoder"),
        "--from-scratch",
        "--seeds",
        "3",
        *TUNE,
    ]
    assert main([*argv, "--out", str(out), "--metric", "matthews"]) == 0
    run = load_run(out, Classifier)
    assert run.processor.labels == ("other", "same") and run.processor.tokenizer == load_run(root / "encoder").processor.tokenizer
    assert not run.model.body.embedding.token.weight.equal(load_run(root / "encoder").model.embedding.token.weight)
    capsys.readouterr()
    assert main(["predict", str(out), "great film\tdull plot"]) == 0
    assert capsys.readouterr().out.split("\t")[0] in run.processor.labels


@pytest.mark.parametrize("base", ["encoder", "decoder"])
def test_label_words(root, tmp_path, capsys, base):
    out = tmp_path / "run"
    assert (
        main(
            ["train", "label", "--data", str(root / "tags.tsv"), "--init-from", str(root / base), "--seeds", "0", *TUNE, "--out", str(out)]
        )
        == 0
    )
    run = load_run(out, Classifier)
    found = predict(run, ["a great film"])[0].values["words"]
    assert [one["label"] for one in found] == ["O", "J", "O"] and all(0 < one["probability"] <= 1 for one in found)
    capsys.readouterr()
    assert main(["predict", str(out), "a great film"]) == 0
    assert capsys.readouterr().out == "a\tO\ngreat\tJ\nfilm\tO\n\n"
    assert main(["evaluate", str(out)]) == 0
    assert "f1_tokens" in capsys.readouterr().out


def test_without_a_base(root, tmp_path):
    """A new model and its own vocabulary; `--resume` of a finished one changes nothing."""
    argv = [
        "train",
        "classify",
        "--data",
        str(root / "one.tsv"),
        "--model",
        "gpt2",
        "--set",
        "width=32",
        "--set",
        "heads=2",
        "--set",
        "depth=1",
    ]
    argv += ["--seeds", "0", "--tokenizer", "word", *TUNE, "--out", str(tmp_path)]
    assert main(argv) == 0
    first = load_run(tmp_path).model.state_dict()
    assert main([*argv, "--resume"]) == 0
    assert all(x.equal(first[name]) for name, x in load_run(tmp_path).model.state_dict().items())


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--data", "nowhere.tsv", "--out", "x"], "nowhere.tsv"),
        (["--data", "same.tsv", "--out", "x"], "at least two labels"),
        (["--data", "one.tsv", "--out", "x", "--from-scratch"], "--init-from"),
        (["--data", "one.tsv", "--out", "x", "--init-from", "nowhere"], "not a run"),
        (["--data", "one.tsv", "--out", "x", "--model", "transformer", "--set", "source_vocab_size=9"], "transformer"),
        (["--data", "one.tsv", "--out", "x", "--freeze", "2"], "--freeze 2: expected"),
    ],
)
def test_mistakes_say_what_to_do(argv, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.tsv").write_text("".join(f"text {n}\t{n % 2}\n" for n in range(50)))
    (tmp_path / "same.tsv").write_text("".join(f"text {n}\t1\n" for n in range(50)))
    assert main(["train", "classify", *argv]) == 2
    err = capsys.readouterr().err
    assert says in err and len(err.splitlines()) == 1


def test_words_of_a_borrowed_vocabulary_are_those_given(tmp_path):
    """Word pieces cut "don't" in three and drop what they cannot see; labels stay with their words."""
    from regard.data import HFTokenizer

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "don", "'", "t", "go", ".", "##ing"]
    (tmp_path / "vocab.txt").write_text("\n".join(names) + "\n")
    borrowed = HFTokenizer.from_directory(tmp_path)
    words = ("Don't", "\u200b", "going", ".")  # the second is nothing but a mark that BERT leaves out
    ids, numbers = borrowed.encode_words(words)
    assert [names[i] for i in ids] == ["don", "'", "t", "go", "##ing", "."] and numbers == [0, 0, 0, 2, 2, 3]
    some = encode_examples([Tagged(words, ("A", "B", "C", "D"))], borrowed, ("A", "B", "C", "D"), 16, False)
    assert some.positions[0].tolist() == [1, 4, 6] and some.labels[0].tolist() == [0, 2, 3]
    body = build("bert", {"vocab_size": len(names), "max_length": 16, "width": 16, "heads": 2, "depth": 1, "hidden": 16})
    run = Run(tmp_path, RunConfig(task="label"), Classifier(body, 2, each=True).eval(), TextProcessor(Tokenizers(borrowed), ("A", "O")))
    found = predict(run, [" ".join(words), "\u200b"])
    first, lost, *others = found[0].values["words"]
    assert (lost["label"], lost["probability"]) == ("O", 0.0) and first["probability"] > 0 and len(others) == 2
    assert [(one["label"], one["probability"]) for one in found[1].values["words"]] == [("O", 0.0)]


def test_words_of_borrowed_bytes(tmp_path):
    from regard.data import HFTokenizer

    ours = Tokenizer.train(["don't go there, naïve 😀 cat"] * 3, "bpe", 300)
    words = ("don't", "go", "naïve", "😀", "x,y")
    assert HFTokenizer.from_tokenizer(ours).encode_words(words) == ours.encode_words(words)
