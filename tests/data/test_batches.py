"""Batches: every pair once, little padding, the same order for any number of processes, and from any place on."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data import BOS, EOS, PAD, Batches, Corpus, Ragged, Tokenizers, collate, read_pairs
from regard.data.batches import _encoded, similar_lengths
from regard.errors import NotSupported, ShapeError


def corpus_of(source, target):
    """Sentences of these lengths; ids tell which pair and which place."""
    rows = lambda lengths: [[4 + (7 * n + i) % 1000 for i in range(length)] for n, length in enumerate(lengths)]  # noqa: E731
    return Corpus(Ragged.of([*r, EOS] for r in rows(source)), Ragged.of([BOS, *r, EOS] for r in rows(target)))


def captions(count=29_000, seed=0):
    """Lengths like those of image captions: log-normal, and the two sides go together."""
    generator = np.random.default_rng(seed)
    common, own = generator.normal(size=(2, 2, count)) * np.array([[[0.28]], [[0.12]]])
    return corpus_of(*np.clip(np.exp(2.6 + common[0] + own).round(), 3, 45).astype(int))


CAPTIONS = captions(3000)


# -- rows of different lengths -----------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=9), max_size=9), st.data())
def test_rows_are_kept_and_padded(rows, data):
    ragged = Ragged.of(rows)
    assert ragged.values.dtype == np.int32 and ragged.lengths.tolist() == [len(row) for row in rows]
    assert [ragged[n].tolist() for n in range(len(ragged))] == rows
    at = data.draw(st.integers(0, len(rows)))
    both = Ragged.joined([Ragged.of(rows[:at]), Ragged.of(rows[at:])])
    assert both.values.tolist() == ragged.values.tolist() and both.offsets.tolist() == ragged.offsets.tolist()
    index = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=5) if rows else st.just([])), dtype=np.int64)
    table, counts = ragged.padded(index)
    assert table.dtype == counts.dtype == torch.int64 and counts.tolist() == [len(rows[n]) for n in index]
    width = max((len(rows[n]) for n in index), default=0)
    assert table.shape == (len(index), width)
    assert table.tolist() == [rows[n] + [PAD] * (width - len(rows[n])) for n in index]


def test_a_batch_by_hand():
    batch = collate(Corpus(Ragged.of([[7, 8, EOS], [9, EOS]]), Ragged.of([[BOS, 5, EOS], [BOS, 6, 7, 8, EOS]])), np.array([1, 0]))
    assert batch.source_BM.tolist() == [[9, EOS, PAD], [7, 8, EOS]] and batch.source_n_B.tolist() == [2, 3]
    assert batch.target_BL.tolist() == [[BOS, 6, 7, 8, EOS], [BOS, 5, EOS, PAD, PAD]] and batch.target_n_B.tolist() == [4, 2]
    assert batch.index_B.tolist() == [1, 0] and len(batch) == 2
    assert batch.to("cpu").target_BL.tolist() == batch.target_BL.tolist()


def test_text_to_batch_and_back():
    pairs = read_pairs("numbers:en-de,below=300", shares=(0, 0)).train
    tokenizers = Tokenizers.train(pairs, vocab_size=300)
    corpus = Corpus.of(pairs, tokenizers)
    for batch in Batches(corpus, 500).epoch(0):
        for row, n in enumerate(batch.index_B.tolist()):
            assert tokenizers.source.decode(batch.source_BM[row].tolist()) == pairs[n][0]
            assert tokenizers.target.decode(batch.target_BL[row].tolist()) == pairs[n][1]
            assert batch.source_BM[row, batch.source_n_B[row] - 1] == EOS
            assert batch.target_BL[row, 0] == BOS and batch.target_BL[row, batch.target_n_B[row]] == EOS


def test_dropout_cuts_every_epoch_and_side_another_way_and_repeats():
    pairs = [("newest lowest widest newer lower", "newest lowest widest newer lower")] * 5
    tokenizers = Tokenizers.train(pairs, vocab_size=300)
    first, again, other = (Corpus.of(pairs, tokenizers, dropout=0.3, seed=seed) for seed in (1, 1, 2))
    assert first.source.values.tolist() == again.source.values.tolist() != other.source.values.tolist()
    assert first.source.values.tolist() != first.target.values[first.target.values != BOS].tolist()
    chunks = _encoded([pairs[0]] * 9, 0, tokenizers.source, 0.3, 1, chunk=2)  # each chunk has dice of its own
    assert len({tuple(chunks[n].tolist()) for n in (0, 2, 4, 6, 8)}) > 1
    batches = Batches(lambda epoch: Corpus.of(pairs, tokenizers, dropout=0.3, seed=epoch), 200)
    epochs = [[b.source_BM.tolist() for b in batches.epoch(e)] for e in (1, 2, 1)]
    assert epochs[0] == epochs[2] != epochs[1]


# -- every pair once, within the budget --------------------------------------------------------------------------------

lengths = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=60)


@settings(max_examples=100)
@given(lengths, st.integers(1, 90), st.integers(0, 5), st.booleans(), st.floats(0, 0.5))
def test_every_pair_once_and_no_batch_above_the_budget(pairs, budget, epoch, shuffle, noise):
    corpus = corpus_of(*zip(*pairs, strict=True))
    batches = Batches(corpus, budget, shuffle=shuffle, noise=noise, long="alone")
    seen = []
    for batch in batches.epoch(epoch):
        seen += batch.index_B.tolist()
        size = len(batch) * max(batch.source_BM.shape[1], batch.target_BL.shape[1] - 1)
        assert size <= budget or len(batch) == 1
    assert sorted(seen) == list(range(len(pairs)))
    assert 0 < batches.fill(epoch) <= 1


def test_a_pair_above_the_budget():
    corpus = corpus_of([3, 40, 5], [3, 5, 5])
    with pytest.raises(NotSupported, match=r'pair 1 has 41 tokens.*batch_tokens=40.*long="alone"'):
        Batches(corpus, 40).plan(0)
    alone = Batches(corpus, 40, long="alone")
    assert [1] in [index.tolist() for index in alone.plan(0)]
    assert len(Batches(corpus, 41).plan(0)) == 2


def test_nothing_at_all():
    empty = Corpus(Ragged.of([]), Ragged.of([]))
    assert Batches(empty).plan(0) == [] and list(Batches(empty).epoch(0, world=3)) == [] and Batches(empty).fill() == 1


@pytest.mark.parametrize("budget", [1024, 2048, 4096])
def test_little_padding(budget):
    corpus = captions()
    assert Batches(corpus, budget).fill(1) >= 0.9
    generator = np.random.default_rng(0)
    source, target = corpus.source.lengths, corpus.target.lengths - 1
    random = [generator.permutation(len(corpus))[:100] for _ in range(50)]
    unsorted = sum(source[i].sum() + target[i].sum() for i in random) / sum(100 * (source[i].max() + target[i].max()) for i in random)
    assert unsorted < 0.6  # what it is worth: without sorting


def test_little_padding_on_numbers():
    pairs = read_pairs("numbers:en-de,count=4000").train
    corpus = Corpus.of(pairs, Tokenizers.train(pairs, vocab_size=500))
    assert Batches(corpus, 1024).fill() >= 0.9 and Batches(corpus, 4096).fill() >= 0.9


# -- order -------------------------------------------------------------------------------------------------------------


def order(batches, epoch, **where):
    return [batch.index_B.tolist() for batch in batches.epoch(epoch, **where)]


def test_the_order_depends_on_seed_and_epoch_alone():
    one, two = Batches(CAPTIONS, 700, seed=3), Batches(CAPTIONS, 700, seed=3)
    two.plan(7)  # what was read before does not matter
    assert order(one, 2) == order(two, 2)
    assert order(one, 2) != order(one, 3) and order(one, 2) != order(Batches(CAPTIONS, 700, seed=4), 2)
    mixed = [{frozenset(index) for index in order(one, epoch)} for epoch in (2, 3)]
    assert len(mixed[0] & mixed[1]) < 0.1 * len(mixed[0])  # other neighbours each epoch, not only another order


def test_batches_are_shuffled():
    lengths = [batch.source_BM.shape[1] for batch in Batches(CAPTIONS, 700).epoch(0)]
    assert abs(np.corrcoef(lengths, np.arange(len(lengths)))[0, 1]) < 0.4


def test_for_evaluation_the_longest_come_first_and_nothing_changes():
    batches = Batches(CAPTIONS, 700, shuffle=False)
    sizes = [max(b.source_BM.shape[1], b.target_BL.shape[1] - 1) for b in batches.epoch(0)]
    assert sizes == sorted(sizes, reverse=True) and order(batches, 0) == order(batches, 5)
    assert batches.fill() > Batches(CAPTIONS, 700).fill()


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_processes_share_one_order(world):
    batches = Batches(CAPTIONS, 700)
    whole = order(batches, 1)
    shares = [order(Batches(CAPTIONS, 700), 1, rank=rank, world=world) for rank in range(world)]
    assert {len(share) for share in shares} == {len(whole) // world}
    together = [index for step in zip(*shares, strict=True) for index in step]
    assert together == whole[: len(whole) // world * world]
    every = [order(batches, 1, rank=rank, world=world, even=False) for rank in range(world)]
    assert sorted(index for share in every for index in share) == sorted(whole)


@pytest.mark.parametrize("world", [1, 3])
def test_going_on_from_the_middle(world):
    batches = Batches(CAPTIONS, 700)
    whole = order(batches, 4)
    for first in (0, 6, 7, len(whole) - 1, len(whole)):
        shares = [order(Batches(CAPTIONS, 700), 4, first=first, rank=rank, world=world) for rank in range(world)]
        together = [index for step in zip(*shares, strict=True) for index in step]
        assert together == whole[first : first + (len(whole) - first) // world * world]


def test_what_cannot_be_asked():
    batches = Batches(CAPTIONS, 700)
    with pytest.raises(NotSupported, match="process 2 of 2"):
        batches.epoch(0, rank=2, world=2)
    with pytest.raises(ShapeError, match="cannot go on from number 10000"):
        batches.epoch(0, first=10_000)
    with pytest.raises(NotSupported, match="batch_tokens=0"):
        Batches(CAPTIONS, 0)
    with pytest.raises(ShapeError, match="2 source sentences and 1 target"):
        Corpus(Ragged.of([[2], [2]]), Ragged.of([[1, 2]]))


def test_batches_of_similar_length_hold_every_example_once():
    lengths = np.random.default_rng(0).integers(1, 200, 1001)
    batches = similar_lengths(lengths, 16, np.random.default_rng(1))
    assert sorted(np.concatenate(batches).tolist()) == list(range(1001)) and {len(batch) for batch in batches[:-1]} == {16}
    spread = np.mean([np.ptp(lengths[batch]) for batch in batches])
    assert spread < 0.2 * np.mean([np.ptp(lengths[at : at + 16]) for at in range(0, 1000, 16)])
    again = similar_lengths(lengths, 16, np.random.default_rng(2))
    assert (
        not np.array_equal(np.concatenate(batches), np.concatenate(again))
        and similar_lengths(lengths[:0], 16, np.random.default_rng(0)) == []
    )
