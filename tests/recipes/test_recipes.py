"""Recipes: what a run writes, claims that fail stay visible, and the short ones hold."""

import json
import shutil
from dataclasses import dataclass, replace

import pytest
import torch
from safetensors.torch import load_file

from regard.cli import main
from regard.data import BOS, EOS
from regard.errors import NotSupported, UnknownName
from regard.recipes import (
    RECIPES,
    Claim,
    Recipe,
    RecipeFacts,
    Reevaluation,
    Results,
    Sample,
    above,
    lowrank2021,
    measured,
    memory2020,
    performer2021,
    run,
)
from regard.recipes._engine import Alignments, stacks, validation_curves
from regard.recipes._engine.pictures import series
from regard.recipes._engine.stacks import StackVariant
from regard.recipes._engine.variants import TranslationMetrics, TranslationVariant
from regard.recipes.linear2020 import StepCost
from regard.tasks import Translation, TranslationOptions, likelihood, load_run
from regard.train import TrainOptions
from regard.train.parameters import load_parameters


def small(*claims: Claim, **variants) -> Recipe:
    facts = RecipeFacts("small", 2017, "<b>bold</b>", "none", "no time")
    variants = variants or {"a": lambda seed, out: {"x": 1.0 + seed}, "b": lambda seed, out: {"x": 0.0}}
    return Recipe(facts=facts, question="?", variants=variants, claims=claims)


def test_a_failed_claim_is_reported_as_failed(tmp_path):
    lines = []
    good = Claim("a beats b", measured("a", "x") - measured("b", "x") >= 0.5)
    bad = Claim("b beats a", measured("b", "x") - measured("a", "x") >= 0)
    outcome = run(small(good, bad), tmp_path, log=lines.append)
    assert not outcome.held and [v.decision for v in outcome.verdicts] == ["holds", "fails"]
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["metrics"]["a"] == [{"x": 101.0}, {"x": 102.0}, {"x": 103.0}] and found["seeds"] == [100, 101, 102]
    page = (tmp_path / "report.html").read_text()
    assert "fails" in page and "102 (101 to 103)" in page and "<b>bold" not in page
    assert lines[-1].startswith("fails: b beats a")


def test_seeds_are_added_until_all_claims_are_decided(tmp_path):
    """Differences of 1 to 8 in turn are clear after five; nothing is evaluated twice, also when the run is started again."""
    calls = []

    def noisy(seed, out):
        calls.append(seed)
        return {"x": (30.0, 10.0, 28.0)[seed % 3] - (25.0 if seed < 103 else 0.0)}

    recipe = small(Claim("a beats b", measured("a", "x") - measured("b", "x") >= 0), a=noisy, b=lambda seed, out: {"x": 0.0})
    outcome = run(recipe, tmp_path, log=lambda line: None)
    assert len(calls) == len(set(calls)) == len(outcome.results.seeds) > 3
    run(recipe, tmp_path, log=lambda line: None)
    assert len(calls) == len(set(calls))


@dataclass(frozen=True)
class Trains:
    """A variant with a learning rate, best at 0.01."""

    train: TrainOptions
    good: float = 1.0

    def __call__(self, seed, out):
        return {"x": self.good * seed, "lr": self.train.lr, "validation_loss": abs(self.train.lr - 0.01), "steps": float(self.train.steps)}


def test_the_learning_rate_of_each_variant_is_tuned_alike(tmp_path):
    recipe = small(
        above("", ("a", "x"), ("b", "x")), a=Trains(TrainOptions(steps=20, lr=0.03), good=2.0), b=Trains(TrainOptions(steps=20, lr=0.003))
    )
    outcome = run(recipe, tmp_path, log=lambda line: None)
    assert outcome.results["a", "lr"].mean == pytest.approx(0.01) and outcome.results["b", "lr"].mean == pytest.approx(0.009)
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["tuning"]["a"] == pytest.approx({"0.33": 0.0, "1": 0.02, "3": 0.08}, abs=1e-9)
    quick = run(recipe, tmp_path / "quick", log=lambda line: None, quick=True)
    assert quick.results["a", "steps"].values == (2.0,) and quick.verdicts[0].decision == "undecided"


def test_samples_and_unknown_metrics():
    assert (Sample((1.0, 3.0)).mean, str(Sample((0.5,)))) == (2.0, "0.5")
    results = Results({"a": [{"x": 1.0}]})
    for key in (("b", "x"), ("a", "y")):
        with pytest.raises(UnknownName):
            results[key]


@dataclass(frozen=True)
class Writes:
    """Writes its number to a file, and returns it as the metric."""

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


def test_a_reevaluated_variant_is_trained_once(tmp_path):
    recipe = small(a=Writes(5.0), b=Writes(7.0), twice=Reevaluation("a", Doubles()))
    results = run(recipe, tmp_path, log=lambda text: None).results
    assert results["twice", "x"].values == (210.0, 212.0, 214.0) and not (tmp_path / "twice").exists()
    with pytest.raises(UnknownName, match="before 'twice'"):
        small(twice=Reevaluation("a", Doubles()), a=Writes(5.0))


def test_the_report_says_what_was_compared_and_how_to_reproduce_it(tmp_path):
    run(small(a=Writes(5.0), b=Writes(7.0), twice=Reevaluation("a", Doubles())), tmp_path, seeds=(3, 4), log=lambda text: None)
    page = (tmp_path / "report.html").read_text()
    assert "regard run small --seeds 3 4" in page and "same = as all" in page
    assert "<th>a<td class=text>number = 5.0" in page and "<th>twice<td class=text>number = 5.0, of = a" in page
    assert "<h3>y</h3>" in page and "<th>1–6 words<th>7–12 words" in page  # a table of their own, without the variant that has none
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["settings"]["variants"]["b"] == {"number": "7.0", "same": "as all"} and found["seeds"] == [3, 4]


def test_series_are_read_from_the_names_of_metrics():
    results = Results({"a": [{"BLEU": 9.0, "BLEU, 1–6 words": 1.0, "BLEU, 7–12 words": 2.0, "BLEU, beam": 5.0}], "b": [{"BLEU": 3.0}]})
    assert {name: {at: one.mean for at, one in points.items()} for name, points in series(results, "BLEU").items()} == {
        "a": {6: 1.0, 12: 2.0}
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A barely trained translator, with the parameters of its last two evaluations."""
    options = TranslationOptions(data="reverse:2-5,count=400", tokenizer="word", vocab_size=50, batch_tokens=256, valid_sentences=4)
    train = TrainOptions(steps=8, lr=1e-3, warmup_steps=1000, log_every=4, evaluate_every=4, average=2)
    settings = {"embedding": 8, "width": 8, "depth": 1, "attention": "dot"}
    variant = TranslationVariant(
        options=options, train=train, model="luong", settings=settings, evaluate=TranslationMetrics(pairs=12, step=3, parameters="last")
    )
    out = tmp_path_factory.mktemp("trained")
    return variant, variant(0, out), out


def test_translators_are_evaluated_with_the_parameters_asked_for(trained):
    variant, metrics_of_last, out = trained
    last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    assert metrics_of_last["steps"] == last == 8 and metrics_of_last["validation loss, step 4"] > metrics_of_last["validation loss, step 8"]
    found, pairs = load_run(out), Translation(variant.options).read().test[:12]
    kept = load_file(next((out / "state").glob("step-*8")) / "ring.safetensors")
    names = [key.removeprefix("0:") for key in kept if key.startswith("0:")]
    for parameters, values in (
        ("last", {name: kept[f"1:{name}"] for name in names}),
        ("average", {name: (kept[f"0:{name}"] + kept[f"1:{name}"]) / 2 for name in names}),
    ):
        load_parameters(found.model, values)
        loss, accuracy = likelihood(found, pairs)
        metrics = replace(variant.evaluate, parameters=parameters)(0, out)
        assert metrics["loss"] == pytest.approx(loss, abs=1e-6) and metrics["accuracy"] == accuracy
    assert metrics_of_last["loss"] != metrics["loss"]


def test_likelihood_is_that_of_the_tokens_one_by_one(trained):
    variant, _, out = trained
    found, pairs = load_run(out), Translation(variant.options).read().test[:3]
    total, count = 0.0, 0
    for source, target in pairs:
        source_M, target_L = (
            torch.tensor([[*(side.encode(text)), EOS]])
            for side, text in ((found.processor.tokenizers.source, source), (found.processor.tokenizers.target, target))
        )
        state, before = found.model.start(source_M, torch.tensor([source_M.shape[1]])), torch.tensor([BOS])
        for token in target_L[0]:
            total -= found.model.step(before, state).logits_BN.log_softmax(-1)[0, token].item()
            before, count = token[None], count + 1
    assert likelihood(found, pairs)[0] == pytest.approx(total / count, abs=1e-5)


def test_parameters_that_were_not_kept_are_refused_by_name(trained, tmp_path):
    variant, _, _ = trained
    shorter = replace(variant, train=variant.train.replace(average=0), evaluate=replace(variant.evaluate, parameters="average"))
    with pytest.raises(NotSupported, match="average"):
        shorter(0, tmp_path)


def test_curves_and_alignments_are_drawn(trained, tmp_path):
    _, metrics, out = trained
    shutil.copytree(out, tmp_path / "a" / "0")
    results = Results({"a": [metrics]}, (0,))
    for picture in (validation_curves("loss"), Alignments(variants=("a",), sentence="3 1 4", columns=3)):
        assert picture(results, tmp_path).read_bytes().startswith(b"\x89PNG")


def test_the_global_random_state_is_left_alone(tmp_path):
    before = torch.get_rng_state()
    run(small(), tmp_path, log=lambda text: None)
    assert torch.get_rng_state().equal(before)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: r.facts.name)
def test_every_recipe_has_an_ablation_and_claims(recipe):
    assert len(recipe.variants) >= 2 and recipe.claims and len(recipe.seeds) >= 3


def test_memory2020_holds(tmp_path):
    outcome = run(memory2020.recipe, tmp_path, log=lambda text: None)
    assert outcome.held, outcome.verdicts
    assert (tmp_path / "capacity.png").read_bytes().startswith(b"\x89PNG")


def test_from_the_command_line(tmp_path, capsys):
    assert main(["run", "memory2020", "--out", str(tmp_path), "--seeds", "0"]) == 0
    assert "3 undecided" in (said := capsys.readouterr().out) and "decided with 3 seeds" in said
    assert main(["run", "memory2020", "--out", str(tmp_path), "--strict"]) == 0
    assert main(["run", "memory2021"]) == 2
    assert "memory2020" in capsys.readouterr().err
    assert main(["list", "recipes"]) == 0
    assert "memory2020" in capsys.readouterr().out


def shrunk(variant):
    """The same with two steps of small batches, or with few tokens."""
    if isinstance(variant, StackVariant):
        train = variant.train.replace(steps=2, log_every=1, evaluate_every=1, save_every=2)
        return replace(variant, batch_size=2, train=train)
    return replace(variant, contexts=(16, 64), steps=3) if isinstance(variant, StepCost) else variant


STACKS = [recipe for recipe in RECIPES if any(isinstance(variant, StackVariant) for variant in recipe.variants.values())]


@pytest.mark.parametrize("recipe", STACKS, ids=lambda r: r.facts.name)
def test_recipes_on_puzzles_run_end_to_end(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(stacks, "HELD_OUT", 4)
    small = {name: shrunk(variant) for name, variant in recipe.variants.items()}
    outcome = run(replace(recipe, variants=small, rates=()), tmp_path, seeds=(0,), log=lambda text: None)
    assert len(outcome.verdicts) == len(recipe.claims) and (tmp_path / "report.html").exists()
    for picture in tmp_path.glob("*.png"):
        assert picture.read_bytes().startswith(b"\x89PNG")
    for name, variant in small.items():
        if isinstance(variant, StackVariant):
            assert {"accuracy", "validation accuracy, step 1"} <= set(outcome.results.metrics[name][0])


@pytest.mark.parametrize("part", [lowrank2021, performer2021], ids=lambda p: p.recipe.facts.name)
def test_recipes_without_training_hold(part, tmp_path):
    outcome = run(part.recipe, tmp_path, log=lambda text: None)
    assert outcome.held, outcome.verdicts
