"""Puzzles ask for what they say, and the stack that learns them does what a recipe relies on."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from regard.attention import AdaptiveSpanAttention, LocalAttention, LSHAttention, SoftmaxAttention
from regard.patterns import causal, full
from regard.recipes._engine.base import format_value
from regard.recipes._engine.puzzles import (
    IGNORE_INDEX,
    Blocks,
    Chapters,
    Duplicate,
    Lag,
    Marked,
    Needle,
    Ranked,
    Recall,
    Spread,
    SpreadLater,
)
from regard.recipes._engine.stacks import (
    TEST_SEED,
    Heads,
    NoMixing,
    PuzzleObjective,
    ShortConvolution,
    StackVariant,
    draw_sequences,
    puzzle_training,
    score_targets,
)

PUZZLES = [
    Needle(),
    Spread(),
    Spread(length=30, beyond=11),
    SpreadLater(beyond=60),
    Marked(),
    Duplicate(),
    Blocks(),
    Ranked(),
    Lag(),
    Lag(length=32, lag=5, around=True),
    Recall(),
    Recall(pairs=4, times=3),
    Chapters(chapters=3, pairs=5),
]


@pytest.mark.parametrize("puzzle", PUZZLES, ids=str)
def test_draws_have_the_promised_shape_and_range(puzzle):
    ids_BL, target_BL = puzzle.draw(7)
    assert ids_BL.shape == target_BL.shape == (7, puzzle.length)
    assert ids_BL.min() >= 0 and max(ids_BL.max(), target_BL.max()) < puzzle.vocab_size
    assert ((target_BL == IGNORE_INDEX) | (target_BL >= 0)).all() and (target_BL != IGNORE_INDEX).any(1).all()
    assert all(torch.equal(a, b) for a, b in zip(draw_sequences(puzzle, 3), draw_sequences(puzzle, 3), strict=True))


def solve(puzzle, ids):
    """Read by hand, token by token."""
    target, half = [IGNORE_INDEX] * len(ids), len(ids) // 2
    match puzzle:
        case Spread():
            ((at, needle),) = [(n, token) for n, token in enumerate(ids) if token < puzzle.classes]
            later = isinstance(puzzle, SpreadLater)
            target = [needle if (n - at if later else abs(n - at)) >= puzzle.beyond else IGNORE_INDEX for n in range(len(ids))]
        case Needle():
            (target[0],) = [token for token in ids if token < puzzle.classes]
        case Marked():
            mark = ids.index(puzzle.vocab_size - 1)
            assert ids.count(puzzle.vocab_size - 1) == 1 and puzzle.answers(torch.tensor([ids])).tolist() == [mark + 1]
            target[0] = ids[mark + 1]
        case Duplicate():
            assert ids[0] == ids[half] == 0 and ids[:half] == ids[half:]
            target[half:-1] = ids[half + 1 :]
        case Blocks():
            target = [ids[(3 * (n // puzzle.block) + 1) % 8 * puzzle.block + n % puzzle.block] for n in range(len(ids))]
        case Ranked():
            cut = [ids[n : n + puzzle.block] for n in range(0, len(ids), puzzle.block)]
            assert len({each[0] for each in cut}) == puzzle.blocks and min(each[0] for each in cut) >= puzzle.symbols
            target = [token for each in sorted(cut, key=lambda each: each[0]) for token in each]
        case Lag():
            target = [ids[n - puzzle.lag] if puzzle.around or n >= puzzle.lag else IGNORE_INDEX for n in range(len(ids))]
        case Recall():
            written, pairs = {}, ids[: 2 * puzzle.pairs * puzzle.times]
            for key, value in zip(pairs[::2], pairs[1::2], strict=True):
                assert key < puzzle.keys <= value
                written[key] = value
            assert len(written) == puzzle.pairs
            target[len(pairs) :] = [written[key] for key in ids[len(pairs) :]]
            assert sorted(ids[len(pairs) :]) == sorted(written)
        case Chapters():
            size, seen = 3 * puzzle.pairs + 1, set()
            for begin in range(0, len(ids), size):
                *chapter, end = ids[begin : begin + size]
                assert end == puzzle.vocab_size - 1
                pairs, asked = chapter[: 2 * puzzle.pairs], chapter[2 * puzzle.pairs :]
                written = dict(zip(pairs[::2], pairs[1::2], strict=True))
                assert sorted(asked) == sorted(written) and not seen & set(written)
                seen |= set(written)
                target[begin + 2 * puzzle.pairs : begin + size - 1] = [written[key] for key in asked]
    return target


@pytest.mark.parametrize("puzzle", PUZZLES, ids=str)
def test_targets_follow_the_rule(puzzle):
    ids_BL, target_BL = puzzle.draw(5)
    for ids, target in zip(ids_BL.tolist(), target_BL.tolist(), strict=True):
        assert solve(puzzle, ids) == target


def test_the_needle_is_far_and_no_block_is_its_own_target():
    ids_BL, _ = Needle().draw(200)
    at = (ids_BL < 8).nonzero()[:, 1]
    assert at.min() >= 20 and at.max() > 100
    assert all((3 * u + 1) % 8 != u for u in range(8)) and len({(3 * u + 1) % 8 for u in range(8)}) == 8


def test_only_what_is_asked_counts():
    class Same(nn.Module):
        def forward(self, ids_BL):
            return nn.functional.one_hot(ids_BL, 16).float() * 50

    ids_BL = torch.tensor([[3, 4, 5, 6]])
    total, right, count = score_targets(Same(), ids_BL, torch.tensor([[3, IGNORE_INDEX, 4, IGNORE_INDEX]]))
    assert (right, count) == (1.0, 2) and float(total) == pytest.approx(50.0)


def stack(mixer, **changes) -> StackVariant:
    defaults = {
        "puzzle": Lag(length=12, lag=3),
        "mixer": mixer,
        "train": puzzle_training(4),
        "batch_size": 4,
        "depth": 1,
        "pattern": causal,
    }
    return StackVariant(**{**defaults, **changes})


def test_a_trained_stack_comes_back_as_it_was(tmp_path):
    variant = stack(Heads(), convolution=3)
    metrics = variant(0, tmp_path / "a")
    model = variant.load(tmp_path / "a")
    ids_BL, target_BL = draw_sequences(variant.puzzle, TEST_SEED)
    _, right, count = score_targets(model, ids_BL, target_BL)
    assert metrics["accuracy"] == right / count
    assert variant.attention_map(tmp_path / "a").weights_BHLM.shape == (1, 1, 12, 12)


def test_other_mixers_are_evaluated_with_the_same_parameters(tmp_path):
    def heads(rounds=2, chunk=4):
        return Heads(attention=partial(LSHAttention, rounds=rounds, chunk=chunk, buckets=4, seed=None), shared_qk=True)

    variant = stack(heads(), reevaluated={"all": heads(chunk=12), "the same": heads()})
    metrics = variant(0, tmp_path / "a")
    assert metrics["accuracy"] == metrics["accuracy, the same"]
    model = variant.load(tmp_path / "a")
    other = variant._with_mixer(model, heads(rounds=1, chunk=12))
    assert model.blocks[0].mixer.attention.chunk == 4 and other.blocks[0].mixer.attention.chunk == 12
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert variant._accuracy(model) == metrics["accuracy"]


def test_spans_cost_and_stay_in_bounds():
    heads = Heads(attention=partial(AdaptiveSpanAttention, heads=1, longest=12, ramp=2.0, begin=6.0), heads=1)
    variant = stack(heads)
    model = variant.build()
    free, dear = (PuzzleObjective(variant.puzzle, 4, cost) for cost in (0.0, 0.5))
    batch = variant.puzzle.draw(4)
    paid = free.loss(model, batch)
    assert float((dear.loss(model, batch).total - paid.total).detach()) == pytest.approx(0.5 * 6.0 * paid.count, rel=1e-5)
    span = model.blocks[0].mixer.attention
    with torch.no_grad():
        span.share_H.fill_(3.0)
    free.after_step(model)
    assert span.share_H.item() == 1.0


def test_a_short_convolution_is_causal():
    mixer = ShortConvolution(32, Heads(attention=SoftmaxAttention)(), 3)
    x_BLD = torch.randn(1, 6, 32)
    changed = x_BLD.clone()
    changed[:, 4] += 1
    before, after = (mixer(x, pattern=causal) for x in (x_BLD, changed))
    assert torch.equal(before[:, :4], after[:, :4]) and not torch.equal(before[:, 4:], after[:, 4:])


def test_without_mixing_no_token_depends_on_another():
    model = stack(NoMixing, pattern=full).build().eval()
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


def test_factories_are_formatted_as_one_would_call_them():
    assert format_value(partial(LocalAttention, 4)) == "LocalAttention(4)"
    assert format_value(partial(Heads, attention=partial(LSHAttention, rounds=2))) == "Heads(attention=LSHAttention(rounds=2))"
    assert format_value(lambda: 1) == "" and format_value(causal) == "causal"
