"""See 2017 runs from end to end: few steps and texts, one seed; whether its claims hold is for the real run."""

import json
from dataclasses import replace

from regard.recipes import run, see2017


def test_it_runs(tmp_path):
    recipe = see2017.recipe
    few = {"names": "names:12,count=60,pool=100", "events": "events:3,count=60"}
    short = see2017.TRAIN.replace(steps=2, evaluate_every=1, warmup_steps=1)
    variants = {
        name: replace(one, train=short, options=replace(one.options, data=few[name.split(",")[0]])) for name, one in recipe.variants.items()
    }
    outcome = run(replace(recipe, variants=variants, rates=()), tmp_path, seeds=(0,), log=lambda line: None)
    found = json.loads((tmp_path / "results.json").read_text())
    assert set(found["metrics"]) == set(recipe.variants) and len(outcome.verdicts) == len(recipe.claims)
    assert len(list(tmp_path.glob("*.png"))) == len(recipe.pictures)
