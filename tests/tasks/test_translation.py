"""Translation from the command line: train, resume, evaluate, predict, look; and what it says when something is wrong."""

import json

import pytest
import torch
from tests.tasks.processes import check_two_processes

from regard.cli import main
from regard.data import Splits, Tokenizers
from regard.errors import BadConfig
from regard.metrics import score_translations
from regard.models import build
from regard.tasks import TaskObjective, TextProcessor, Translation, TranslationOptions, load_run, translations

TRAIN = ["train", "translation", "--data", "numbers:en-de,below=200", "--vocab-size", "300", "--quiet", "--set", "width=32", "--set", "heads=2",
         "--set", "depth=(1, 1)", "--set", "hidden=64", "--set", "dropout=0.0", "--batch-tokens", "512"]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny run, trained once: too short to be good, long enough to be real."""
    out = tmp_path_factory.mktemp("run")
    assert main([*TRAIN, "--out", str(out), "--steps", "60", "--lr", "5e-3", "--warmup-steps", "20"]) == 0
    return out


def test_a_run_is_whole(folder):
    config = json.loads((folder / "config.json").read_text())
    assert (config["format_version"], config["task"], config["model"]["name"]) == (2, "translation", "transformer")
    assert config["options"]["data"] == "numbers:en-de,below=200" and config["digest"]
    assert {"model.safetensors", "tokenizer.json", "metrics.jsonl", "state"} <= {path.name for path in folder.iterdir()}
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [event["loss"] for event in events if event["event"] == "train"]
    assert losses[-1] < 0.8 * losses[0]


def test_predict_gives_a_line_a_line(folder, capsys, monkeypatch):
    import io

    assert main(["predict", str(folder), "twelve", "fifty-one", "--beam", "2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    monkeypatch.setattr("sys.stdin", io.StringIO("seven\n\neight\n"))
    assert main(["predict", str(folder), "--beam", "1"]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert len(lines) == 4 and lines[1] == ""  # an empty line stays one
    assert main(["predict", str(folder), "ninety", "--nbest", "3", "--alignments", "pharaoh"]) == 0
    best = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert len(best) == 3 and float(best[0][0]) >= float(best[1][0])


def test_evaluate_has_a_signature_and_lengths(folder, capsys, tmp_path):
    assert main(["evaluate", str(folder), "--beam", "1"]) == 0
    out = capsys.readouterr().out
    assert (
        "signature: nrefs:1|case:mixed" in out and "source_words" in out and "test part of numbers:en-de,below=200: 7 pairs, greedy" in out
    )
    (tmp_path / "t.tsv").write_text("twelve\tzwölf\nthirteen\tdreizehn\n")
    assert main(["evaluate", str(folder), "--data", str(tmp_path / "t.tsv"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0 <= found["exact_match"] <= 1 and sum(row["sentences"] for row in found["rows"]) == 2


def test_look_draws_the_alignment(folder, capsys, tmp_path):
    assert main(["look", str(folder), "twenty-one", "--png", str(tmp_path / "map.png")]) == 0
    assert "target → source" in capsys.readouterr().out
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


def test_resume_goes_on_and_begins_nothing_twice(folder, tmp_path, capsys):
    out = tmp_path / "run"
    assert main([*TRAIN, "--out", str(out), "--steps", "5"]) == 0
    assert main([*TRAIN, "--out", str(out), "--steps", "9"]) == 2
    assert "resume" in capsys.readouterr().err
    assert main([*TRAIN, "--out", str(out), "--steps", "9", "--resume"]) == 0
    assert "9 steps" in capsys.readouterr().out


def test_words_are_cut_anew_each_epoch_and_the_same_after_a_resume(tmp_path):
    """Steps 5 and 9 are in the middle of epochs."""
    more = [*TRAIN, "--bpe-dropout", "0.3", "--average", "0", "--evaluate-every", "5"]
    assert main([*more, "--out", str(tmp_path / "once"), "--steps", "9"]) == 0
    assert main([*more, "--out", str(tmp_path / "twice"), "--steps", "5"]) == 0
    assert main([*more, "--out", str(tmp_path / "twice"), "--steps", "9", "--resume"]) == 0
    once, twice = (load_run(tmp_path / name) for name in ("once", "twice"))
    assert all(a.equal(b) for a, b in zip(once.model.parameters(), twice.model.parameters(), strict=True))
    options = TranslationOptions(data="numbers:en-de,below=200", bpe_dropout=0.3, batch_tokens=512)
    pairs = Translation(options).read()
    tasks = [TaskObjective(Translation(options, once.processor), pairs, once.model, seed) for seed in (0, 0, 1)]

    def cut(task, epoch):
        """The pairs of an epoch as tokens, in the order of the corpus; and its batches hold them all."""
        items = task.batches(epoch)
        for item in items:
            batch = task.batch(item, torch.Generator())
            assert max(batch.source_BM.shape[1], batch.target_BL.shape[1] - 1) * len(batch) <= 512
        assert sum(map(len, items.groups)) == len(pairs.train)
        return items.rows.corpus.source.values.tolist()

    first = cut(tasks[0], 0)
    assert cut(tasks[0], 1) != first == cut(tasks[1], 0) != cut(tasks[2], 0)
    plain = Translation(TranslationOptions(data="x", batch_tokens=512), once.processor).encode(tasks[0].valid, once.model)
    assert tasks[0].valid_rows.corpus.source.values.tolist() == plain.corpus.source.values.tolist()  # validation has no dropout


@pytest.mark.parametrize("changes", [{"bpe_dropout": 1.0}, {"bpe_dropout": 0.1, "tokenizer": "word"}])
def test_dropout_of_what_has_no_merges(changes):
    with pytest.raises(BadConfig, match="bpe_dropout"):
        TranslationOptions(**changes)


@pytest.mark.slow
def test_two_processes_give_what_one_gives(tmp_path):
    """The same number of batches per step: the same model, up to the order of sums. With shards; without them: test_language.py."""
    argv = [*TRAIN, "--steps", "4", "--accumulate", "2", "--sharding", "full"]
    stdout = check_two_processes(argv, tmp_path)
    assert stdout.count("4 steps") == 1


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["train", "translaton", "--out", "x"], "translation"),
        (["train", "translation", "--out", "x", "--data", "numbers:en-xx"], "language"),
        (["train", "translation", "--out", "x", "--data", "missing.en missing.de"], "missing.en"),
        (["train", "translation", "--out", "x", "--data", "numbers:en-de,below=50", "--model", "transfrmer"], "transformer"),
        (["train", "translation", "--out", "x", "--data", "numbers:en-de,below=50", "--set", "widht=3"], "width"),
        (["train", "translation", "--out", "x", "--set", "width"], "width=128"),
        (["predict", "nowhere", "a"], "not a run"),
        (["evaluate", "nowhere"], "not a run"),
    ],
)
def test_mistakes_say_what_to_do(argv, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert says in err and len(err.splitlines()) == 1


def test_the_loss_counts_real_tokens_only():
    """Equal to a plain cross-entropy over every sentence alone."""
    pairs = [("one two", "eins zwei"), ("three", "drei"), ("four five six seven", "vier fünf sechs sieben")]
    tokenizers = Tokenizers.train(pairs, "word", 100, joint=True, min_count=1)
    torch.manual_seed(0)
    size = len(tokenizers.source)
    model = build(
        "transformer",
        {"source_vocab_size": size, "target_vocab_size": size, "width": 16, "heads": 2, "depth": (1, 1), "hidden": 32, "dropout": 0.0},
    )
    translation = Translation(TranslationOptions(data="x", label_smoothing=0.1), TextProcessor(tokenizers))
    task = TaskObjective(translation, Splits(pairs, pairs, []), model)
    (item,) = task.batches(0)
    batch = task.batch(item, torch.Generator())
    whole = task.loss(model, batch)
    alone = 0.0
    for b in range(len(batch)):
        m, n = int(batch.source_n_B[b]), int(batch.target_n_B[b])
        logits = model(batch.source_BM[b : b + 1, :m], batch.source_n_B[b : b + 1], batch.target_BL[b : b + 1, :n])
        alone += torch.nn.functional.cross_entropy(logits[0], batch.target_BL[b, 1 : n + 1], label_smoothing=0.1, reduction="sum")
    torch.testing.assert_close(whole.total, alone, atol=1e-4, rtol=1e-5)
    assert whole.count == int(batch.target_n_B.sum())


def test_score_by_hand():
    found = score_translations(["a b c d", "x"], ["a b c d", "y"], ["one two three four", "one two three four five six"])
    assert found.exact_match == 0.5 and found.by_length["1–5"] == (1, pytest.approx(100.0), 1.0) and found.by_length["6–10"][2] == 0.0


def test_a_run_loads_what_was_saved(folder):
    one, two = load_run(folder), load_run(folder)
    for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert a.equal(b)
    assert translations(one, ["twelve"])[0][0] == translations(two, ["twelve"])[0][0]
