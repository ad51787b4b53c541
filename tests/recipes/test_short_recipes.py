"""Recipes whose variants are their own run end to end with two steps, and the texts of `hops2017` hold what their labels say."""

import math
import random
from dataclasses import replace

import pytest

from regard.recipes import bpe2016, hops2017, layernorm2020, run
from regard.recipes._engine.base import training_of, with_training


def test_texts_announce_each_value_of_their_label():
    generator = random.Random(1)
    for _ in range(50):
        text, label = hops2017.draw(generator)
        words = text.split()
        told = [words[words.index(name) + 1] for name in hops2017.FACTS]
        assert "-".join(told) == label and len(words) == hops2017.WORDS
        assert all(sum(word in known for word in words) == 4 for known in hops2017.FACTS.values())


def test_first_gradients_by_depth_and_layer(tmp_path, monkeypatch):
    monkeypatch.setattr(layernorm2020, "DRAWS", 1)
    monkeypatch.setattr(layernorm2020, "DEPTHS", (1, 3))
    found = layernorm2020.FirstGradients("post")(0, tmp_path)
    assert {"gradient, depth 1", "gradient, depth 3", "gradient by layer, 6"} <= set(found) and all(map(math.isfinite, found.values()))


@pytest.mark.parametrize("part", [hops2017, bpe2016], ids=lambda part: part.recipe.facts.name)
def test_runs_end_to_end(part, tmp_path):
    recipe = part.recipe
    small = {}
    for name, variant in recipe.variants.items():
        if part is hops2017:
            variant = replace(variant, rows={"train": 800, "valid": 8, "test": 8})
        else:
            options = replace(variant.options, data="numbers:en-de,count=200", valid_sentences=2)
            variant = replace(variant, options=options, evaluate=replace(variant.evaluate, pairs=2))
        train = training_of(variant).replace(steps=2, log_every=1, evaluate_every=1, save_every=2)
        small[name] = with_training(variant, train)
    outcome = run(replace(recipe, variants=small, rates=()), tmp_path, seeds=(0,), log=lambda line: None)
    assert len(outcome.verdicts) == len(recipe.claims) and (tmp_path / "report.html").exists()
