"""Alignments by hand."""

import pytest
import torch

from regard.decode import align
from regard.errors import NotSupported, ShapeError

# three target tokens over four source tokens
WEIGHTS_LM = torch.tensor([[0.7, 0.2, 0.1, 0.0], [0.1, 0.2, 0.2, 0.5], [0.0, 0.25, 0.3, 0.45]])


def test_best():
    assert align.best(WEIGHTS_LM) == {(0, 0), (3, 1), (3, 2)}
    assert align.pharaoh(align.best(WEIGHTS_LM)) == "0-0 3-1 3-2"


def test_above():
    assert align.above(WEIGHTS_LM, 0.3) == {(0, 0), (3, 1), (2, 2), (3, 2)}
    assert align.pharaoh(align.above(WEIGHTS_LM, 0.3)) == "0-0 3-1 2-2 3-2"
    with pytest.raises(NotSupported, match="threshold=0"):
        align.above(WEIGHTS_LM, 0)


def test_a_target_that_looks_nowhere_has_no_source():
    assert align.best(torch.tensor([[0.0, 0.0], [0.0, 1.0]])) == {(1, 1)}
    assert align.best(torch.zeros(0, 3)) == frozenset()
    assert align.pharaoh(()) == ""


def test_words():
    # target pieces 0 and 1 are word 0, the third is the end; source pieces 1 and 2 are word 1
    merged = align.words(WEIGHTS_LM, [0, 0], [0, 1, 1, 2])
    torch.testing.assert_close(merged, torch.tensor([[0.4, 0.35, 0.25]]))
    merged = align.words(WEIGHTS_LM, [1, -1, 0], [1, 0, 0, -1])
    torch.testing.assert_close(merged, torch.tensor([[0.55, 0.0], [0.3, 0.7]]))
    assert align.pharaoh(align.best(merged)) == "0-0 1-1"


def test_word_numbers_must_fit():
    with pytest.raises(ShapeError, match="4 word numbers for 3 positions"):
        align.words(WEIGHTS_LM, [0, 1, 2, 3], [0, 1, 2, 3])
    with pytest.raises(ShapeError, match="of one sentence"):
        align.best(WEIGHTS_LM[None])


def test_pharaoh_is_sorted_by_target():
    assert align.pharaoh({(3, 0), (1, 0), (0, 10), (0, 9)}) == "1-0 3-0 0-9 0-10"
