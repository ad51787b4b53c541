"""Recipes on images with captions run from end to end: two steps, few scenes, one seed; whether their claims hold is for the real runs."""

import json
from dataclasses import replace

import pytest

from regard.recipes import clip2021, dalle2021, run, xu2015
from regard.recipes._engine.base import training_of, with_training
from regard.recipes._engine.variants import short_training

SCENES = "count=80,size=24,colours=4,shapes=3"


def tiny(variant, data, training):
    """A variant on other data, with another training."""
    return replace(variant, options=replace(variant.options, data=data), train=training)


@pytest.mark.parametrize("module", [xu2015, clip2021, dalle2021], ids=lambda module: module.__name__.rpartition(".")[2])
def test_it_runs(module, monkeypatch, tmp_path):
    data = {xu2015: f"scenes:{SCENES}", clip2021: "scenes:count=200,size=24,pairings=seen", dalle2021: f"scenes:{SCENES},objects=1"}[module]
    monkeypatch.setattr(module, "DATA", data)
    short = short_training(2, 0.01, evaluations=1)
    for name, value in {"UNSEEN": "scenes:count=60,size=24,pairings=unseen,objects=1", "REPEATS": 1}.items():
        if hasattr(module, name):
            monkeypatch.setattr(module, name, value)
    if module is dalle2021:
        monkeypatch.setattr(module, "TRAIN_CLIP", short_training(1, 0.01, evaluations=1))
    recipe, lines = replace(module.recipe, rates=()), []
    if module is xu2015:  # whose variants hold their options
        recipe = replace(recipe, variants={name: tiny(one, data, short) for name, one in recipe.variants.items()})
    else:
        small = {name: one if training_of(one) is None else with_training(one, short) for name, one in recipe.variants.items()}
        recipe = replace(recipe, variants=small)
    outcome = run(recipe, tmp_path, seeds=(0,), log=lines.append)
    found = json.loads((tmp_path / "results.json").read_text())
    assert set(found["metrics"]) == set(module.recipe.variants) and len(outcome.verdicts) == len(module.recipe.claims)
    assert len(list(tmp_path.glob("*.png"))) == len(module.recipe.pictures) and (tmp_path / "report.html").exists()
