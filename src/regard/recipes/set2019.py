"""Attention between the items of a set, and pooling by attention: what they are worth, and what inducing points save.

Paper: Lee et al. 2019, "Set Transformer: a framework for attention-based permutation-invariant neural networks", arXiv:1810.00825, tables 1 and 2
       (there characters of Omniglot are counted, here points of the plane with copies nearby).
Run:   regard run set2019        Takes: about 40 minutes on one CPU core; three seeds of seven small models.

The largest of 1 to 10 numbers from 0 to 100, and the number of different points among 6 to 10. Encoders of two blocks of width 64: self-attention
(SAB), 16 inducing points (ISAB), or layers on each item alone (rFF); pooling by a seed that attends (PMA), or the mean, or the maximum. The cost
is that of one block of width 64, forward pass, one thread; the exponent is that between the third longest and the longest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..models import build
from ..tasks import SetsOptions, SetsTask
from ..train import TrainOptions
from ._engine import Claim, Curves, Recipe, RecipeFacts, above, at_least, at_most, below, between, measured
from ._engine.variants import BaselineVariant, TaskVariant, milliseconds

SHARES = (0.05, 0.1)
LARGEST, DIFFERENT = SetsOptions(data="max:10", shares=SHARES), SetsOptions(data="unique:10", shares=SHARES)
TRAIN = TrainOptions(
    steps=3000, lr=1e-3, schedule="cosine", average=0, weight_decay=0.0, log_every=100, evaluate_every=300, save_every=3000
)
LENGTHS = (64, 256, 1024, 2048, 4096)
ATTENTION, MEAN, MAX, MEDIAN = "largest: SAB and PMA", "largest: rFF and mean", "largest: rFF and maximum", "largest: median"
SAB, ISAB, RFF, RFF_MEAN = "different: SAB and PMA", "different: ISAB and PMA", "different: rFF and PMA", "different: rFF and mean"
COST_SAB, COST_ISAB = "cost of SAB", "cost of ISAB"


def variant(options: SetsOptions, encoder: str, pool: str = "attention") -> TaskVariant:
    return TaskVariant(task=SetsTask, options=options, train=TRAIN, settings={"encoder": encoder, "pool": pool})


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Milliseconds of one block at each set size, and the exponent of their growth."""

    encoder: str

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        settings: dict[str, Any] = {"inputs": 2, "encoder": self.encoder, "depth": 1, "head": "item", "max_length": LENGTHS[-1]}
        (block,), times = build("set_transformer", settings).eval().encoder, {}  # type: ignore[misc]
        for length in LENGTHS:
            times[length] = milliseconds(partial(block, torch.randn(1, length, 64)), repeats=7)
        first, last = LENGTHS[-3], LENGTHS[-1]
        exponent = math.log(times[last] / times[first]) / math.log(last / first)
        return {"exponent": exponent, **{f"ms, length {length}": ms for length, ms in times.items()}}


LONGEST = f"ms, length {LENGTHS[-1]}"

recipe = Recipe(
    facts=RecipeFacts("set2019", 2019, "Set Transformer", "arXiv:1810.00825", "about 40 minutes"),
    question="What are attention between items and pooling by attention worth on sets, and what do inducing points save?",
    variants={
        ATTENTION: variant(LARGEST, "sab"),
        MEAN: variant(LARGEST, "rff", "mean"),
        MAX: variant(LARGEST, "rff", "max"),
        MEDIAN: BaselineVariant(task=SetsTask, options=LARGEST, name="median"),
        SAB: variant(DIFFERENT, "sab"),
        ISAB: variant(DIFFERENT, "isab"),
        RFF: variant(DIFFERENT, "rff"),
        RFF_MEAN: variant(DIFFERENT, "rff", "mean"),
        COST_SAB: Cost(encoder="sab"),
        COST_ISAB: Cost(encoder="isab"),
    },
    claims=(
        at_most("the largest number: SAB and PMA miss it by at most 0.3 on average", 0.3, (ATTENTION, "mae")),
        below("they miss it by less than mean pooling, by at least 0.7", (ATTENTION, "mae"), (MEAN, "mae"), by=0.7, source="table 1"),
        below("the maximum as pooling, which is the answer, misses it by less", (MAX, "mae"), (ATTENTION, "mae"), source="table 1"),
        below("mean pooling is better than the median", (MEAN, "mae"), (MEDIAN, "mae"), kind="control"),
        at_least("different points: SAB and PMA count at least 60 % right", 0.6, SAB),
        above("attention between items adds at least 10 points to PMA", SAB, RFF, 0.1, source="table 2"),
        above("SAB and PMA are above layers and mean pooling, by at least 10 points", SAB, RFF_MEAN, 0.1, source="table 2"),
        Claim("inducing points cost at most 5 points", measured(ISAB) - measured(SAB) >= -0.05, source="table 2"),
        between(
            "SAB: the exponent of the time in the size of the set is between 1.6 and 2.3", 1.6, 2.3, (COST_SAB, "exponent"), kind="control"
        ),
        between("ISAB: it is between 0.7 and 1.3", 0.7, 1.3, (COST_ISAB, "exponent"), kind="control"),
        Claim(
            "at 4,096 items ISAB takes at most a quarter of the time",
            measured(COST_ISAB, LONGEST) - measured(COST_SAB, LONGEST) * 0.25 <= 0,
        ),
    ),
    pictures=(
        *(
            Curves(
                metric="validation loss",
                file=f"validation_loss_{data}",
                x="step",
                y="absolute error, in standard deviations",
                title=f"Validation, {data}",
                among=data,
            )
            for data in ("largest", "different")
        ),
        Curves(metric="ms", file="cost", x="length", y="milliseconds", title="One block of width 64, forward pass", log="xy"),
    ),
)
