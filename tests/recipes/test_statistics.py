"""Verdicts: distribution functions against numbers from tables, and the rule on simulated data, with and without an effect."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.recipes._engine.claims import Claim, Proportion, Results, above, at_least, measured, verdicts
from regard.recipes._engine.statistics import LOOKS, SPENT, Sample, decide, holm, incomplete_beta, student, student_quantile


def test_student_as_in_tables():
    """Critical values of the tables that every textbook has: one-sided 0.05, 0.025, 0.005."""
    table = {
        1: (6.314, 12.706, 63.657),
        2: (2.920, 4.303, 9.925),
        4: (2.132, 2.776, 4.604),
        7: (1.895, 2.365, 3.499),
        30: (1.697, 2.042, 2.750),
    }
    for freedom, values in table.items():
        for p, value in zip((0.95, 0.975, 0.995), values, strict=True):
            assert student_quantile(p, freedom) == pytest.approx(value, abs=6e-4)
            assert student(value, freedom) == pytest.approx(p, abs=1e-4) and student(-value, freedom) == pytest.approx(1 - p, abs=1e-4)
    assert student(1.0, 1) == pytest.approx(0.75) and student(0, 3) == 0.5  # Cauchy: 1/2 + arctan(1)/π
    assert student(1.959964, 1e9) == pytest.approx(0.975, abs=1e-6)


@given(st.floats(0.3, 50), st.floats(0.3, 50), st.floats(0.001, 0.999))
def test_incomplete_beta_is_symmetric(a, b, x):
    assert incomplete_beta(a, b, x) == pytest.approx(1 - incomplete_beta(b, a, 1 - x), abs=1e-9)
    assert incomplete_beta(1, b, x) == pytest.approx(1 - (1 - x) ** b, abs=1e-9)


def test_holm_by_hand():
    """The example of the method's page: 0.01, 0.04, 0.03, 0.005."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == [] and holm([0.9, 0.8]) == [1.0, 1.0]


def test_an_interval_by_hand():
    sample = Sample((1.0, 2.0, 3.0))  # mean 2, standard error 1 / √3
    assert sample.interval() == pytest.approx((2 - 4.30265 / math.sqrt(3), 2 + 4.30265 / math.sqrt(3)), rel=1e-5)
    assert sample.p_above() == pytest.approx(0.037, abs=1e-3) and sample.p_below() == pytest.approx(1 - 0.037, abs=1e-3)
    assert Sample((1.0,)).p_above() == 1.0 == Sample((math.nan, 1.0)).p_above() and Sample((1.0, 1.0, 1.0)).p_above() == 0.0


def test_the_items_bound_what_seeds_can_show():
    """Eight seeds that agree to the digit on 50 items: 46 and 45 right may be chance."""
    apart = Results({"a": [{"accuracy": Proportion(0.92, 50)}] * 8, "b": [{"accuracy": Proportion(0.90, 50)}] * 8})
    assert verdicts((above("", "a", "b"),), apart)[0].decision == "undecided"
    many = Results({"a": [{"accuracy": Proportion(0.92, 50_000)}] * 8, "b": [{"accuracy": Proportion(0.90, 50_000)}] * 8})
    assert verdicts((above("", "a", "b"),), many)[0].decision == "holds"
    all_right = Results({"a": [{"accuracy": Proportion(1.0, 20)}] * 8})
    assert verdicts((at_least("", 0.99, "a"),), all_right)[0].decision == "undecided"  # 20 of 20 does not show 99 %


def simulate(claims, effect, runs=1500, seed=0):
    """Share of recipes with any claim that holds, and share of claims that hold; the spread of seeds is 1."""
    dice, any_holds, holds = random.Random(seed), 0, 0
    for _ in range(runs):
        found = decide([[Sample(tuple(dice.gauss(effect, 1) for _ in range(LOOKS[-1])))] for _ in range(claims)])
        any_holds += "holds" in found
        holds += found.count("holds")
    return any_holds / runs, holds / runs / claims


@pytest.mark.parametrize("claims", [1, 5, 10])
def test_without_a_difference_at_most_one_recipe_in_twenty_says_holds(claims):
    assert simulate(claims, 0.0)[0] <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1500)


@pytest.mark.parametrize("claims", [1, 5, 10])
def test_a_difference_of_two_standard_errors_of_a_seed_is_found(claims):
    assert simulate(claims, 2.0, runs=300)[1] >= 0.8


def test_what_is_spent_is_one_in_twenty():
    assert sum(SPENT) == pytest.approx(0.05) and len(SPENT) == len(LOOKS)


def test_a_clear_claim_is_decided_after_three_seeds_and_fails_as_clearly():
    clear, slight = Sample((5.0, 5.1, 4.9)), Sample((0.1, -0.2, 0.3))
    assert decide([[clear], [slight]]) == ["holds", "undecided"]
    assert decide([[Sample((-5.0, -5.1, -4.9))]]) == ["fails"]
    assert decide([[clear, Sample((-5.0, -5.1, -4.9))]]) == ["fails"]  # all comparisons of a claim must hold
    assert decide([[Sample((5.0, 5.0))]]) == ["undecided"] and decide([]) == []


def test_a_decision_stands_when_seeds_are_added():
    first = (5.0, 5.1, 4.9)
    assert decide([[Sample((*first, -50.0, -60.0))]]) == ["holds"]


def results(**accuracies):
    return Results({name: [{"accuracy": one} for one in values] for name, values in accuracies.items()})


def test_controls_are_decided_by_every_seed():
    one = results(a=[0.5, 0.5, 0.1])
    assert [verdicts((at_least("", bound, "a", kind="control"),), one)[0].decision for bound in (0.1, 0.2)] == ["holds", "fails"]


def test_a_reference_that_has_not_learned_decides_nothing():
    found = results(banded=[0.99, 0.98, 0.99], dense=[0.58, 0.57, 0.59])
    better = measured("banded") - measured("dense") >= -0.02
    assert verdicts((Claim("", better),), found)[0].decision == "holds"
    (verdict,) = verdicts((Claim("", better, learned=(measured("dense") >= 0.95,)),), found)
    assert verdict.decision == "undecided" and "0.58" in verdict.reason and "0.95" in verdict.reason


def test_arithmetic_is_done_seed_by_seed():
    found = Results({"a": [{"x": 4.0}, {"x": 9.0}], "b": [{"x": 2.0}, {"x": 3.0}]})
    a, b = measured("a", "x"), measured("b", "x")
    for value, expected in (
        (a - b, (2, 6)),
        (a + b, (6, 12)),
        (a * b, (8, 27)),
        (a / b, (2, 3)),
        (abs(b - a), (2, 6)),
        (a * 0.5 - 1, (1, 3.5)),
    ):
        assert value.of(found).values == expected
    assert (a >= b).margin(found).values == (2, 6) and (a <= 5).margin(found).values == (1, -4)
    assert Claim("", a - b <= 1).evidence(found) == "6.5 (4 to 9) against 2.5 (2 to 3)"
