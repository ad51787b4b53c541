"""Windows: every token is predicted once an epoch, the order depends on seed and epoch alone, documents are told apart."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data import LMBatches, TokenizedText
from regard.data.lm_batches import NONE, gather
from regard.errors import NotSupported


def tokens(*lengths):
    """Documents of so many tokens; ids say where they stand, so that nothing can be confused."""
    starts = np.cumsum([0, *lengths])
    return TokenizedText(np.arange(starts[-1], dtype=np.uint16) + 10, starts[:-1].astype(np.int64), 0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(2, 30), min_size=1, max_size=5), st.integers(1, 12), st.integers(1, 4), st.integers(0, 3))
def test_every_token_is_predicted_once(lengths, length, batch, epoch):
    text = tokens(*lengths)
    windows = LMBatches(text, length, batch, seed=7)
    plan = windows.plan(epoch)
    asked = []
    for item in plan:
        found = windows.batch(item)
        assert found.shape[1] <= length and len(found) <= batch
        for row in range(len(found)):
            for place in range(found.shape[1]):
                wanted = int(found.wanted_BL[row, place])
                if wanted != NONE:
                    assert wanted == int(found.ids_BL[row, place]) + 1
                    asked.append(wanted - 10)
    starts = set(text.starts.tolist())
    assert sorted(asked) == [n for n in range(len(text)) if n not in starts]


def test_order_of_seed_and_epoch_alone():
    def all_of(seed, epoch):
        windows = LMBatches(tokens(100, 50), 8, 3, seed=seed)
        return [windows.batch(item).ids_BL.tolist() for item in windows.plan(epoch)]

    assert all_of(1, 5) == all_of(1, 5)
    assert all_of(1, 5) != all_of(1, 6) and all_of(1, 5) != all_of(2, 5)
    plan = LMBatches(tokens(100, 50), 8, 3).plan(0)
    assert [x.tolist() for x in plan[2:4]] == [plan[2].tolist(), plan[3].tolist()] and plan[-1].tolist() == plan[len(plan) - 1].tolist()
    with pytest.raises(IndexError):
        plan[len(plan)]


def test_documents_are_numbered_where_a_row_has_several():
    text = tokens(5, 4, 20)
    found = gather(text, np.array([[2, 8], [10, 15]]))
    assert found.document_BL.tolist() == [[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0]]
    assert found.wanted_BL.tolist() == [[13, 14, NONE, 16, 17, 18], [21, 22, 23, 24, 25, NONE]]
    assert gather(text, np.array([[10, 15], [20, 25]])).document_BL is None
    joined = gather(text, np.array([[2, 8]]), apart=False)
    assert joined.document_BL is None and joined.wanted_BL.tolist() == [[13, 14, NONE, 16, 17, 18]]
    later = gather(text, np.array([[10, 15]]), asked_B=np.array([13]))
    assert later.wanted_BL.tolist() == [[NONE, NONE, NONE, 24, 25]]
    assert later.ids_BL.dtype == torch.long and len(later.to("cpu")) == 1


@pytest.mark.parametrize(("length", "batch", "size"), [(0, 1, 5), (1, 0, 5), (4, 2, 1)])
def test_what_cannot_be(length, batch, size):
    with pytest.raises(NotSupported):
        LMBatches(tokens(size), length, batch)
