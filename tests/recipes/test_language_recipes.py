"""Recipes of language models: their data and metrics are what they promise, and each runs end to end."""

import random
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from regard.data import BOS, PAD
from regard.models import build
from regard.recipes import Reevaluation, bert2018, completion2020, gpt2018, gpt2020, run
from regard.recipes._engine import stacks, variants
from regard.recipes._engine.puzzles import IGNORE_INDEX, Shots
from regard.recipes._engine.stacks import PuzzleLMVariant, draw_sequences
from regard.recipes._engine.variants import TextVariant, loss_by_context, topics, write_documentation
from regard.tasks import Language, LanguageOptions


def test_no_paragraph_stands_twice_in_the_write_documentation(tmp_path):
    paragraphs = [part for each in topics().values() for part in each]
    assert len(set(paragraphs)) == len(paragraphs) > 1000
    gone = set(paragraphs[:50])
    kept = write_documentation(tmp_path / "text.jsonl", gone).read_text()
    assert write_documentation(tmp_path / "whole.jsonl").stat().st_size > len(kept.encode())


def test_losses_by_context_are_those_of_whole_windows(tmp_path, monkeypatch):
    monkeypatch.setattr(variants, "topics", lambda: {"a": ["abcdefghijklmnopqrstuvwxyz" * 3], "b": ["zyx" * 9]})
    options = LanguageOptions(data=str(write_documentation(tmp_path / "text.jsonl")), tokenizer="char", context_length=8, shares=(0.0, 0.0))
    task = Language(options)
    raw = task.read()
    task.processor = task.make_processor(raw, None)
    tokenizer, found = task.processor.tokenizer, task.prepare(raw, tmp_path)
    model = build("gpt2", {"vocab_size": len(tokenizer), "context_length": 8, "width": 8, "heads": 2, "depth": 1, "dropout": 0.0}).eval()
    documents = zip(found.train.starts.tolist(), found.train.ends.tolist(), strict=True)
    rows = torch.tensor([found.train.ids[at : at + 9].tolist() for begin, end in documents for at in range(begin, end - 8, 8)])
    with torch.no_grad():
        nats_BL = F.cross_entropy(model(rows[:, :-1]).mT, rows[:, 1:], reduction="none")
    seen = loss_by_context(model, found.train, 8)
    assert list(seen) == [f"loss by context, {name}" for name in ("1 to 1", "2 to 2", "3 to 4", "5 to 8")]
    assert seen["loss by context, 5 to 8"] == pytest.approx(float(nats_BL[:, 4:].mean()), abs=1e-5)
    assert seen["loss by context, 1 to 1"] == pytest.approx(float(nats_BL[:, 0].mean()), abs=1e-5)


def test_shots_are_answered_alike_within_a_row():
    ids_BL, target_BL = Shots().draw(50)
    assert ids_BL.shape == target_BL.shape == (50, Shots().length) and (target_BL[:, 1::2] == IGNORE_INDEX).all()
    assert torch.equal(ids_BL[:, 1::2], target_BL[:, ::2])
    for row in range(50):
        pairs = set(zip(ids_BL[row, ::2].tolist(), target_BL[row, ::2].tolist(), strict=True))
        assert len(pairs) == len({question for question, _ in pairs})
    ids_BL, target_BL = Shots(informative=False).draw(200)
    assert float((ids_BL[:, 1::2] == target_BL[:, ::2]).float().mean()) == pytest.approx(1 / 8, abs=0.03)


def test_accuracy_is_counted_by_the_number_of_shots():
    class Copies(torch.nn.Module):
        """Predicts the last answer to the same question, and 4 if it was never asked."""

        def forward(self, ids_BL):
            logits_BLN = torch.zeros(*ids_BL.shape, Shots().vocab_size)
            for row, ids in enumerate(ids_BL.tolist()):
                known = {}
                for n in range(0, len(ids), 2):
                    logits_BLN[row, n, known.get(ids[n], 4)] = 1.0
                    known[ids[n]] = ids[n + 1]
            return logits_BLN

    found = gpt2020.variant().metrics(Copies())
    assert found["accuracy by shots, 0"] < 0.25 and found["accuracy by shots, 16"] > 0.95
    assert found["accuracy"] == pytest.approx(sum(found[f"accuracy by shots, {n}"] for n in range(17)) / 17)


def test_test_paragraphs_are_in_no_other_part(tmp_path):
    parts = bert2018.labelled()
    texts = {part: {one["original"] for one in examples} for part, examples in parts.items()}
    assert {part: len(each) for part, each in texts.items()} == {"train": 64, "valid": 64, "test": 192}
    assert not texts["train"] & texts["test"] and not texts["valid"] & texts["test"]
    assert len({one["label"] for one in parts["train"]}) == bert2018.TOPICS
    assert parts == bert2018.labelled()


def test_pages_contain_what_their_tables_hold():
    rng = random.Random(0)
    for _ in range(20):
        text, table = completion2020.page(rng, unseen=True)
        for name in completion2020._cells(table.strip())[::3]:
            assert name in text and completion2020.NAMES.index(name) % 4 == 0
    ids_BL, target_BL = draw_sequences(completion2020.Pages(), 0, rows=5)
    for ids, target in zip(ids_BL, target_BL, strict=True):
        table = completion2020.tokenizer().decode(target[target != IGNORE_INDEX])
        assert table.startswith("| ") and table.endswith(" |\n\n") and ids[0] == BOS
        assert completion2020.tokenizer().decode(ids[ids != PAD]).endswith(completion2020.HEAD + table)


def test_completions_are_compared_to_the_letter(tmp_path, monkeypatch):
    """A model that writes the right table is right, one that adds a letter is not."""
    right = {prompt: table for prompt, table in (completion2020.page(rng, True) for rng in [random.Random(1)] for _ in range(4))}

    class Done:
        finish_reason = "stop"

        def __init__(self, text):
            self.text = text

    monkeypatch.setattr(PuzzleLMVariant, "load", lambda self, out: None)
    monkeypatch.setattr(completion2020, "generate", lambda model, cut, prompts, options: [[Done(right[p].strip())] for p in prompts])
    evaluate = replace(completion2020.VARIANTS[completion2020.GPT], trained=True, prompts=4)
    assert evaluate(0, tmp_path) == {"exact_match": 1.0, "cell accuracy": 1.0, "stopped": 1.0}
    monkeypatch.setattr(completion2020, "generate", lambda model, cut, prompts, options: [[Done(right[p])] for p in prompts])
    assert evaluate(0, tmp_path)["exact_match"] == 0.0


def shrunk(variant):
    """The same with two steps of small batches."""
    if isinstance(variant, completion2020.Tables):
        return replace(variant, model=shrunk(variant.model), prompts=2)
    if isinstance(variant, bert2018.Pretrained | PuzzleLMVariant | TextVariant):
        train = variant.train.replace(steps=2, log_every=1, evaluate_every=1, save_every=2)
        return replace(variant, train=train, **({"batch_size": 2} if isinstance(variant, PuzzleLMVariant) else {}))
    return variant


@pytest.mark.parametrize("part", [gpt2018, gpt2020, bert2018, completion2020], ids=lambda part: part.recipe.facts.name)
def test_recipes_of_language_models_run_end_to_end(part, tmp_path, monkeypatch):
    monkeypatch.setattr(stacks, "HELD_OUT", 4)
    whole = dict(list(topics().items())[:6])
    monkeypatch.setattr(variants, "topics", lambda: whole)
    small = {name: shrunk(variant) for name, variant in part.recipe.variants.items()}
    if part is bert2018:
        small = {
            name: replace(v, evaluate=replace(v.evaluate, epochs=1)) if isinstance(v, Reevaluation) else v for name, v in small.items()
        }
    if part is completion2020:
        small = {
            name: replace(v, evaluate=replace(v.evaluate, prompts=2)) if isinstance(v, Reevaluation) else v for name, v in small.items()
        }
    outcome = run(replace(part.recipe, variants=small, rates=()), tmp_path, seeds=(0,), log=lambda text: None)
    assert len(outcome.verdicts) == len(part.recipe.claims) and (tmp_path / "report.html").exists()
    pictures = list(tmp_path.glob("*.png"))
    assert len(pictures) == len(part.recipe.pictures) and all(one.read_bytes().startswith(b"\x89PNG") for one in pictures)
