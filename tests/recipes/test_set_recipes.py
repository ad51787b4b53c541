"""Recipes on sets and functions: models that are hardly trained, pictures, costs, and claims that name metrics that there are."""

from dataclasses import replace

from regard.recipes import anp2019, run, set2019
from regard.recipes._engine.variants import short_training
from regard.recipes.anp2019 import ANP, EXACT, NP, SHOWN
from regard.recipes.set2019 import ATTENTION, COST_ISAB, COST_SAB, LENGTHS, MEAN, MEDIAN, SAB, Cost


def tiny(variant, data, **settings):
    options = replace(variant.options, data=data, batch_size=8)
    return replace(variant, options=options, train=short_training(2, 1e-3, evaluations=2), settings={**variant.settings, **settings})


def claims_about(recipe, names):
    return tuple(claim for claim in recipe.claims if all(key[0] in names for one in claim.comparisons for key in one.value.keys))


def test_sets(tmp_path, monkeypatch):
    monkeypatch.setattr(set2019, "LENGTHS", (8, 16, 32))
    monkeypatch.setattr(set2019, "LONGEST", "ms, length 32")
    whole = set2019.recipe.variants
    small = {name: tiny(whole[name], "max:5,count=120", width=8, heads=2, depth=1) for name in (ATTENTION, MEAN)}
    small[MEDIAN] = replace(whole[MEDIAN], options=replace(whole[MEDIAN].options, data="max:5,count=120"))
    small[SAB] = tiny(whole[SAB], "unique:5,count=120", width=8, heads=2, depth=1)
    recipe = replace(
        set2019.recipe, variants=small, claims=claims_about(set2019.recipe, small), rates=(), pictures=set2019.recipe.pictures[:2]
    )
    outcome = run(recipe, tmp_path, (0,), log=lambda line: None)
    assert len(outcome.verdicts) == 4 and outcome.results[MEDIAN, "mae"].mean > 0
    assert "accuracy" in outcome.results.metrics[SAB][0]


def test_the_cost_of_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(set2019, "LENGTHS", (8, 16, 32))
    found = Cost(encoder="isab")(0, tmp_path)
    assert found.keys() == {"exponent", "ms, length 8", "ms, length 16", "ms, length 32"} and found["ms, length 32"] > 0
    assert {COST_SAB, COST_ISAB} <= set2019.recipe.variants.keys() and LENGTHS[-1] == 4096


def test_functions(tmp_path):
    data, whole = "gp:rbf,length=0.4,points=40,count=60", anp2019.recipe.variants
    small = {name: tiny(whole[name], data, width=8, latent=4, **({"heads": 2} if name == ANP else {})) for name in (ANP, NP)}
    small[EXACT] = replace(whole[EXACT], options=replace(whole[EXACT].options, data=data))
    recipe = replace(
        anp2019.recipe, variants=small, claims=claims_about(anp2019.recipe, small), rates=(), pictures=anp2019.recipe.pictures[:1]
    )
    outcome = run(recipe, tmp_path, (0,), log=lambda line: None)
    assert len(outcome.verdicts) == 5 and (tmp_path / "bands.png").exists() and len(SHOWN) == 3
    assert outcome.results[EXACT, "log_density"].mean > outcome.results[ANP, "log_density"].mean  # the ceiling
