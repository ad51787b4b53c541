"""Claims can fail: for each of every recipe there are results that fulfil it and results that do not, and a NaN never does."""

import importlib.util
import math
import random
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from regard.errors import BadConfig
from regard.recipes import LOOKS, RECIPES, Sample, memory2020, run
from regard.recipes._engine.claims import verdicts
from regard.recipes._engine.record import decided_again, read_record, state_of

CLAIMS = [pytest.param(claim, id=f"{recipe.facts.name}-{n}") for recipe in RECIPES for n, claim in enumerate(recipe.claims)]
COMPARES = re.compile(r"\b(than|below|above|higher|lower|likelier|more|less|larger|half of what|of the time of)\b")
NO_WORSE = re.compile(
    r"at most [\d.]+ (BLEU )?points? below|at most [\d.]+ nats above|at most \d+ % more|never worse|the same number of parameters"
)  # hold between equals


@dataclass
class Invented:
    """Results of three seeds that have every metric a claim asks for: each is made up when it is first read."""

    dice: random.Random
    values: dict = field(default_factory=dict)
    by_metric: bool = False  # the same for all variants
    constant: float | None = None  # the value of everything

    def __getitem__(self, key):
        variant, metric = (key, "accuracy") if isinstance(key, str) else key
        key = ("", metric) if self.by_metric else (variant, metric)
        if key not in self.values:
            value = self.draw()
            each = [value * (1 + 1e-6 * self.dice.random() * (self.constant is None)) for _ in range(3)]
            self.values[key] = list(self.dice.choice(list(self.values.values()))) if self.values and self.dice.random() < 0.3 else each
        return Sample(tuple(self.values[key]))

    def draw(self):
        if self.constant is not None:
            return self.constant
        kinds = (
            lambda: self.dice.uniform(-1, 1),
            self.dice.random,
            lambda: self.dice.choice((1e-6, 1.0)),
            lambda: 10 ** self.dice.uniform(0, 3),
        )
        return self.dice.choice(kinds)()


def holds(claim, results):
    return verdicts((claim,), results)[0].held


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_claim_can_hold_and_can_fail_and_never_holds_on_nan(claim):
    dice, found = random.Random(0), {}
    for _ in range(20_000):
        results = Invented(dice)
        found.setdefault(holds(claim, results), results)
        if len(found) == 2:
            break
    assert set(found) == {True, False}, f"always {set(found)}: what would make it fail?"
    good = found[True]
    read = {key for one in claim.comparisons for key in one.value.keys}
    for key, values in [(key, values) for key, values in good.values.items() if key in read]:
        for seed in range(3):
            good.values[key] = [math.nan if n == seed else value for n, value in enumerate(values)]
            assert not holds(claim, good), f"holds although {key} of seed {seed} is NaN"
        good.values[key] = values
    assert holds(claim, good)


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_comparison_does_not_hold_between_equals(claim):
    """As when the ablation, or the option that is compared, does nothing."""
    several = len({variant for one in claim.comparisons for variant, _ in one.value.keys}) > 1
    if claim.kind == "control" or not several or not COMPARES.search(claim.text) or NO_WORSE.search(claim.text):
        pytest.skip("compares no two variants, or says that one is no worse than the other")
    for value in (0.001, 0.1, 0.3, 0.5, 0.7, 0.9, 0.999, 1.0, 20.0, 5000.0):
        equal = Invented(random.Random(2), by_metric=True, constant=value)
        assert not holds(claim, equal), f"holds for variants that all have {value}"


def test_a_nan_is_in_the_minimum_and_the_maximum_wherever_it_is():
    for values in ([math.nan, 1.0], [1.0, math.nan]):
        spread = Sample(tuple(values))
        assert math.isnan(spread.low) and math.isnan(spread.high) and math.isnan(spread.mean)


def test_seeds_of_tuning_and_of_reports_are_apart():
    for recipe in RECIPES:
        assert not {*recipe.seeds} & {*recipe.tuning_seeds} and len(recipe.seeds) >= LOOKS[-1]
    with pytest.raises(BadConfig, match="overlap"):
        replace(RECIPES[0], seeds=(2, 100, 101))


# -- records and the page ------------------------------------------------------------------------------------------------

RECORDED = [pytest.param(recipe, id=recipe.facts.name) for recipe in RECIPES if read_record(recipe.facts.name) is not None]


def page_of_results():
    path = Path(__file__).parents[2] / "docs" / "claims.py"
    spec = importlib.util.spec_from_file_location("claims_page", path)
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    return page


def test_the_page_is_what_the_records_say():
    page = page_of_results()
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), "python docs/claims.py writes the page anew"


@pytest.mark.parametrize("recipe", RECORDED)
def test_a_record_gives_its_verdicts_again(recipe):
    record = read_record(recipe.facts.name)
    assert state_of(recipe, record) == "stale" or decided_again(recipe, record)


def test_a_record_is_stale_when_settings_change_and_says_when_code_has(tmp_path, monkeypatch):
    recipe = memory2020.recipe
    run(recipe, tmp_path, log=lambda line: None)
    record = read_record("results", tmp_path)
    assert state_of(recipe, record) == "current" and state_of(recipe, None) == "not run" and decided_again(recipe, record)
    assert "recipes/memory2020.py" in record["modules"] and all(record["modules"].values())
    assert state_of(replace(recipe, claims=recipe.claims[:-1]), record) == "stale"
    module = next(iter(record["modules"]))
    assert state_of(recipe, record | {"modules": record["modules"] | {module: "other"}}) == "code changed"
