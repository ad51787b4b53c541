"""Claims can fail: for each of every recipe there are results that fulfil it and results that do not, and a NaN never does."""

import importlib.util
import math
import random
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from regard.recipes import RECIPES, Spread

CLAIMS = [pytest.param(claim, id=f"{recipe.facts.name}-{n}") for recipe in RECIPES for n, claim in enumerate(recipe.claims)]
COMPARES = re.compile(r"\b(than|below|above|higher|lower|likelier|more|less|larger|half of what|of the time of)\b")
NO_WORSE = re.compile(
    r"at most [\d.]+ (BLEU )?points below|at most [\d.]+ nats above|at most \d+ % more|never worse|the same number of parameters"
)  # hold between equals
SIZES = {f"bytes, after {size} tokens": 0.0 for size in (1024, 16384)}  # the one series that a claim reads by its names


@dataclass
class Invented:
    """Results of two seeds that have every metric a claim asks for: each is made up when it is first read."""

    dice: random.Random
    values: dict = field(default_factory=dict)
    by_metric: bool = False  # the same for all variants
    constant: float | None = None  # the value of everything

    def __getitem__(self, key):
        variant, metric = (key, "accuracy") if isinstance(key, str) else key
        key = ("", metric) if self.by_metric else (variant, metric)
        if key not in self.values:
            value = self.draw()
            pair = [value, value * (1 + 1e-3 * self.dice.random() * (self.constant is None))]
            self.values[key] = list(self.dice.choice(list(self.values.values()))) if self.values and self.dice.random() < 0.3 else pair
        return Spread(self.values[key])

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

    @property
    def metrics(self):
        for variant in ("step, linear", "step, softmax"):
            for name in SIZES:
                self[variant, name]
        rows = [{metric: values[n] for (_, metric), values in self.values.items()} for n in range(2)]
        if self.by_metric:
            return {variant: rows for variant in ("step, linear", "step, softmax")}
        return {
            variant: [{metric: values[n] for (of, metric), values in self.values.items() if of == variant} for n in range(2)]
            for variant in {variant for variant, _ in self.values}
        }


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_claim_can_hold_and_can_fail_and_fails_on_nan(claim):
    dice, found = random.Random(0), {}
    for _ in range(20_000):
        results = Invented(dice)
        found.setdefault(claim.holds(results), results)
        if len(found) == 2:
            break
    assert set(found) == {True, False}, f"always {set(found)}: what would make it fail?"
    good = found[True]
    for key, values in list(good.values.items()):
        for seed in range(2):
            good.values[key] = [math.nan if n == seed else value for n, value in enumerate(values)]
            assert not claim.holds(good), f"holds although {key} of seed {seed} is NaN"
        good.values[key] = values
    assert claim.holds(good)


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_comparison_fails_between_equals(claim):
    """As when the ablation, or the option that is compared, does nothing."""
    apart = Invented(random.Random(1))
    claim.holds(apart), claim.evidence(apart)
    read = {}
    for variant, metric in apart.values:
        read.setdefault(metric, set()).add(variant)
    several = any(len(variants) > 1 for variants in read.values())
    if not several or not COMPARES.search(claim.text) or NO_WORSE.search(claim.text):
        pytest.skip("compares no two variants, or says that one is no worse than the other")
    for value in (0.001, 0.1, 0.3, 0.5, 0.7, 0.9, 0.999, 1.0, 20.0, 5000.0):
        equal = Invented(random.Random(2), by_metric=True, constant=value)
        assert not claim.holds(equal), f"holds for variants that all have {value}"


def test_a_nan_is_in_the_minimum_and_the_maximum_wherever_it_is():
    for values in ([math.nan, 1.0], [1.0, math.nan]):
        spread = Spread(values)
        assert math.isnan(spread.low) and math.isnan(spread.high) and math.isnan(spread.mean)


def test_the_results_page_names_what_changed_since_the_run():
    path = Path(__file__).parents[2] / "docs" / "claims.py"
    spec = importlib.util.spec_from_file_location("claims_page", path)
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    head, sections = page.PAGE.read_text(encoding="utf-8").split("\n## ")[0], page.existing_sections()
    for recipe in RECIPES:
        named = re.search(rf"\b{recipe.facts.name}\b", head) is not None
        changed = page.has_changed(sections[recipe.facts.name], recipe) or recipe.facts.name in page.OTHER_SETTINGS
        assert named == changed, f"{recipe.facts.name}: python docs/claims.py writes the page anew"
