"""Patterns: the three forms of every rule agree, rules combine, print as themselves and draw themselves."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regard.patterns as P
from regard.errors import BadConfig, DtypeError, RegardError, ShapeError

L, M = 23, 37  # unequal: everything must be aligned at the end


def rules(queries: int = L, keys: int = M) -> dict[str, P.Pattern]:
    g = torch.Generator().manual_seed(7)
    ids = torch.randint(0, 3, (3, keys), generator=g).sort().values
    return {
        str(rule): rule
        for rule in [
            P.full,
            P.causal,
            P.window(0),
            P.window(5),
            P.local_causal(4),
            P.block(6),
            P.block_window(4, 1),
            P.block_memory(6, 4),
            P.block_memory(3, 1, 2),
            P.token_blocks(5, 0, -1),
            P.stride(5),
            P.stride(1),
            P.dilated(2, 3),
            P.tokens(0, 9, -1),
            P.to_tokens(*range(3, 12)),
            P.from_tokens(36),
            P.random_blocks(2, 4, seed=3),
            P.random_blocks(1, 8, seed=1, per_head=5),
            P.summary(6, 2),
            P.same_row(7),
            P.same_column(7),
            P.grid_window(1, 7),
            P.grid_memory(2, 3, 1, 2, 7),
            P.grid_memory(1, 2, 0, 0, 5),
            P.lengths([keys, 11, 0]),
            P.since(torch.tensor([0, 5, 37])),
            P.from_row_start(P.causal & P.window(4), (0, 5, 37)),
            P.from_row_start(P.tokens(0, 9) | P.block(4), (3, 0, 11)),
            P.from_row_start(P.segments(ids), (3, 0, 11)),
            P.segments(ids),
            P.segments(ids[0], ids[1, :queries]),
            P.keep(torch.rand(queries, keys, generator=g) < 0.3),
            P.keep(torch.rand(3, 5, queries, keys, generator=g) < 0.1),
            P.keep(torch.rand(3, 1, 1, keys, generator=g) < 0.5),
            P.keep(torch.rand(queries, 1, generator=g) < 0.5),
            P.edges(torch.randint(0, keys, (2, 60), generator=g)),
            P.per_head(P.causal, P.window(3), P.tokens(2), P.full, P.stride(4)),
            P.at_positions(P.window(6), torch.arange(queries) * 2, torch.arange(keys) * 2 - 3),
        ]
    }


def check(rule: P.Pattern, queries: int, keys: int, size: int, key_size: int) -> None:
    """The block summary and the reach are true of the mask."""
    mask = rule.mask(queries, keys)
    summary = P.block_summary(rule, queries, keys, size, key_size)
    for u in range(summary.shape[2]):
        for w in range(summary.shape[3]):
            pairs = mask[:, :, u * size : (u + 1) * size, w * key_size : (w + 1) * key_size]
            pairs = pairs.expand(*summary.shape[:2], *pairs.shape[2:])
            some, every = pairs.flatten(2).any(-1), pairs.flatten(2).all(-1)
            assert not (some & (summary[:, :, u, w] == 0)).any(), f"{rule}: block {u},{w} is called empty"
            assert not (~every & (summary[:, :, u, w] == 2)).any(), f"{rule}: block {u},{w} is called full"
    if (reach := rule.reach()) is not None:
        back, first = reach
        i, j = torch.arange(keys - queries, keys)[:, None], torch.arange(keys)
        assert not (mask & (j <= i) & (i - j > back) & (j >= first)).any(), f"{rule} sees beyond its reach {reach}"


@pytest.mark.parametrize("name", rules())
@pytest.mark.parametrize("size", [(4, 4), (5, 8), (1, 3), (64, 64)], ids=str)
def test_three_forms_agree(name, size):
    check(rules()[name], L, M, *size)


@pytest.mark.parametrize(
    "name",
    [
        "full",
        "causal",
        "window(5)",
        "local_causal(4)",
        "stride(5)",
        "dilated(2, 3)",
        "block(6)",
        "block_window(4, 1)",
        "block_memory(6, 4, 0)",
        "block_memory(3, 1, 2)",
        "token_blocks(5, 0, -1)",
        "tokens(-1, 0, 9)",
        "summary(6, 2)",
    ],
)
def test_summary_is_exact_for_single_rules(name):
    """Not only sound: a single positional rule never calls a block partial that is empty or full."""
    rule, size = rules()[name], 4
    mask, summary = rule.mask(L, M)[0, 0], P.block_summary(rule, L, M, size)[0, 0]
    for u in range(summary.shape[0]):
        for w in range(summary.shape[1]):
            pairs = mask[u * size : (u + 1) * size, w * size : (w + 1) * size]
            assert summary[u, w] == (2 if pairs.all() else int(pairs.any())), f"{rule} block {u},{w}"


def combined():
    leaves = st.sampled_from([r for r in rules().values() if not isinstance(r, P.at_positions)])
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(inner, inner, st.booleans()).map(lambda t: t[0] & t[1] if t[2] else t[0] | t[1]), inner.map(lambda p: ~p)
        ),
        max_leaves=4,
    )


@given(rule=combined(), size=st.integers(1, 12), key_size=st.integers(1, 12))
@settings(max_examples=80, deadline=None)
def test_combinations_stay_sound(rule, size, key_size):
    check(rule, L, M, size, key_size)


def test_algebra_is_boolean_algebra():
    a, b = P.window(3), P.tokens(1)
    mask = lambda p: p.mask(9, 9)  # noqa: E731
    assert mask(a & b).equal(mask(a) & mask(b))
    assert mask(a | b).equal(mask(a) | mask(b))
    assert mask(~(a | b)).equal(mask(~a & ~b))
    assert ~~a is a
    assert P.full & a is a
    assert (P.full | a) is P.full


def test_prints_as_itself_and_can_be_typed_back():
    rule = P.causal & (P.window(128) | P.tokens(0)) & ~P.stride(3)
    assert str(rule) == "causal & (window(128) | tokens(0)) & ~stride(3)"
    assert P.parse(str(rule)) == rule
    assert str(P.per_head(P.causal, P.block(4) | P.summary(4, 1))) == "per_head(causal, block(4) | summary(4, 1))"
    assert str(P.tokens(*range(64))) == "tokens(*range(0, 64))"
    assert str(P.causal & P.lengths([3, 4])) == "causal & lengths(<2>)"


def test_draws_itself(tmp_path):
    assert (P.causal & (P.window(1) | P.tokens(0))).draw(4) == "■···\n■■··\n■■■·\n■·■■"
    assert P.causal.draw(2, keys=4) == "■■■·\n■■■■"  # the last query sees all
    png = P.per_head(P.causal, P.window(2)).save_png(tmp_path / "pattern.png", 16)
    assert png.read_bytes().startswith(b"\x89PNG")


def test_hand_worked_rules():
    rows = lambda p, n: p.draw(n).split("\n")  # noqa: E731
    assert rows(P.block(2), 4) == ["■■··", "■■··", "··■■", "··■■"]
    assert rows(P.stride(2), 4) == ["■·■·", "·■·■", "■·■·", "·■·■"]
    assert rows(P.dilated(1, 2), 5) == ["■·■··", "·■·■·", "■·■·■", "·■·■·", "··■·■"]
    assert rows(P.summary(3, 1), 4) == ["··■·"] * 4
    assert rows(P.grid_window(1, 2), 6)[0] == "■■■■··"
    assert rows(P.same_column(3), 6)[1] == "·■··■·"
    assert rows(P.block_memory(2, 1), 5) == ["■■···", "■■···", "·■■■·", "·■■■·", "···■■"]
    assert rows(P.token_blocks(2, -1), 5)[0] == rows(P.token_blocks(2, -1), 6)[0][:5] == "····■"  # the last block, whole or not
    # a grid of 4 columns, rectangles of 1 × 2: position 4 begins the second row
    assert rows(P.grid_memory(1, 2, 1, 1, 4), 8)[4] == "■■■·" + "■■■·"
    assert rows(P.edges(torch.tensor([[0, 2], [2, 1]])), 3) == ["··■", "···", "·■·"]
    # causal over 3 new queries behind 2 old keys
    assert rows(P.causal, 3) == ["■··", "■■·", "■■■"]


def test_random_blocks_can_be_repeated_and_fixed_for_streaming():
    a, b = (P.random_blocks(2, 4, seed=5).mask(32, 32) for _ in range(2))
    assert a.equal(b)
    assert not a.equal(P.random_blocks(2, 4, seed=6).mask(32, 32))
    assert (a.sum(-1) == 8).all()
    fixed = P.random_blocks(2, 4, seed=5, length=32)
    assert fixed.mask(16, 16).equal(a[:, :, :16, :16])


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: P.keep(torch.zeros(3, 3)), DtypeError, "bias"),
        (lambda: P.keep(torch.zeros(3, 3, 3, dtype=torch.bool)), ShapeError, "lengths"),
        (lambda: P.keep(torch.ones(3, 3, dtype=torch.bool)).mask(4, 4), ShapeError, "too small"),
        (lambda: P.lengths(torch.ones(2, 3, dtype=torch.long)), ShapeError, "keep"),
        (lambda: P.lengths([2, 3]) & P.lengths([1, 2, 3]), ShapeError, "2 and 3 batch rows"),
        (lambda: P.window(-1), BadConfig, "window: radius=-1, expected 0 or more"),
        (lambda: P.window(True), BadConfig, "radius=True"),
        (lambda: P.tokens("cls"), DtypeError, "integers"),
        (lambda: P.segments(torch.rand(4)), ShapeError, "integers"),
    ],
)
def test_mistakes_are_named(make, error, words):
    with pytest.raises(error, match=words) as caught:
        make()
    assert isinstance(caught.value, RegardError)


def test_keep_of_one_column_is_aligned_at_the_end():
    """The last row of the mask is the last query's, whether the column is one key or stands for all."""
    column = torch.tensor([[True], [False], [True]])
    assert P.keep(column).mask(3, 1)[0, 0].equal(column)
    assert P.keep(column).mask(3, 5)[0, 0].equal(column.expand(3, 5))
    assert P.keep(column).mask(2, 5)[0, 0].equal(column[1:].expand(2, 5))


def test_the_public_surface_of_a_pattern_is_small():
    public = {name for name in vars(P.Pattern) if not name.startswith("_")}
    assert public == {"allows", "bounds", "fit", "reach", "listed", "batch", "heads", "mask", "draw", "save_png"}
