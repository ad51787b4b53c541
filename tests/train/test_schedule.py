"""Learning rates, worked by hand."""

import pytest

from regard.errors import BadConfig
from regard.train import WSD, Constant, Cosine, InverseSquareRoot, Linear, Noam


@pytest.mark.parametrize(
    ("schedule", "step", "expected"),
    [
        (Noam(width=512, warmup_steps=4000), 4000, 6.98771e-4),  # 1 / √(512 · 4000), the paper's base model
        (Noam(width=1024, warmup_steps=4000), 4000, 4.94106e-4),  # and its big one
        (Noam(width=512, warmup_steps=4000), 1, 1.746928e-7),  # a 4000th of the peak
        (Noam(width=512, warmup_steps=4000), 16000, 3.493856e-4),  # four times the warm-up: half the peak
        (Noam(width=256, warmup_steps=100, factor=2.0), 100, 0.0125),
        (InverseSquareRoot(lr=0.01, warmup_steps=100), 50, 0.005),
        (InverseSquareRoot(lr=0.01, warmup_steps=100), 100, 0.01),
        (InverseSquareRoot(lr=0.01, warmup_steps=100), 400, 0.005),
        (Cosine(lr=0.8, warmup_steps=10, steps=110), 5, 0.4),
        (Cosine(lr=0.8, warmup_steps=10, steps=110), 10, 0.8),
        (Cosine(lr=0.8, warmup_steps=10, steps=110), 60, 0.4),
        (Cosine(lr=0.8, warmup_steps=10, steps=110), 110, 0.0),
        (Cosine(lr=0.8, warmup_steps=10, steps=110, floor=0.2), 60, 0.5),
        (Cosine(lr=0.8, warmup_steps=10, steps=110, floor=0.2), 999, 0.2),
        (Linear(lr=0.8, warmup_steps=10, steps=110), 5, 0.4),
        (Linear(lr=0.8, warmup_steps=10, steps=110), 35, 0.6),
        (Linear(lr=0.8, warmup_steps=10, steps=110, floor=0.2), 60, 0.5),
        (Linear(lr=0.8, warmup_steps=10, steps=110), 999, 0.0),
        (Linear(lr=0.8, steps=100), 1, 0.792),
        (WSD(lr=0.8, warmup_steps=10, steps=100, decay=20), 5, 0.4),
        (WSD(lr=0.8, warmup_steps=10, steps=100, decay=20), 50, 0.8),
        (WSD(lr=0.8, warmup_steps=10, steps=100, decay=20), 80, 0.8),
        (WSD(lr=0.8, warmup_steps=10, steps=100, decay=20), 90, 0.4),
        (WSD(lr=0.8, warmup_steps=10, steps=100, decay=20, floor=0.2), 100, 0.2),
        (Constant(lr=0.3), 1, 0.3),
        (Constant(lr=0.3, warmup_steps=3), 1, 0.1),
        (Constant(lr=0.3, warmup_steps=3), 10**6, 0.3),
    ],
    ids=str,
)
def test_by_hand(schedule, step, expected):
    assert schedule.at(step) == pytest.approx(expected, rel=1e-5, abs=1e-15)


def test_steps_count_from_one():
    with pytest.raises(BadConfig, match="from 1"):
        Noam().at(0)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Noam(warmup_steps=0),
        lambda: Cosine(lr=-1.0, steps=10),
        lambda: Linear(warmup_steps=10, steps=10),
        lambda: WSD(warmup_steps=50, steps=100, decay=60),
        lambda: Constant(lr=float("nan")),
    ],
)
def test_nonsense_is_refused(wrong):
    with pytest.raises(BadConfig):
        wrong()


@pytest.mark.parametrize(
    ("schedule", "used", "expected"),
    [
        (Cosine(lr=2.0, steps=None), 0.5, 1.0),
        (Linear(lr=2.0, steps=None, floor=1.0), 0.75, 1.25),
        (Linear(lr=2.0, steps=None), 1.0, 0.0),
        (WSD(lr=2.0, steps=None, decay=None), 0.79, 2.0),
        (WSD(lr=2.0, steps=None, decay=None), 0.9, 1.0),
        (Cosine(lr=2.0, steps=None, warmup_steps=1000), 0.5, 0.5),  # at step 500
    ],
)
def test_without_steps_the_end_of_the_budget_is_the_end(schedule, used, expected):
    assert schedule.at(500, used) == pytest.approx(expected)
