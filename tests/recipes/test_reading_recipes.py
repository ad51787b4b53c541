"""Recipes of models that read: the generated documents, and that a variant runs."""

import random
from dataclasses import replace

from regard.data.sentences import split_sentences
from regard.recipes import run, yang2016
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
    monkeypatch.setattr(yang2016, "STEPS", 2)
    monkeypatch.setattr(yang2016, "SIZES", {"train": (40, 3), "valid": (10, 3), "10": (10, 3), "40": (10, 6)})
    small = {name: yang2016.VARIANTS[name] for name in ("HAN", "HAN, mean", "flat")}
    outcome = run(replace(yang2016.recipe, variants=small, seeds=(0,)), tmp_path, log=lambda line: None)
    found = outcome.results.metrics
    assert found["HAN"][0]["parameters"] == found["flat"][0]["parameters"]
    assert {"accuracy", "accuracy, 40 sentences", "weight of the two sentences"} <= found["HAN"][0].keys() and not outcome.held
    assert (tmp_path / "document.png").exists()
