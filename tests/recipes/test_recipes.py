"""Recipes: what a run writes, claims that fail stay visible, and the short ones hold."""

import json
from dataclasses import dataclass, replace

import pytest
import torch
from safetensors.torch import load_file

from regard.cli import main
from regard.data import BOS, EOS
from regard.errors import NotSupported, UnknownName
from regard.recipes import (
    RECIPES,
    Again,
    Claim,
    Figures,
    Recipe,
    RecipeFacts,
    Spread,
    _sequences,
    lowrank2021,
    memory2020,
    performer2021,
    run,
)
from regard.recipes._pictures import alignments, learning, series
from regard.recipes._sequences import Taught
from regard.recipes._trained import Judged, Trained
from regard.recipes.linear2020 import Stepped
from regard.tasks import Run, TranslationConfig, likelihood
from regard.train import Budget, Every, TrainConfig
from regard.train.weights import load_weights


def small(*claims: Claim, **variants) -> Recipe:
    facts = RecipeFacts(name="small", year=2017, title="<b>bold</b>", paper="none", takes="no time")
    variants = variants or {"a": lambda seed, out: {"x": 1.0 + seed}, "b": lambda seed, out: {"x": 0.0}}
    return Recipe(facts=facts, question="?", variants=variants, claims=claims)


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


def test_differences_are_taken_seed_by_seed():
    assert (Spread([1.0, 5.0, 3.0]) - Spread([0.0, 4.0, 2.5])).values == [1.0, 1.0, 0.5]


@dataclass(frozen=True)
class Writes:
    """Leaves its number in a file, and reads it as the figure."""

    number: float
    same: str = "as all"

    def __call__(self, seed, out):
        out.mkdir(parents=True, exist_ok=True)
        (out / "number").write_text(str(self.number + seed))
        return {"x": self.number + seed, "y, 1–6 words": 2.0, "y, 7–12 words": 3.0}


@dataclass(frozen=True)
class Doubles:
    def __call__(self, seed, out):
        return {"x": 2 * float((out / "number").read_text())}


def test_one_variant_judged_again_is_made_once(tmp_path):
    recipe = small(a=Writes(5.0), b=Writes(7.0), twice=Again("a", Doubles()))
    figures = run(recipe, tmp_path, say=lambda text: None).figures
    assert figures["twice", "x"].values == [10.0, 12.0, 14.0] and not (tmp_path / "twice").exists()
    with pytest.raises(UnknownName, match="before 'twice'"):
        small(twice=Again("a", Doubles()), a=Writes(5.0))


def test_the_report_says_what_was_compared_and_how_to_do_it_again(tmp_path):
    run(small(a=Writes(5.0), b=Writes(7.0), twice=Again("a", Doubles())), tmp_path, seeds=(3, 4), say=lambda text: None)
    page = (tmp_path / "report.html").read_text()
    assert "regard run small --seeds 3 4" in page and "same = as all" in page
    assert "<th>a<td class=text>number = 5.0" in page and "<th>twice<td class=text>number = 5.0, of = a" in page
    assert "<h3>y</h3>" in page and "<th>1–6 words<th>7–12 words" in page  # a table of their own, without the variant that has none
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["variants"]["b"] == {"number": "7.0", "same": "as all"} and found["seeds"] == [3, 4]


def test_series_are_read_from_the_names_of_figures():
    figures = Figures({"a": [{"BLEU": 9.0, "BLEU, 1–6 words": 1.0, "BLEU, 7–12 words": 2.0, "BLEU, beam": 5.0}], "b": [{"BLEU": 3.0}]})
    assert {name: {at: one.mean for at, one in points.items()} for name, points in series(figures, "BLEU").items()} == {
        "a": {6: 1.0, 12: 2.0}
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A translator that has hardly learned, with the weights of its last two evaluations."""
    data = TranslationConfig(data="reverse:2-5,count=400", tokens="words", vocab=50, budget=256, judged=4)
    train = TrainConfig(budget=Budget(steps=8), every=Every(log=4, evaluate=4), average=2)
    settings = {"embedding": 8, "width": 8, "depth": 1, "attention": "dot"}
    variant = Trained(config=data, train=train, model="luong", settings=settings, judge=Judged(pairs=12, step=3, weights="last"))
    out = tmp_path_factory.mktemp("trained")
    return variant, variant(0, out), out


def test_training_is_judged_by_the_weights_asked_for(trained):
    variant, figures, out = trained
    last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    assert figures["steps"] == last == 8 and figures["validation nats, step 4"] > figures["validation nats, step 8"]
    found, pairs = Run.load(out), variant.config.read().test[:12]
    kept = load_file(next((out / "state").glob("step-*8")) / "ring.safetensors")
    names = [key.removeprefix("0:") for key in kept if key.startswith("0:")]
    for weights, values in (
        ("last", {name: kept[f"1:{name}"] for name in names}),
        ("average", {name: (kept[f"0:{name}"] + kept[f"1:{name}"]) / 2 for name in names}),
    ):
        load_weights(found.model, values)
        nats, right = likelihood(found.model, found.tokenizers, pairs)
        judged = replace(variant.judge, weights=weights)(0, out)
        assert judged["nats a token"] == pytest.approx(nats, abs=1e-6) and judged["token accuracy"] == right
    assert figures["nats a token"] != judged["nats a token"]


def test_likelihood_is_that_of_the_tokens_one_by_one(trained):
    variant, _, out = trained
    found, pairs = Run.load(out), variant.config.read().test[:3]
    total, count = 0.0, 0
    for source, target in pairs:
        source_M, target_L = (
            torch.tensor([[*(side.encode(text)), EOS]])
            for side, text in ((found.tokenizers.source, source), (found.tokenizers.target, target))
        )
        state, before = found.model.begin(source_M, torch.tensor([source_M.shape[1]])), torch.tensor([BOS])
        for token in target_L[0]:
            total -= found.model.step(before, state).logits_BN.log_softmax(-1)[0, token].item()
            before, count = token[None], count + 1
    assert likelihood(found.model, found.tokenizers, pairs)[0] == pytest.approx(total / count, abs=1e-5)


def test_weights_that_were_not_kept_are_refused_by_name(trained, tmp_path):
    variant, _, _ = trained
    shorter = replace(variant, train=replace(variant.train, average=0), judge=replace(variant.judge, weights="average"))
    with pytest.raises(NotSupported, match="average"):
        shorter(0, tmp_path)


def test_curves_and_alignments_are_drawn(trained, tmp_path):
    _, figures, out = trained
    for path in (
        learning(Figures({"a": [figures]}), tmp_path),
        alignments(tmp_path / "looks.png", {"a": out, "b": out}, "3 1 4", columns=3),
    ):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_the_global_random_state_is_left_alone(tmp_path):
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


def shrunk(variant):
    """The same in two steps of few rows, or with few tokens."""
    if isinstance(variant, Taught):
        every = Every(log=1, evaluate=1, save=2)
        return replace(variant, rows=2, train=replace(variant.train, budget=Budget(steps=2), every=every))
    return replace(variant, contexts=(16, 64), steps=3) if isinstance(variant, Stepped) else variant


TAUGHT = [recipe for recipe in RECIPES if any(isinstance(variant, Taught) for variant in recipe.variants.values())]


@pytest.mark.parametrize("recipe", TAUGHT, ids=lambda r: r.facts.name)
def test_recipes_on_puzzles_run_from_end_to_end(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(_sequences, "ROWS", 4)
    small = {name: shrunk(variant) for name, variant in recipe.variants.items()}
    outcome = run(replace(recipe, variants=small), tmp_path, seeds=(0,), say=lambda text: None)
    assert len(outcome.verdicts) == len(recipe.claims) and (tmp_path / "report.html").exists()
    for picture in tmp_path.glob("*.png"):
        assert picture.read_bytes().startswith(b"\x89PNG")
    for name, variant in small.items():
        if isinstance(variant, Taught):
            assert {"accuracy", "validation accuracy, step 1"} <= set(outcome.figures.seen[name][0])


@pytest.mark.parametrize("part", [lowrank2021, performer2021], ids=lambda p: p.recipe.facts.name)
def test_recipes_without_training_hold(part, tmp_path):
    outcome = run(part.recipe, tmp_path, say=lambda text: None)
    assert outcome.held, outcome.verdicts
