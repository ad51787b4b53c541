"""Recipes of models that read: the generated documents, and that a variant runs."""

import random
from dataclasses import replace

from regard.data.sentences import split_sentences
from regard.recipes import chen2016, lin2017, run, yang2016
from regard.recipes.yang2016 import COLOURS, prize_document


def test_documents_of_prizes():
    draw = random.Random(0)
    for _ in range(20):
        text, label, prize = prize_document(draw, 10)
        sentences = [one.lower().strip(".").split() for one in split_sentences(text)]
        assert len(sentences) == 10 and ["prize" in one for one in sentences].index(True) == prize and text.lower().count("prize") == 1
        assert [word for word in sentences[prize + 1] if word in COLOURS] == [label]
        assert all(sum(word in COLOURS for word in one) == 1 for one in sentences)
    assert len(split_sentences(prize_document(draw, 10, ";")[0])) == 1


def test_documents(tmp_path, monkeypatch):
    monkeypatch.setattr(yang2016, "SIZES", {"train": (40, 3), "valid": (10, 3), "10": (10, 3), "40": (10, 6)})
    short = yang2016.TRAIN.replace(steps=2, evaluate_every=1)
    small = {name: replace(yang2016.VARIANTS[name], train=short) for name in ("HAN", "HAN, mean", "flat")}
    outcome = run(replace(yang2016.recipe, variants=small, rates=()), tmp_path, (0,), log=lambda line: None)
    found = outcome.results.metrics
    assert found["HAN"][0]["parameters"] == found["flat"][0]["parameters"]
    assert {"accuracy", "accuracy, 40 sentences", "weight of the two sentences"} <= found["HAN"][0].keys() and not outcome.held
    assert (tmp_path / "document.png").exists()


def test_pairs_of_coloured_objects():
    generator, seen = random.Random(0), set()
    for _ in range(60):
        premise, hypothesis, label = chen2016.draw(generator)
        there = dict(zip(premise.split()[1::2], premise.split()[::2], strict=True))
        asked = list(zip(hypothesis.split()[::2], hypothesis.split()[1::2], strict=True))
        absent, other = [one for _, one in asked if one not in there], [one for colour, one in asked if there.get(one, colour) != colour]
        assert (len(there), len(asked), len(absent), len(other)) == (10, 3, label == "neutral", label == "contradiction")
        seen.add(label)
    assert len(seen) == 3


def test_pairs_and_poolings_run(tmp_path):
    rows = {"train": 60, "valid": 20, "test": 20}
    for recipe, settings in ((chen2016.recipe, {"rows": rows}), (lin2017.recipe, {"batch_size": 4})):
        small = {
            name: replace(v, train=v.train.replace(steps=2, evaluate_every=1, log_every=1), **settings)
            for name, v in recipe.variants.items()
        }
        outcome = run(replace(recipe, variants=small, rates=()), tmp_path / recipe.facts.name, (0,), log=lambda line: None)
        assert not outcome.held and (tmp_path / recipe.facts.name / "attention.png").exists()
