"""What the parts of a transformer are worth: positions, heads, smoothed labels, averaged weights, a beam.

Paper: Vaswani et al. 2017, "Attention is all you need", arXiv:1706.03762, sections 5.4 and 6.1 and table 3 (there English → German
       news, here number words → digits).
Run:   regard run transformer2017        Takes: see the report; three seeds of six models, one of them judged in three ways.

Width 64, 2 + 2 layers, equal steps. Positions are taken away from a model that has seen most numbers below 10,000; the rest is
compared on models that have seen some 180 of them, so that something is left to win. All are judged on the same unseen numbers,
with the mean of the last five weights, as the paper does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..tasks import TranslationConfig
from ..train import AdamW, Budget, Every, InverseSquareRoot, TrainConfig
from ._base import Again, Claim, Recipe, RecipeFacts
from ._pictures import learning
from ._trained import Judged, Trained

MANY = TranslationConfig(data="numbers:en-digits", tokens="words", vocab=200, joint=True, budget=2048, smoothing=0.1, judged=50)
FEW = replace(MANY, data="numbers:en-digits,count=200")
TRAIN = TrainConfig(
    budget=Budget(steps=500),
    optimizer=AdamW(betas=(0.9, 0.98)),
    schedule=InverseSquareRoot(peak=4e-3, warmup=100),
    every=Every(log=50, evaluate=50),
    average=5,
)
SIZE: dict[str, Any] = {"width": 64, "heads": 4, "depth": (2, 2), "hidden": 256, "dropout": 0.1}
JUDGE = Judged(test=MANY.data, weights="average")


def variant(data: TranslationConfig, **changes: Any) -> Trained:
    return Trained(config=data, train=TRAIN, model="transformer", settings=SIZE | changes, judge=JUDGE)


def better(says: str, one: str, other: str, figure: str) -> Claim:
    """Of two variants the first has more, on average over the seeds, each compared with its like."""
    return Claim(
        says,
        lambda f: (f[one, figure] - f[other, figure]).mean > 0,
        lambda f: f"{figure} {f[one, figure]} against {f[other, figure]}",
    )


recipe = Recipe(
    facts=RecipeFacts(
        name="transformer2017", year=2017, title="Attention is all you need", paper="arXiv:1706.03762", takes="minutes on two CPU cores"
    ),
    question="What do positions, heads, smoothed labels, averaged weights and beams do for a transformer?",
    variants={
        "many numbers": variant(MANY),
        "many, no positions": variant(MANY, position="none"),
        "few numbers": variant(FEW),
        "few, last weights": Again("few numbers", replace(JUDGE, weights="last")),
        "few, beam of 4": Again("few numbers", replace(JUDGE, beam=4)),
        "few, 1 head": variant(FEW, heads=1),
        "few, 16 heads": variant(FEW, heads=16),
        "few, labels not smoothed": variant(replace(FEW, smoothing=0.0)),
    },
    claims=(
        Claim(
            "with positions at least 97 % of unseen numbers are right",
            lambda f: f["many numbers", "exact match"].low >= 0.97,
            lambda f: str(f["many numbers", "exact match"]),
        ),
        Claim(
            "without positions at most half",
            lambda f: f["many, no positions", "exact match"].high <= 0.5,
            lambda f: str(f["many, no positions", "exact match"]),
        ),
        better("four heads are better than one", "few numbers", "few, 1 head", "exact match"),
        better("four heads are better than sixteen of a quarter of their size", "few numbers", "few, 16 heads", "exact match"),
        better("smoothed labels make the right answers less likely: more nats", "few numbers", "few, labels not smoothed", "nats a token"),
        better("and yet more answers are right", "few numbers", "few, labels not smoothed", "exact match"),
        Claim(
            "the mean of the last five weights is at least as good as the last",
            lambda f: (f["few numbers", "exact match"] - f["few, last weights", "exact match"]).mean >= 0,
            lambda f: f"exact match {f['few numbers', 'exact match']} against {f['few, last weights', 'exact match']}",
        ),
        Claim(
            "a beam of 4 finds translations at least as likely as the greedy ones",
            lambda f: f["few, beam of 4", "log-probability"].mean >= f["few numbers", "log-probability"].mean - 1e-6,
            lambda f: f"{f['few, beam of 4', 'log-probability']} against {f['few numbers', 'log-probability']}",
        ),
    ),
    pictures=(learning,),
)
