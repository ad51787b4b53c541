"""Recipes of language models: what they read and ask is what they say, and each runs from end to end."""

import random
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from regard.data import BOS, PAD
from regard.models import build
from regard.recipes import _language, _sequences, bert2018, completion2020, gpt2018, gpt2020, run
from regard.recipes._language import Drawn, Written, by_place, documentation, topics
from regard.recipes._puzzles import NOTHING, Shots
from regard.recipes._sequences import drawn
from regard.tasks import LanguageConfig
from regard.tasks.language import prepared
from regard.train import Budget, Every


def test_no_paragraph_stands_twice_in_the_documentation(tmp_path):
    paragraphs = [part for each in topics().values() for part in each]
    assert len(set(paragraphs)) == len(paragraphs) > 1000
    gone = set(paragraphs[:50])
    kept = documentation(tmp_path / "text.jsonl", gone).read_text()
    assert documentation(tmp_path / "whole.jsonl").stat().st_size > len(kept.encode())


def test_nats_by_context_are_those_of_whole_windows(tmp_path, monkeypatch):
    monkeypatch.setattr(_language, "topics", lambda: {"a": ["abcdefghijklmnopqrstuvwxyz" * 3], "b": ["zyx" * 9]})
    config = LanguageConfig(data=str(documentation(tmp_path / "text.jsonl")), tokens="characters", length=8, shares=(0.0, 0.0))
    tokenizer, found = prepared(tmp_path, config, None, False, None)
    model = build("gpt2", {"vocab": len(tokenizer), "length": 8, "width": 8, "heads": 2, "depth": 1, "dropout": 0.0}).eval()
    documents = zip(found.train.starts.tolist(), found.train.ends.tolist(), strict=True)
    rows = torch.tensor([found.train.ids[at : at + 9].tolist() for begin, end in documents for at in range(begin, end - 8, 8)])
    with torch.no_grad():
        nats_BL = F.cross_entropy(model(rows[:, :-1]).mT, rows[:, 1:], reduction="none")
    seen = by_place(model, found.train, 8)
    assert list(seen) == [f"nats by context, {name}" for name in ("1 to 1", "2 to 2", "3 to 4", "5 to 8")]
    assert seen["nats by context, 5 to 8"] == pytest.approx(float(nats_BL[:, 4:].mean()), abs=1e-5)
    assert seen["nats by context, 1 to 1"] == pytest.approx(float(nats_BL[:, 0].mean()), abs=1e-5)


def test_shots_are_answered_alike_within_a_row():
    ids_BL, wanted_BL = Shots().draw(50)
    assert ids_BL.shape == wanted_BL.shape == (50, Shots().length) and (wanted_BL[:, 1::2] == NOTHING).all()
    assert torch.equal(ids_BL[:, 1::2], wanted_BL[:, ::2])
    for row in range(50):
        pairs = set(zip(ids_BL[row, ::2].tolist(), wanted_BL[row, ::2].tolist(), strict=True))
        assert len(pairs) == len({question for question, _ in pairs})
    ids_BL, wanted_BL = Shots(telling=False).draw(200)
    assert float((ids_BL[:, 1::2] == wanted_BL[:, ::2]).float().mean()) == pytest.approx(1 / 8, abs=0.03)


def test_accuracy_is_counted_by_the_number_of_shots():
    class Copies(torch.nn.Module):
        """Says what was last answered to the same question, and 4 if it was never asked."""

        def forward(self, ids_BL):
            logits_BLN = torch.zeros(*ids_BL.shape, Shots().vocab)
            for row, ids in enumerate(ids_BL.tolist()):
                known = {}
                for n in range(0, len(ids), 2):
                    logits_BLN[row, n, known.get(ids[n], 4)] = 1.0
                    known[ids[n]] = ids[n + 1]
            return logits_BLN

    found = gpt2020.variant().judged(Copies())
    assert found["accuracy by shots, 0"] < 0.25 and found["accuracy by shots, 16"] > 0.95
    assert found["accuracy"] == pytest.approx(sum(found[f"accuracy by shots, {n}"] for n in range(17)) / 17)


def test_paragraphs_to_judge_by_are_in_no_other_part(tmp_path):
    parts = bert2018.labelled()
    texts = {part: {one["as it was"] for one in examples} for part, examples in parts.items()}
    assert {part: len(each) for part, each in texts.items()} == {"train": 64, "valid": 64, "test": 128}
    assert not texts["train"] & texts["test"] and not texts["valid"] & texts["test"]
    assert len({one["label"] for one in parts["train"]}) == bert2018.TOPICS
    assert parts == bert2018.labelled()


def test_pages_tell_what_their_tables_hold():
    dice = random.Random(0)
    for _ in range(20):
        text, table = completion2020.page(dice, unseen=True)
        for name in completion2020._cells(table.strip())[::3]:
            assert name in text and completion2020.NAMES.index(name) % 4 == 0
    ids_BL, wanted_BL = drawn(completion2020.Pages(), 0, rows=5)
    for ids, wanted in zip(ids_BL, wanted_BL, strict=True):
        said = completion2020.tokenizer().decode(wanted[wanted != NOTHING])
        assert said.startswith("| ") and said.endswith(" |\n\n") and ids[0] == BOS
        assert completion2020.tokenizer().decode(ids[ids != PAD]).endswith(completion2020.HEAD + said)


def test_completions_are_compared_to_the_letter(tmp_path, monkeypatch):
    """A model that says the right table is right, one that adds a letter is not."""
    right = {prompt: table for prompt, table in (completion2020.page(dice, True) for dice in [random.Random(1)] for _ in range(4))}

    class Done:
        finish = "stop"

        def __init__(self, text):
            self.text = text

    monkeypatch.setattr(Drawn, "load", lambda self, out: None)
    monkeypatch.setattr(completion2020, "complete", lambda model, cut, prompts, options: [[Done(right[p].strip())] for p in prompts])
    judge = completion2020.Completed(drawn=completion2020.VARIANTS[completion2020.GPT].drawn, prompts=4)
    assert judge(0, tmp_path) == {"tables right": 1.0, "cells right": 1.0, "ended by themselves": 1.0}
    monkeypatch.setattr(completion2020, "complete", lambda model, cut, prompts, options: [[Done(right[p])] for p in prompts])
    assert judge(0, tmp_path)["tables right"] == 0.0


def shrunk(variant):
    """The same in two steps of few rows."""
    if isinstance(variant, completion2020.Tabled):
        return replace(variant, drawn=shrunk(variant.drawn), prompts=2)
    if isinstance(variant, bert2018.Guessed | Drawn | Written):
        train = replace(variant.train, budget=Budget(steps=2), every=Every(log=1, evaluate=1, save=2))
        return replace(variant, train=train, **({"rows": 2} if isinstance(variant, Drawn) else {}))
    return variant


@pytest.mark.parametrize("part", [gpt2018, gpt2020, bert2018, completion2020], ids=lambda part: part.recipe.facts.name)
def test_recipes_of_language_models_run_from_end_to_end(part, tmp_path, monkeypatch):
    monkeypatch.setattr(_sequences, "ROWS", 4)
    monkeypatch.setattr(gpt2020, "LONG", 64)
    whole = dict(list(topics().items())[:6])
    monkeypatch.setattr(_language, "topics", lambda: whole)
    small = {name: shrunk(variant) for name, variant in part.recipe.variants.items()}
    if part is bert2018:
        small = {name: replace(v, judge=replace(v.judge, epochs=1)) if hasattr(v, "judge") else v for name, v in small.items()}
    if part is completion2020:
        small = {name: replace(v, judge=replace(v.judge, prompts=2)) if hasattr(v, "judge") else v for name, v in small.items()}
    outcome = run(replace(part.recipe, variants=small), tmp_path, seeds=(0,), say=lambda text: None)
    assert len(outcome.verdicts) == len(part.recipe.claims) and (tmp_path / "report.html").exists()
    pictures = list(tmp_path.glob("*.png"))
    assert len(pictures) == len(part.recipe.pictures) and all(one.read_bytes().startswith(b"\x89PNG") for one in pictures)
