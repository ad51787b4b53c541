"""IMDB, where it is at hand: REGARD_DATA names a folder of sets, else `shared/data` beside the repository is tried."""

import os
from pathlib import Path

import numpy as np
import pytest

from regard.data.examples import read_labelled
from regard.data.sentences import split_sentences

DATA = Path(os.environ.get("REGARD_DATA") or Path(__file__).resolve().parents[2].parent / "shared" / "data")
SET = DATA / "imdb"
pytestmark = pytest.mark.skipif(not (SET / "test.tsv.xz").is_file(), reason="no imdb: set REGARD_DATA to the folder that holds it")


def test_imdb():
    found = read_labelled(SET / "test.tsv.xz", fields=("3", "1"), shares=(0.0, 0.0))
    assert (len(found.train), len(found.skipped), sum(one.label == "1" for one in found.train)) == (25_000, 0, 12_500)
    sentences = [split_sentences(one.texts[0]) for one in found.train[:1000]]
    words = np.array([len(sentence.split()) for document in sentences for sentence in document])
    assert 10 < len(words) / 1000 < 14 and 15 < words.mean() < 25 and np.mean(words > 64) < 0.03
    assert not any("<br" in sentence for document in sentences for sentence in document)
