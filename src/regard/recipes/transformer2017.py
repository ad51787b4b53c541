"""A transformer without positions cannot tell order: the same model with and without them, and what heads and beams are worth.

Paper: Vaswani et al. 2017, "Attention is all you need", arXiv:1706.03762 (there English → German news, here number words → digits).
Run:   regard run transformer2017        Takes: see the report; three seeds of three variants.

English number words to digits, numbers below 10,000; width 64, 4 heads, 2 + 2 layers; equal steps for all.
"""

from __future__ import annotations

from typing import Any

from ..tasks import TranslationConfig
from ..train import AdamW, Budget, Every, InverseSquareRoot, TrainConfig
from ._base import Claim, Recipe, RecipeFacts
from ._trained import Trained

DATA = TranslationConfig(data="numbers:en-digits", tokens="words", vocab=200, joint=True, budget=2048, smoothing=0.1)
TRAIN = TrainConfig(
    budget=Budget(steps=500),
    optimizer=AdamW(betas=(0.9, 0.98)),
    schedule=InverseSquareRoot(peak=4e-3, warmup=100),
    every=Every(log=50, evaluate=250),
)
SIZE: dict[str, Any] = {"width": 64, "heads": 4, "depth": (2, 2), "hidden": 256, "dropout": 0.1}


def variant(**changes: Any) -> Trained:
    return Trained(config=DATA, train=TRAIN, model="transformer", settings=SIZE | changes, beams=(1, 4))


recipe = Recipe(
    facts=RecipeFacts(
        name="transformer2017", year=2017, title="Attention is all you need", paper="arXiv:1706.03762", takes="minutes on two CPU cores"
    ),
    question="What do positions, heads and beams do for a transformer?",
    variants={
        "transformer": variant(),
        "no positions": variant(position="none"),
        "one head": variant(heads=1),
    },
    claims=(
        Claim(
            "with positions at least 97 % of unseen numbers are right",
            lambda f: f["transformer", "exact match"].low >= 0.97,
            lambda f: str(f["transformer", "exact match"]),
        ),
        Claim(
            "without positions at most half",
            lambda f: f["no positions", "exact match"].high <= 0.5,
            lambda f: str(f["no positions", "exact match"]),
        ),
        Claim(
            "a beam of 4 finds translations at least as likely as the greedy ones",
            lambda f: f["transformer", "log-probability, beam 4"].mean >= f["transformer", "log-probability"].mean - 1e-6,
            lambda f: f"{f['transformer', 'log-probability, beam 4']} against {f['transformer', 'log-probability']}",
        ),
    ),
)
