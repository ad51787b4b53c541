"""Text to pattern: what a pattern prints is read back, and nothing else is."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import regard.patterns as P
from regard.errors import BadPattern, RegardError, UnknownName
from regard.patterns import parse

small, positive = st.integers(0, 9), st.integers(1, 9)
leaves = st.one_of(
    st.sampled_from([P.full, P.causal]),
    small.map(P.window),
    small.map(P.local_causal),
    small.map(lambda n: P.stride(n + 1)),
    st.tuples(small, small).map(lambda n: P.dilated(n[0], n[1] + 1)),
    st.tuples(small, small).map(lambda n: P.random_blocks(n[0] + 1, n[1] + 1, seed=n[0])),
    st.lists(st.integers(-9, 9), min_size=1).map(lambda at: P.tokens(*at)),
    st.tuples(small, small).map(lambda n: P.to_tokens(*range(n[0], n[0] + n[1]))),
    st.builds(P.block, positive),
    st.builds(P.block_window, positive, small),
    st.builds(P.block_memory, positive, small, small),
    st.builds(P.token_blocks, positive, st.integers(-3, 3)),
    st.builds(P.summary, positive, positive),
    st.builds(P.same_row, positive),
    st.builds(P.same_column, positive),
    st.builds(P.grid_window, small, positive),
    st.builds(P.grid_memory, positive, positive, small, small, positive),
    st.lists(st.integers(-9, 30), max_size=20).map(lambda at: P.from_tokens(*at)),
)


def one_head(rule: P.Pattern) -> P.Pattern:
    return rule if rule.heads == 1 else P.causal


trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1]),
        st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
        inner.map(lambda rule: ~rule),
        st.builds(P.behind, inner, small),
        st.tuples(inner.map(one_head), inner.map(one_head)).map(lambda two: P.per_head(*two)),
        inner.map(one_head).map(P.per_head),
    ),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(trees)
def test_a_printed_pattern_reads_back(pattern):
    again = parse(str(pattern))
    assert again == pattern and str(again) == str(pattern)
    assert again.mask(7, 11).equal(pattern.mask(7, 11))


@pytest.mark.parametrize(
    "text", ["per_head(" * 190 + "causal" + ")" * 190, "&".join(["causal"] * 285), "(causal|" * 190 + "causal" + ")" * 190]
)
def test_deep_patterns_work_or_are_refused(text):
    with contextlib.suppress(RegardError):
        assert parse(text).mask(3, 3).shape == (1, 1, 3, 3)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "(", "window(3", "causal and full", "not causal", "causal + full", "causal if 1 else full", "[causal]", "3", "-1"),
        *("a.b", "(lambda: 1)()", "causal.draw", "window(full)", "window(open('x'))", "window(1.5)", "window(True)", "window('3')"),
        *(
            "window(*[1])",
            "tokens(*range(9**9))",
            "tokens(*range(0, 999999999))",
            "tokens(*range(0, None))",
            "tokens(*open(1, 2))",
            "window(**{})",
            "window(1 + 1)",
            "window(2 ** 99)",
            f"window({'9' * 400})",
            "window(1, 2)",
            "window(wide=2)",
        ),
        *(
            "causal(3)",
            "window",
            "tokens(None)",
            "per_head(3)",
            "~" * 1990,
            "(" * 400,
            "x" * 2001,
            "causal; full",
            "causal\nfull",
            "x := 3",
        ),
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(RegardError):
        parse(text)


@pytest.mark.parametrize("name", ["__import__('os')", "eval('1')", "exec", "lengths(3)", "keep(1)", "Pattern()"])
def test_only_listed_names_are_known(name):
    with pytest.raises(UnknownName):
        parse(name)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="causlwindo()&|~,0123456789 .[]'\"\\\n*=-", max_size=60))
def test_noise_gives_a_pattern_or_our_own_error(text):
    with contextlib.suppress(RegardError):
        assert isinstance(parse(text), P.Pattern)


def test_too_long_says_so():
    with pytest.raises(BadPattern, match="at most 2000"):
        parse(" & ".join(["causal"] * 300))
