"""Learning rates, worked by hand."""

import pytest

from regard.errors import BadConfig
from regard.train import WSD, Constant, Cosine, InverseSquareRoot, Linear, Noam


@pytest.mark.parametrize(
    ("schedule", "step", "expected"),
    [
        (Noam(width=512, warmup=4000), 4000, 6.98771e-4),  # 1 / √(512 · 4000), the paper's base model
        (Noam(width=1024, warmup=4000), 4000, 4.94106e-4),  # and its big one
        (Noam(width=512, warmup=4000), 1, 1.746928e-7),  # a 4000th of the peak
        (Noam(width=512, warmup=4000), 16000, 3.493856e-4),  # four times the warm-up: half the peak
        (Noam(width=256, warmup=100, factor=2.0), 100, 0.0125),
        (InverseSquareRoot(peak=0.01, warmup=100), 50, 0.005),
        (InverseSquareRoot(peak=0.01, warmup=100), 100, 0.01),
        (InverseSquareRoot(peak=0.01, warmup=100), 400, 0.005),
        (Cosine(peak=0.8, warmup=10, steps=110), 5, 0.4),
        (Cosine(peak=0.8, warmup=10, steps=110), 10, 0.8),
        (Cosine(peak=0.8, warmup=10, steps=110), 60, 0.4),
        (Cosine(peak=0.8, warmup=10, steps=110), 110, 0.0),
        (Cosine(peak=0.8, warmup=10, steps=110, floor=0.2), 60, 0.5),
        (Cosine(peak=0.8, warmup=10, steps=110, floor=0.2), 999, 0.2),
        (Linear(peak=0.8, warmup=10, steps=110), 5, 0.4),
        (Linear(peak=0.8, warmup=10, steps=110), 35, 0.6),
        (Linear(peak=0.8, warmup=10, steps=110, floor=0.2), 60, 0.5),
        (Linear(peak=0.8, warmup=10, steps=110), 999, 0.0),
        (Linear(peak=0.8, steps=100), 1, 0.792),
        (WSD(peak=0.8, warmup=10, steps=100, decay=20), 5, 0.4),
        (WSD(peak=0.8, warmup=10, steps=100, decay=20), 50, 0.8),
        (WSD(peak=0.8, warmup=10, steps=100, decay=20), 80, 0.8),
        (WSD(peak=0.8, warmup=10, steps=100, decay=20), 90, 0.4),
        (WSD(peak=0.8, warmup=10, steps=100, decay=20, floor=0.2), 100, 0.2),
        (Constant(peak=0.3), 1, 0.3),
        (Constant(peak=0.3, warmup=3), 1, 0.1),
        (Constant(peak=0.3, warmup=3), 10**6, 0.3),
    ],
    ids=str,
)
def test_by_hand(schedule, step, expected):
    assert schedule.lr(step) == pytest.approx(expected, rel=1e-5, abs=1e-15)


def test_steps_count_from_one():
    with pytest.raises(BadConfig, match="from 1"):
        Noam().lr(0)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Noam(warmup=0),
        lambda: Cosine(peak=-1.0, steps=10),
        lambda: Linear(warmup=10, steps=10),
        lambda: WSD(warmup=50, steps=100, decay=60),
        lambda: Constant(peak=float("nan")),
    ],
)
def test_nonsense_is_refused(wrong):
    with pytest.raises(BadConfig):
        wrong()
