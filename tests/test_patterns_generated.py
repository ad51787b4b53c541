"""Every rule against a definition in plain Python, one pair at a time, over all sizes: no queries, no keys, more queries than keys."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import regard.patterns as P
from regard.errors import RegardError
from regard.kernels import attend, force


def allows(rule: P.Pattern, b: int, h: int, i: int, j: int, queries: int, keys: int) -> bool:
    """The definition; b and h are 0 where the rule is the same for all."""
    match rule:
        case P.Both(left, right) | P.Either(left, right):
            both = [allows(side, b, h, i, j, queries, keys) for side in (left, right)]
            return all(both) if isinstance(rule, P.Both) else any(both)
        case P.Not(inner):
            return not allows(inner, b, h, i, j, queries, keys)
        case P.per_head(rules):
            return allows(rules[h if len(rules) > 1 else 0], b, 0, i, j, queries, keys)
        case P.behind(inner, front):
            return i >= front <= j and allows(inner, b, h, i - front, j - front, min(queries, keys - front), keys - front)
        case P.from_row_start(inner, first):
            start = first[b if len(first) > 1 else 0]
            return i >= start <= j and allows(inner, b, h, i - start, j - start, queries, keys)
        case P.lengths(lengths):
            return j < lengths[b if len(lengths) > 1 else 0]
        case P.since(first):
            return bool(j >= first[b if len(first) > 1 else 0])
        case P.segments(ids, query_ids):
            of_queries = ids if query_ids is None else query_ids
            mine, other = (x if x.dim() == 1 else x[b if len(x) > 1 else 0] for x in (of_queries, ids))
            at = i + len(mine) - len(other)
            return at >= 0 and bool(mine[at] == other[j])
        case P.keep(allowed):
            mask = allowed if allowed.dim() == 4 else allowed[None, None]
            row = i + mask.shape[2] - (keys if mask.shape[3] == 1 else mask.shape[3])
            index = [x if size > 1 else 0 for x, size in zip((b, h, row, j), mask.shape, strict=True)]
            return bool(mask[tuple(index)])
        case P.edges(pairs):
            return [i, j] in pairs.T.tolist()
        case P.listed_blocks(table, size, before):
            row = i // size + before
            return row >= 0 and bool(table[h if len(table) > 1 else 0, row, j // size])
        case P.random_blocks():
            return allows(rule.fit(queries, keys), b, h, i, j, queries, keys)
        case P.tokens(at) | P.to_tokens(at) | P.from_tokens(at):
            chosen = [n + keys if n < 0 else n for n in at]
            return (j in chosen and type(rule) is not P.from_tokens) or (i in chosen and type(rule) is not P.to_tokens)
        case P.token_blocks(size, at):
            blocks = -(-keys // size)
            chosen = [n + blocks if n < 0 else n for n in at]
            return i // size in chosen or j // size in chosen
        case P.Full():
            return True
        case P.Causal():
            return j <= i
        case P.window(radius):
            return abs(i - j) <= radius
        case P.local_causal(back):
            return 0 <= i - j <= back
        case P.stride(step):
            return (i - j) % step == 0
        case P.dilated(radius, step):
            return (i - j) % step == 0 and abs(i - j) <= radius * step
        case P.block_window(size, radius):
            return abs(i // size - j // size) <= radius
        case P.block_memory(size, before, after):
            start = i // size * size
            return start - before <= j < start + size + after
        case P.summary(size, last):
            return j % size >= size - last
        case P.same_row(width):
            return i // width == j // width
        case P.same_column(width):
            return i % width == j % width
        case P.grid_window(radius, width):
            return abs(i // width - j // width) <= radius and abs(i % width - j % width) <= radius
    raise NotImplementedError(rule)


B, H = 3, 2
small, positive, bits = st.integers(0, 5), st.integers(1, 5), st.integers(0, 2**62)


def drawn(shape: tuple[int, ...], seed: int, most: int) -> torch.Tensor:
    return torch.randint(0, most, shape, generator=torch.Generator().manual_seed(seed))


@st.composite
def sized_rules(draw, batch: int = B):
    """(rule, queries, keys): rules backed by tensors are made for these sizes, the same for all batch rows or heads, or not."""
    queries, keys = draw(st.integers(0, 9)), draw(st.integers(0, 9))
    rows = st.sampled_from([1, batch])
    one_row = st.tuples(rows, bits)
    leaves = st.one_of(
        st.sampled_from([P.full, P.causal]),
        st.one_of(st.builds(P.window, small), st.builds(P.local_causal, small), st.builds(P.stride, positive)),
        st.one_of(st.builds(P.dilated, small, positive), st.builds(P.summary, positive, positive)),
        st.one_of(
            st.builds(P.block, positive), st.builds(P.block_window, positive, small), st.builds(P.block_memory, positive, small, small)
        ),
        st.one_of(st.builds(P.same_row, positive), st.builds(P.same_column, positive), st.builds(P.grid_window, small, positive)),
        st.lists(st.integers(-9, 9), max_size=4).flatmap(lambda at: st.sampled_from([P.tokens(*at), P.to_tokens(*at), P.from_tokens(*at)])),
        st.builds(P.token_blocks, positive, st.integers(-3, 3)),
        st.builds(P.random_blocks, positive, positive, small, st.sampled_from([1, H])),
        one_row.map(lambda n: P.lengths(drawn((n[0],), n[1], keys + 2))),
        one_row.map(lambda n: P.since(drawn((n[0],), n[1], keys + 2))),
        one_row.map(lambda n: P.segments(drawn((n[0], keys), n[1], 2))),
        st.tuples(rows, rows, bits).map(lambda n: P.segments(drawn((n[0], keys), n[2], 2), drawn((n[1], queries), n[2] + 1, 2))),
        bits.map(lambda seed: P.segments(drawn((keys,), seed, 2))),
        st.tuples(rows, st.sampled_from([1, H]), st.booleans(), st.booleans(), bits).map(
            lambda n: P.keep(drawn((n[0], n[1], 1 if n[2] else queries, 1 if n[3] else keys), n[4], 2) > 0)
        ),
        bits.map(lambda seed: P.edges(drawn((2, 9), seed, 9))),
        st.tuples(positive, bits).map(lambda n: P.listed_blocks(drawn((H, 9, 9), n[1], 2) > 0, n[0])),
    )
    one_head = lambda rule: rule if rule.heads == 1 else P.causal  # noqa: E731
    static = lambda rule: rule if P.is_static(rule) else P.causal  # noqa: E731
    rule = draw(
        st.recursive(
            leaves,
            lambda inner: st.one_of(
                st.tuples(inner, inner).map(lambda two: two[0] & two[1]),
                st.tuples(inner, inner).map(lambda two: two[0] | two[1]),
                inner.map(lambda rule: ~rule),
                inner.map(one_head).map(P.per_head),
                st.tuples(inner.map(one_head), inner.map(one_head)).map(lambda two: P.per_head(*two)),
                st.builds(P.behind, inner.map(static), small),
                st.builds(P.from_row_start, inner.map(static), st.sampled_from([(2,), (0, 3, 1)[:batch]])),
            ),
            max_leaves=3,
        )
    )
    return rule, queries, keys


def expected_mask(rule: P.Pattern, queries: int, keys: int, batch: int, heads: int) -> torch.Tensor:
    pairs = [
        allows(rule, b, h, i, j, queries, keys)
        for b in range(batch)
        for h in range(heads)
        for i in range(keys - queries, keys)
        for j in range(keys)
    ]
    return torch.tensor(pairs, dtype=torch.bool).view(batch, heads, queries, keys)


@given(case=sized_rules(), size=positive, key_size=positive)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_rule_is_its_definition_and_its_bounds_are_sound(case, size, key_size):
    rule, queries, keys = case
    expected = expected_mask(rule, queries, keys, B, H)
    mask = rule.mask(queries, keys)
    assert rule.batch in (1, B) and rule.heads in (1, H) and mask.shape == (rule.batch, rule.heads, queries, keys)
    assert mask.expand_as(expected).equal(expected)
    summary = P.block_summary(rule, queries, keys, size, key_size).expand(B, H, -1, -1)
    for u in range(summary.shape[2]):
        for w in range(summary.shape[3]):
            pairs = expected[:, :, u * size : (u + 1) * size, w * key_size : (w + 1) * key_size].flatten(2)
            assert not (pairs.any(-1) & (summary[:, :, u, w] == 0)).any(), f"block {u}, {w} is called empty"
            assert not (~pairs.all(-1) & (summary[:, :, u, w] == 2)).any(), f"block {u}, {w} is called full"


@given(case=sized_rules(), path=st.sampled_from(["dense", "tiles", "plain"]))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_attention_under_a_rule_is_softmax_over_its_mask(case, path):
    rule, queries, keys = case
    q, k, v = (torch.randn(B, n, H, 4, dtype=torch.float64, requires_grad=True) for n in (queries, keys, keys))
    with force(path):
        out = attend(q, k, v, rule)
    mask = expected_mask(rule, queries, keys, B, H)
    scores = torch.einsum("blhk,bmhk->bhlm", q, k) / 2
    weights = scores.masked_fill(~mask, -1e9).softmax(-1) * mask
    slow = torch.einsum("bhlm,bmhv->blhv", weights, v)
    torch.testing.assert_close(out, slow)
    for one, two in zip(*(torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (out, slow)), strict=True):
        torch.testing.assert_close(one, two)


@given(case=sized_rules(batch=0))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_an_empty_batch(case):
    rule, queries, keys = case
    assert rule.mask(queries, keys).shape[0] == rule.batch
    q, k, v = (torch.randn(0, n, H, 4, requires_grad=True) for n in (queries, keys, keys))
    out = attend(q, k, v, rule)
    out.sum().backward()
    assert out.shape == (0, queries, H, 4) and k.grad.shape == k.shape


def test_queries_before_the_first_key():
    """Position −1 is not the last one: what is listed by position has nothing there, what is drawn has draws of its own."""
    assert P.segments(torch.tensor([0, 0])).draw(4, 2).split("\n") == ["··", "··", "■■", "■■"]
    assert P.listed_blocks(torch.ones(1, 1, 1, dtype=torch.bool), 2).draw(4, 2).split("\n") == ["··", "··", "■■", "■■"]
    mask = P.random_blocks(1, 2, seed=3).mask(40, 8)[0, 0]
    assert (mask.sum(-1) == 2).all() and mask[-8:].equal(P.random_blocks(1, 2, seed=3).mask(8, 8)[0, 0])


MISTAKES = [
    *(lambda: P.causal & torch.ones(2, 2, dtype=torch.bool), lambda: torch.ones(2, 2, dtype=torch.bool) & P.causal, lambda: P.causal | None),
    *(lambda: P.per_head(3), lambda: P.per_head(), lambda: P.per_head(P.per_head(P.causal, P.full)), lambda: P.behind(3, 1), lambda: P.window(True)),
    *(lambda: P.lengths("abc"), lambda: P.lengths([1.5]), lambda: P.lengths([[1]]), lambda: P.since(["a"]), lambda: P.segments([0.5]), lambda: P.keep("x")),
    *(lambda: P.edges([[0, -1], [1, 1]]), lambda: P.edges([0, 1]), lambda: P.tokens(True), lambda: P.listed_blocks([[[True]]], 2), lambda: P.stride(2).mask(-1, 3)),
    *(lambda: P.segments([0, 1]).mask(3, 3), lambda: P.segments([0, 1], [0]).mask(2, 2), lambda: P.keep(torch.ones(2, 5, dtype=torch.bool)).mask(2, 3)),
    *(lambda: P.listed_blocks(torch.ones(1, 2, 2, dtype=torch.bool), 2).mask(5, 5), lambda: P.random_blocks(1, 1, length=10**6).mask(3, 3)),
    *(lambda: P.random_blocks(1, 1, seed="x"), lambda: P.random_blocks(1, 1, length=2.5), lambda: P.segments([[0], [1]], [[0], [1], [2]])),
]  # fmt: skip


@pytest.mark.parametrize("make", MISTAKES)
def test_mistakes_are_errors_of_one_line(make):
    with pytest.raises(RegardError) as caught:
        make()
    assert "\n" not in str(caught.value)
