"""Masked words: what stands in a row, what is hidden, what the loss asks, and the command line."""

import json

import numpy as np
import pytest
import torch

from regard.cli import main
from regard.data import BOS, EOS, PAD, Splits, TokenizedText, Tokenizer, Tokenizers
from regard.errors import BadConfig
from regard.models import TextEncoder, build
from regard.tasks import Masked, MaskedOptions, TaskObjective, TextProcessor, load_run, measure
from regard.tasks.masked_rows import Rows, mask_rows

WORDS = [f"w{n}" for n in range(50)]
DOCUMENTS = [" ".join(WORDS[(n * k) % 50] for k in range(1, 30 + n)) for n in range(1, 13)]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(DOCUMENTS, "word", 100, min_count=1)


@pytest.fixture(scope="module")
def tokens(tokenizer):
    return TokenizedText.of(DOCUMENTS, tokenizer)


def rows_of(tokens, tokenizer, following, length=16):
    return Rows(tokens, tokenizer, length, following)


def task_of(tokenizer, **options):
    return Masked(MaskedOptions(**{"max_length": 16, **options}), TextProcessor(Tokenizers(tokenizer)))


# -- rows ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_every_token_is_in_one_row(tokens, tokenizer, epoch):
    plan = rows_of(tokens, tokenizer, following=False).plan(epoch)
    assert plan[:, 1].max() <= 14 and not plan[:, 2:].any()
    places = np.concatenate([np.arange(begin, begin + size) for begin, size, *_ in plan.tolist()])
    special = {*tokens.starts.tolist(), *(tokens.ends - 1).tolist()}
    assert sorted(places.tolist()) == [n for n in range(len(tokens)) if n not in special]


def test_second_halves_follow_or_come_from_another_document(tokens, tokenizer):
    rows = rows_of(tokens, tokenizer, following=True)
    plan = rows.plan(3)
    document = [np.searchsorted(tokens.starts, plan[:, column], side="right") for column in (0, 2)]
    apart = plan[:, 4] == 1
    assert (document[0][apart] != document[1][apart]).all() and 0.4 < apart.mean() <= 0.5
    assert (plan[~apart, 2] == plan[~apart, 0] + plan[~apart, 1]).all()
    assert (plan[:, [1, 3]] >= 1).all() and (plan[:, 1] + plan[:, 3]).max() <= 13
    used = np.concatenate([np.arange(b, b + n) for a in (0, 2) for b, n in plan[:, a : a + 2].tolist()])
    assert len(used) == len(set(used.tolist())) > 0.85 * (len(tokens) - 2 * tokens.documents)  # nothing twice, little lost
    assert np.array_equal(rows.plan(3), plan) and not np.array_equal(rows.plan(4), plan)


def test_one_document_has_nothing_to_exchange(tokenizer):
    one = TokenizedText.of(DOCUMENTS[:1], tokenizer)
    data = Splits(one, one, one)
    with pytest.raises(BadConfig, match="two documents"):
        task_of(tokenizer, next_sentence="yes").settings("bert", data)
    assert task_of(tokenizer).settings("bert", data)["nsp_head"] is False
    assert not task_of(tokenizer).encode(one, bert(len(tokenizer) + 1, True)).next_sentence


# -- hiding ----------------------------------------------------------------------------------------------------------------


def test_a_row_by_hand(tokens, tokenizer):
    rows = rows_of(tokens, tokenizer, following=True)
    some = np.array([[1, 3, 4, 2, 0], [10, 2, 20, 5, 1]])
    torch.manual_seed(0)
    batch = mask_rows(rows, some, 0.15)
    shown = batch.ids_BL.flatten().clone()
    shown[batch.chosen_T] = batch.wanted_T
    ids = tokens.ids.astype(np.int64).tolist()
    assert shown.view_as(batch.ids_BL).tolist() == [
        [BOS, *ids[1:4], EOS, *ids[4:6], EOS, PAD, PAD],
        [BOS, *ids[10:12], EOS, *ids[20:25], EOS],
    ]
    assert batch.segment_BL.tolist() == [[0] * 5 + [1] * 3 + [0] * 2, [0] * 4 + [1] * 6]
    assert batch.n_B.tolist() == [8, 10] and batch.unrelated_B.tolist() == [0, 1]


def test_fifteen_per_cent_of_words_in_three_ways(tokenizer):
    """Counts of a large batch: 15 % of each row, of these 80 % hidden, 10 % random, 10 % as they were; special tokens never."""
    tokens = TokenizedText.of([" ".join(DOCUMENTS)] * 300, tokenizer)
    rows = rows_of(tokens, tokenizer, following=False, length=102)
    torch.manual_seed(1)
    plan = rows.plan(0)
    batch = mask_rows(rows, plan, 0.15)
    chosen_BL = torch.zeros_like(batch.ids_BL, dtype=torch.bool).flatten().index_fill(0, batch.chosen_T, True).view_as(batch.ids_BL)
    words_B = torch.from_numpy(plan[:, 1])
    assert (chosen_BL.sum(1) == (words_B * 0.15).round().clamp(min=1)).all()
    shown_T = batch.ids_BL.flatten()[batch.chosen_T]
    mask = len(tokenizer)
    n = len(shown_T)
    assert n > 10_000 and (shown_T == mask).float().mean().item() == pytest.approx(0.8, abs=0.015)
    kept = (shown_T == batch.wanted_T).float().mean().item()
    assert kept == pytest.approx(0.1 + 0.1 / 50, abs=0.012)
    assert int(shown_T.min()) >= 4 and int(batch.wanted_T.min()) >= 4
    assert not chosen_BL[:, 0].any() and mask not in batch.ids_BL[~chosen_BL]
    places = chosen_BL[words_B == 100].float().mean(0)[1:101]
    assert places.min() > 0.05  # every place is chosen now and then


def test_hiding_is_new_each_time_and_follows_the_loop(tokens, tokenizer):
    rows = rows_of(tokens, tokenizer, following=True)
    some = rows.plan(0)[:4]

    def hidden(seed):
        torch.manual_seed(seed)
        return mask_rows(rows, some, 0.15).ids_BL.tolist()

    assert hidden(1) == hidden(1) != hidden(2)


# -- the loss --------------------------------------------------------------------------------------------------------------


def bert(vocab_size, following, length=16):
    torch.manual_seed(0)
    sizes = {
        "vocab_size": vocab_size,
        "max_length": length,
        "width": 16,
        "heads": 2,
        "depth": 1,
        "hidden": 32,
        "dropout": 0.0,
        "attention": "softmax",
    }
    return build("bert", sizes | {"pooler": following, "nsp_head": following}).double()


@torch.no_grad()
@pytest.mark.parametrize("following", [False, True])
def test_the_loss_asks_at_chosen_places_only(tokens, tokenizer, following):
    """Equal to plain cross-entropies of rows alone; with sentences the mean of one and the mean of the other."""
    model = bert(len(tokenizer) + 1, following).train()
    task = task_of(tokenizer, batch_size=5, next_sentence="yes" if following else "no")
    task = TaskObjective(task, Splits(tokens, tokens, tokens), model)
    batch = task.batch(task.batches(0)[0], torch.Generator())
    found = task.loss(model, batch)
    L, words, follows = batch.ids_BL.shape[1], 0.0, 0.0
    for row in range(len(batch)):
        n = int(batch.n_B[row])
        x = model.features(batch.ids_BL[row : row + 1, :n], segment_BL=batch.segment_BL[row : row + 1, :n])
        for place, wanted in zip(batch.chosen_T.tolist(), batch.wanted_T, strict=True):
            if place // L == row:
                words -= model.logits(x)[0, place % L].log_softmax(-1)[wanted]
        if following:
            follows -= model.nsp_logits(model.pooled(x))[0].log_softmax(-1)[batch.unrelated_B[row]]
    expected = words / len(batch.wanted_T) + follows / len(batch)
    torch.testing.assert_close(found.total / found.count, expected, atol=1e-9, rtol=0)
    assert found.count == len(batch.wanted_T)
    assert set(task.evaluate(model)) == {"loss", "accuracy"} | ({"next_sentence_accuracy"} if following else set())


def test_judging_is_the_same_every_time(tokens, tokenizer):
    model = bert(len(tokenizer) + 1, False).eval()
    torch.manual_seed(5)
    first = measure(task_of(tokenizer), model, tokens)
    assert first == measure(task_of(tokenizer), model, tokens)


# -- the command line ------------------------------------------------------------------------------------------------------


def test_train_evaluate_and_go_on(tmp_path, capsys):
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": d}) + "\n" for d in DOCUMENTS * 3))
    small = [x for s in ("width=32", "heads=2", "depth=1", "hidden=64") for x in ("--set", s)]
    argv = [
        "train",
        "masked",
        "--data",
        str(tmp_path / "text.jsonl"),
        "--tokenizer",
        "word",
        "--max-length",
        "24",
        "--batch-size",
        "8",
        "--quiet",
    ]
    out = tmp_path / "run"
    assert main([*argv, *small, "--out", str(out), "--steps", "40", "--lr", "3e-3", "--warmup-steps", "10"]) == 0
    events = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    losses = [event["loss"] for event in events if event["event"] == "train"]
    assert losses[-1] < losses[0] and "next_sentence_accuracy" in events[-1]
    run = load_run(out, TextEncoder)
    assert run.task == "masked" and run.model.config.vocab_size == len(run.processor.tokenizer) + 1
    capsys.readouterr()
    assert main(["evaluate", str(out)]) == 0
    assert "loss" in (said := capsys.readouterr().out) and "next_sentence_accuracy" in said
    assert main([*argv, "--init-from", str(out), "--out", str(tmp_path / "on"), "--steps", "2", "--next-sentence", "no"]) == 0
    assert main([*argv, "--model", "gpt2", "--out", str(tmp_path / "x"), "--steps", "1"]) == 2
    assert "use one of bert" in capsys.readouterr().err
    assert main(["predict", str(out), "a"]) == 2 and "[MASK]" in capsys.readouterr().err
    assert main(["predict", str(out), "w1 [MASK] w3", "--nbest", "2"]) == 0 and len(capsys.readouterr().out.split()) == 2


@pytest.mark.parametrize("bad", [{"max_length": 4}, {"batch_size": 0}, {"mask_rate": 0.0}, {"mask_rate": 1.0}])
def test_settings_that_make_no_sense(bad):
    with pytest.raises(BadConfig):
        MaskedOptions(**bad)
