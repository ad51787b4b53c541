"""A published set, where one is at hand: REGARD_DATA names a folder of sets, else `shared/data` beside the repository is tried."""

import os
from pathlib import Path

import pytest

from regard.data import Batches, Corpus, Tokenizers, read_pairs

DATA = Path(os.environ.get("REGARD_DATA") or Path(__file__).resolve().parents[2].parent / "shared" / "data")
SET = DATA / "multi30k"
pytestmark = pytest.mark.skipif(not (SET / "train.en.gz").is_file(), reason="no multi30k: set REGARD_DATA to the folder that holds it")


def two(name):
    return SET / f"{name}.en.gz", SET / f"{name}.de.gz"


def test_multi30k():
    data = read_pairs(two("train"), valid=two("val"), test=two("test_2016_flickr"))
    assert (len(data.train), len(data.valid), len(data.test), len(data.skipped)) == (29_000, 1_014, 1_000, 0)
    assert data.train[0][0].startswith("Two young, White males")
    tokenizers = Tokenizers.train(data.train, vocab_size=8000)
    assert len(tokenizers.source) == 8000
    corpus = Corpus.of(data.train, tokenizers)
    assert 14 < corpus.source.lengths.mean() < 17
    for budget in (1024, 4096):
        batches = Batches(corpus, budget)
        assert batches.fill() >= 0.9
        assert sum(len(batch) for batch in batches.epoch(0)) == 29_000
    sample = [side for pair in data.test[:200] for side in pair]
    assert [tokenizers.source.decode(ids) for ids in tokenizers.source.encode_all(sample)] == sample
