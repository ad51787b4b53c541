"""A call as hooks receive it: keys, positions, masks, rows; and the page that describes it."""

import dataclasses
import inspect
import re
from pathlib import Path

import pytest
import torch

from regard.attention import Attention, Cache, Call, LinearAttention, RecurrentState, Terms, helpers
from regard.patterns import at_positions, causal, full, lengths, since

CPU = torch.device("cpu")


def call(pattern, queries=1, keys=6, **more) -> Call:
    return Call(pattern, None, None, queries, keys, CPU, **more)


def late_row(pattern) -> Call:
    """A cache of 6 keys whose second row began at the fourth."""
    cache = Cache(2)
    cache.append(*torch.zeros(2, 2, 3, 1, 1), causal)
    cache.reset(torch.tensor([1]))
    *_, over = cache.append(*torch.zeros(2, 2, 3, 1, 1), pattern)
    return call(over, cache=cache)


@pytest.mark.parametrize("pattern", [since([1, 0]), lengths([5, 2]), since([1, 0]) & lengths([5, 2])], ids=str)
@pytest.mark.parametrize("make", [call, late_row])
def test_keys_allowed_is_the_mask_of_the_last_query(make, pattern):
    """Under `causal` the last query may attend to all keys, so what its mask forbids is forbidden to all."""
    given = make(causal & pattern)
    last_BM = given.mask()[:, 0, -1]
    assert given.keys_allowed().expand_as(last_BM).equal(last_BM)
    assert given.of_rows(torch.tensor([0])).keys_allowed().expand_as(last_BM).equal(last_BM)


def test_keys_before_a_late_row_are_not_allowed():
    assert late_row(causal).keys_allowed().tolist() == [[True] * 6, [False] * 3 + [True] * 3]


def test_all_keys_are_allowed():
    assert all(call(pattern).keys_allowed() is None for pattern in (full, causal, causal & full))


def test_keys_at_positions_of_their_own():
    """Of keys at 10, 20 and 30, those from 20 on."""
    given = call(at_positions(causal & since([20]), torch.tensor([30]), torch.tensor([10, 20, 30])), keys=3)
    assert given.keys_allowed().tolist() == given.mask()[:, 0, 0].tolist() == [[False, True, True]]


def test_a_stream_counts_from_the_start_of_each_row():
    state = RecurrentState(2)
    state.move(torch.zeros(2, 3, 1, 1))
    state.reset(torch.tensor([1]))
    assert call(causal & lengths([4, 2]), keys=2, state=state).keys_allowed().tolist() == [[True, False], [True, True]]


def test_the_helper_that_was_wrong_with_a_cache_is_gone():
    assert "keys_allowed" not in helpers.__all__ and not hasattr(helpers, "keys_allowed")


def test_masked_features_under_positions():
    q, k, v = torch.randn(3, 1, 3, 2, 4, dtype=torch.float64)
    pattern = at_positions(causal & since([20]), torch.tensor([10, 20, 30]), torch.tensor([10, 20, 30]))
    out, weights = LinearAttention()(q, k, v, pattern), LinearAttention().weights(q, k, pattern)
    torch.testing.assert_close(out, torch.einsum("bhlm,bmhv->blhv", weights, v))


def table(first: str) -> list[str]:
    """The names in code in the first column of the table with this heading, in docs/contract.md."""
    page = (Path(__file__).parents[2] / "docs" / "contract.md").read_text(encoding="utf-8")
    rows = page.split(f"| {first} |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return [name for row in rows for name in re.findall(r"`(\w+)", row.split("|")[1])]


def test_the_page_lists_every_field_and_helper():
    methods = [name for name, value in vars(Call).items() if inspect.isfunction(value) and not name.startswith("_")]
    assert sorted(table("field of `Call`")) == sorted(field.name for field in dataclasses.fields(Call))
    assert sorted(table("method of `Call`")) == sorted(methods)
    assert table("field of `Terms`") == list(Terms._fields)
    assert sorted(table("helper")) == sorted(helpers.__all__)
    assert all(hasattr(Attention, name) for name in table("models and layers ask"))
