"""Scaled rotary angles: which pairs keep their pace, what is refused, and what may not be continued."""

import math

import pytest
import torch

from regard.errors import BadConfig, ShapeError
from regard.layers import Rotary
from regard.layers.positions.scaling import check_reach, check_stretch, frequencies, gain

SIZE, BASE = 16, 100.0
PLAIN = BASE ** (-torch.arange(0, SIZE, 2, dtype=torch.float64) / SIZE)
LONG = ("longrope", 40, 1.5, *[2.0] * 8, *[3.0] * 8)


@pytest.mark.parametrize("stretch", [(4.0,), (4.0, 1.0, 4.0, 40), ("yarn", 4.0, 1.0, 8.0, 40, 1.1, 1), ("yarn", 4.0, 1.0, 8.0, 40, 1.1, 0)])
def test_fast_pairs_keep_their_pace_and_slow_ones_are_divided(stretch):
    ratio = frequencies(SIZE, BASE, stretch) / PLAIN
    assert bool((ratio.diff() <= 1e-12).all()) and math.isclose(ratio[-1], 1 / 4, rel_tol=1e-9)
    assert math.isclose(ratio[0], 1 / 4 if len(stretch) == 1 else 1.0, rel_tol=1e-9)


def test_yarn_by_hand():
    """Pair c turns 40 · 100^(−c/8) / 2π times in 40 tokens: 8 times at c < 0, once at c = 3.2; so c = 0 is first, c = 4 last."""
    ratio = frequencies(SIZE, BASE, ("yarn", 4.0, 1.0, 8.0, 40, 1.0, 1)) / PLAIN
    torch.testing.assert_close(ratio[:5], torch.tensor([1, 13 / 16, 10 / 16, 7 / 16, 1 / 4], dtype=torch.float64))


def test_the_length_of_the_text_decides():
    for end, divisor in ((40, 2.0), (41, 3.0)):
        torch.testing.assert_close(frequencies(SIZE, BASE, LONG, end), PLAIN / divisor)
    dynamic = ("dynamic", 3.0, 40)
    torch.testing.assert_close(frequencies(SIZE, BASE, dynamic, 40), PLAIN)
    torch.testing.assert_close(frequencies(SIZE, BASE, dynamic, 80)[-1], PLAIN[-1] / 4)  # 3 · 80/40 − 2
    assert gain(LONG) == 1.5 and gain(dynamic) == gain(()) == 1.0


def test_gain_multiplies_queries_and_keys():
    x = torch.randn(1, 5, 2, SIZE, dtype=torch.float64)
    q, k, _ = Rotary(base=BASE, stretch=LONG).encode(x, x, 0, 0)
    torch.testing.assert_close(q.norm(dim=-1), 1.5 * x.norm(dim=-1))
    torch.testing.assert_close(k.norm(dim=-1), 1.5 * x.norm(dim=-1))


@pytest.mark.parametrize(
    "stretch",
    [
        (0.0,),
        (1.0, 2.0),
        (4.0, 4.0, 1.0, 40),
        ("yarn", 4.0),
        ("ntk", 4.0),
        ("linear", 4.0),
        (4.0, "yarn"),
        LONG[:-1],
        ("dynamic", "yarn", 1.0),
    ],
    ids=str,
)
def test_what_is_no_stretch(stretch):
    with pytest.raises(BadConfig, match="expected"):
        check_stretch(stretch, SIZE)


@pytest.mark.parametrize(
    ("start", "count", "fits"),
    [
        (0, 40, True),
        (0, 60, True),
        (20, 20, True),
        (20, 21, False),
        (41, 5, True),
        ((0, 0), 50, True),
        ((0, 30), 20, False),
        ((45, 50), 1, True),
    ],
)
def test_older_keys_keep_their_angles(start, count, fits):
    check_reach((4.0,), start, count)
    if fits:
        check_reach(LONG, start, count)
    else:
        with pytest.raises(ShapeError, match="read the whole text at once"):
            check_reach(LONG, start, count)
    if start == 41:
        with pytest.raises(ShapeError, match="dynamic"):
            check_reach(("dynamic", 3.0, 40), start, count)
