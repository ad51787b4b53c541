"""Windows of characters: parts are apart, targets are the next characters, and losses by context are means of the same losses."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from regard.attention import LocalAttention
from regard.layers import ALiBi
from regard.recipes._engine import stacks
from regard.recipes._engine.stacks import TEST_SEED, VALIDATION_SEED, Heads, draw_sequences, puzzle_training
from regard.recipes._engine.text_stacks import Characters, TextStackVariant, characters


def test_a_window_is_a_part_of_the_text_and_its_targets_come_next():
    puzzle = Characters(length=20)
    ids_BL, target_BL = puzzle.draw(5, torch.Generator().manual_seed(0))
    text = characters("train").tolist()
    assert torch.equal(ids_BL[:, 1:], target_BL[:, :-1]) and ids_BL.max() < puzzle.vocab_size
    windows = {tuple(text[n : n + 21]) for n in range(len(text) - 20)}
    assert all((*ids, target[-1]) in windows for ids, target in zip(ids_BL.tolist(), target_BL.tolist(), strict=True))


def test_training_validation_and_test_windows_are_of_different_texts():
    lengths = {part: len(characters(part)) for part in ("train", "valid", "test")}
    assert lengths["train"] > 5 * lengths["valid"] and min(lengths.values()) > 10_000
    variant = TextStackVariant(mixer=Heads(width=64, heads=4), train=puzzle_training(4))
    held_out = draw_sequences(Characters(part="valid"), VALIDATION_SEED)
    assert torch.equal(variant.objective().validation[0], held_out[0])


def test_losses_by_context_are_those_of_one_pass(monkeypatch):
    monkeypatch.setattr(stacks, "HELD_OUT", 6)
    windowed = Heads(attention=partial(LocalAttention, 3), width=64, heads=4, position=partial(ALiBi, 4))
    variant = TextStackVariant(
        mixer=Heads(width=64, heads=4, position=partial(ALiBi, 4)), train=puzzle_training(4), longest=32, reevaluated={"window": windowed}
    )
    model = variant.build().eval()
    found = variant.metrics(model)
    ids_BL, target_BL = draw_sequences(Characters(length=32, part="test"), TEST_SEED)
    with torch.no_grad():
        loss_L = F.cross_entropy(model(ids_BL).transpose(1, 2), target_BL, reduction="none").mean(0)
    assert found["loss, 9 to 16"] == pytest.approx(float(loss_L[8:16].mean()), abs=1e-5)
    assert found["loss, 1 to 8"] == pytest.approx(float(loss_L[:8].mean()), abs=1e-5)
    assert found["loss, 17 to 32, window"] != pytest.approx(found["loss, 17 to 32"], abs=1e-6)
