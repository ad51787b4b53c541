"""Recipes: what a run writes, claims that fail stay visible, and the short ones hold."""

import json

import pytest

from regard.cli import main
from regard.errors import UnknownName
from regard.recipes import RECIPES, Claim, Figures, Recipe, RecipeFacts, Spread, memory2020, run


def small(*claims: Claim) -> Recipe:
    facts = RecipeFacts(name="small", year=2017, title="<b>bold</b>", paper="none", takes="no time")
    return Recipe(
        facts=facts, question="?", variants={"a": lambda seed, out: {"x": 1.0 + seed}, "b": lambda seed, out: {"x": 0.0}}, claims=claims
    )


def test_a_failed_claim_is_reported_as_failed(tmp_path):
    said = []
    good = Claim("a beats b", lambda f: f["a", "x"].low > f["b", "x"].high, lambda f: f"{f['a', 'x']} > {f['b', 'x']}")
    bad = Claim("b beats a", lambda f: f["b", "x"].low > f["a", "x"].high, lambda f: "not so")
    outcome = run(small(good, bad), tmp_path, say=said.append)
    assert not outcome.held and [v.held for v in outcome.verdicts] == [True, False]
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["figures"]["a"] == [{"x": 1.0}, {"x": 2.0}, {"x": 3.0}] and [c["held"] for c in found["claims"]] == [True, False]
    page = (tmp_path / "report.html").read_text()
    assert "FAILS" in page and "2 (1 to 3)" in page and "<b>bold" not in page
    assert said[-1].startswith("FAILS: b beats a")


def test_spread_and_unknown_figures():
    assert (Spread([1.0, 3.0]).mean, str(Spread([0.5]))) == (2.0, "0.5")
    figures = Figures({"a": [{"x": 1.0}]})
    for key in (("b", "x"), ("a", "y")):
        with pytest.raises(UnknownName):
            figures[key]


def test_the_global_random_state_is_left_alone(tmp_path):
    import torch

    before = torch.get_rng_state()
    run(small(), tmp_path, say=lambda text: None)
    assert torch.get_rng_state().equal(before)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: r.facts.name)
def test_every_recipe_has_an_ablation_and_claims(recipe):
    assert len(recipe.variants) >= 2 and recipe.claims and len(recipe.seeds) >= 3


def test_memory2020_holds(tmp_path):
    outcome = run(memory2020.recipe, tmp_path, say=lambda text: None)
    assert outcome.held, outcome.verdicts
    assert (tmp_path / "capacity.png").read_bytes().startswith(b"\x89PNG")


def test_from_the_command_line(tmp_path, capsys):
    assert main(["run", "memory2020", "--out", str(tmp_path), "--seeds", "0"]) == 0
    assert "All claims hold" in capsys.readouterr().out
    assert main(["run", "memory2021"]) == 2
    assert "memory2020" in capsys.readouterr().err
    assert main(["list", "recipes"]) == 0
    assert "memory2020" in capsys.readouterr().out
