"""Puzzles ask for what they say, and the stack that learns them does what a recipe relies on."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from regard.attention import AdaptiveSpanAttention, LocalAttention, LSHAttention, SoftmaxAttention
from regard.patterns import causal, full
from regard.recipes import _sequences
from regard.recipes._base import _told
from regard.recipes._puzzles import NOTHING, Blocks, Duplicate, Lag, Needle, Ranked, Recall
from regard.recipes._sequences import Alone, Heads, SequenceTask, Taught, asked, drawn, training

PUZZLES = [Needle(), Duplicate(), Blocks(), Ranked(), Lag(), Lag(length=32, lag=5, around=True), Recall(), Recall(pairs=4, times=3)]


@pytest.mark.parametrize("puzzle", PUZZLES, ids=str)
def test_draws_fit_what_is_said_of_them(puzzle):
    ids_BL, wanted_BL = puzzle.draw(7)
    assert ids_BL.shape == wanted_BL.shape == (7, puzzle.length)
    assert ids_BL.min() >= 0 and max(ids_BL.max(), wanted_BL.max()) < puzzle.vocab
    assert ((wanted_BL == NOTHING) | (wanted_BL >= 0)).all() and (wanted_BL != NOTHING).any(1).all()
    assert all(torch.equal(a, b) for a, b in zip(drawn(puzzle, 3), drawn(puzzle, 3), strict=True))


def solve(puzzle, ids):
    """Read by hand, token by token."""
    wanted, half = [NOTHING] * len(ids), len(ids) // 2
    match puzzle:
        case Needle():
            (wanted[0],) = [token for token in ids if token < puzzle.classes]
        case Duplicate():
            assert ids[0] == ids[half] == 0 and ids[:half] == ids[half:]
            wanted[half:-1] = ids[half + 1 :]
        case Blocks():
            wanted = [ids[(3 * (n // puzzle.block) + 1) % 8 * puzzle.block + n % puzzle.block] for n in range(len(ids))]
        case Ranked():
            cut = [ids[n : n + puzzle.block] for n in range(0, len(ids), puzzle.block)]
            assert len({each[0] for each in cut}) == puzzle.blocks and min(each[0] for each in cut) >= puzzle.symbols
            wanted = [token for each in sorted(cut, key=lambda each: each[0]) for token in each]
        case Lag():
            wanted = [ids[n - puzzle.lag] if puzzle.around or n >= puzzle.lag else NOTHING for n in range(len(ids))]
        case Recall():
            written, pairs = {}, ids[: 2 * puzzle.pairs * puzzle.times]
            for key, value in zip(pairs[::2], pairs[1::2], strict=True):
                assert key < puzzle.keys <= value
                written[key] = value
            assert len(written) == puzzle.pairs
            wanted[len(pairs) :] = [written[key] for key in ids[len(pairs) :]]
            assert sorted(ids[len(pairs) :]) == sorted(written)
    return wanted


@pytest.mark.parametrize("puzzle", PUZZLES, ids=str)
def test_what_is_wanted_is_what_the_rule_says(puzzle):
    ids_BL, wanted_BL = puzzle.draw(5)
    for ids, wanted in zip(ids_BL.tolist(), wanted_BL.tolist(), strict=True):
        assert solve(puzzle, ids) == wanted


def test_the_needle_lies_beyond_and_no_block_wants_itself():
    ids_BL, _ = Needle().draw(200)
    at = (ids_BL < 8).nonzero()[:, 1]
    assert at.min() >= 20 and at.max() > 100
    assert all((3 * u + 1) % 8 != u for u in range(8)) and len({(3 * u + 1) % 8 for u in range(8)}) == 8


def test_only_what_is_asked_counts():
    class Same(nn.Module):
        def forward(self, ids_BL):
            return nn.functional.one_hot(ids_BL, 16).float() * 50

    ids_BL = torch.tensor([[3, 4, 5, 6]])
    total, right, count = asked(Same(), ids_BL, torch.tensor([[3, NOTHING, 4, NOTHING]]))
    assert (right, count) == (1.0, 2) and float(total) == pytest.approx(50.0)


def taught(mixer, **changes) -> Taught:
    given = {"puzzle": Lag(length=12, lag=3), "mixer": mixer, "train": training(4), "rows": 4, "depth": 1, "pattern": causal}
    return Taught(**{**given, **changes})


def test_a_trained_stack_comes_back_as_it_was(tmp_path):
    variant = taught(Heads(near=3))
    figures = variant(0, tmp_path / "a")
    model = variant.load(tmp_path / "a")
    ids_BL, wanted_BL = drawn(variant.puzzle, _sequences.TEST)
    _, right, count = asked(model, ids_BL, wanted_BL)
    assert figures["accuracy"] == right / count
    assert variant.look(tmp_path / "a").weights_BHLM.shape == (1, 1, 12, 12)


def test_retried_settings_are_undone(tmp_path):
    attention = partial(LSHAttention, rounds=2, chunk=4, buckets=4, seed=None)
    variant = taught(Heads(attention=attention, shared_qk=True), retried={"all": {"chunk": 12}, "the same": {"rounds": 2}})
    figures = variant(0, tmp_path / "a")
    assert figures["accuracy"] == figures["accuracy, the same"]
    model = variant.build()
    before = variant._accuracy(model, {})
    variant._accuracy(model, {"chunk": 12, "rounds": 1})
    assert model.blocks[0].mixer.attention.chunk == 4 and variant._accuracy(model, {}) == before


def test_spans_cost_and_stay_in_bounds():
    heads = Heads(attention=partial(AdaptiveSpanAttention, heads=1, longest=12, ramp=2.0, begin=6.0), heads=1)
    variant = taught(heads)
    model = variant.build()
    free, dear = (SequenceTask(variant.puzzle, 4, cost) for cost in (0.0, 0.5))
    batch = variant.puzzle.draw(4)
    asked_for = free.loss(model, batch)
    assert float((dear.loss(model, batch).total - asked_for.total).detach()) == pytest.approx(0.5 * 6.0 * asked_for.count, rel=1e-5)
    span = model.blocks[0].mixer.attention
    with torch.no_grad():
        span.share_H.fill_(3.0)
    free.after_step(model)
    assert span.share_H.item() == 1.0


def test_a_short_convolution_looks_back_only():
    mixer = Heads(attention=SoftmaxAttention, near=3)()
    x_BLD = torch.randn(1, 6, 32)
    changed = x_BLD.clone()
    changed[:, 4] += 1
    before, after = (mixer(x, pattern=causal) for x in (x_BLD, changed))
    assert torch.equal(before[:, :4], after[:, :4]) and not torch.equal(before[:, 4:], after[:, 4:])


def test_without_mixing_no_token_learns_of_another():
    model = taught(Alone, pattern=full).build().eval()
    ids_BL = torch.randint(16, (1, 12))
    other = ids_BL.clone()
    other[0, 5] = (other[0, 5] + 1) % 16
    same = (model(ids_BL) == model(other)).all(-1)[0]
    assert same.tolist() == [n != 5 for n in range(12)]


def test_segments_with_memory_are_one_pass():
    from regard.recipes.xl2019 import variant as xl

    torch.manual_seed(0)
    whole, short = xl(80), xl(0)
    model = whole.build().double().eval()
    ids_BL, _ = whole.puzzle.draw(2)
    segmented = model(ids_BL)
    model.segment = 80
    assert torch.allclose(segmented, model(ids_BL), atol=1e-10)
    cut = replace(short).build().double().eval()
    cut.load_state_dict(model.state_dict())
    assert torch.allclose(segmented[:, :16], cut(ids_BL)[:, :16]) and not torch.allclose(segmented, cut(ids_BL))


def test_factories_are_told_as_one_would_call_them():
    assert _told(partial(LocalAttention, 4)) == "LocalAttention(4)"
    assert _told(partial(Heads, attention=partial(LSHAttention, rounds=2))) == "Heads(attention=LSHAttention(rounds=2))"
    assert _told(lambda: 1) == "" and _told(causal) == "causal"
