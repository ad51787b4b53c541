"""Four scores and two windows under equal conditions: a window that moves with time cannot turn a sequence round, a predicted one can.

Paper: Luong, Pham & Manning 2015, "Effective approaches to attention-based neural machine translation", arXiv:1508.04025, sections 3
       and 5 (there English → German news, here digits to copy or to turn round).
Run:   regard run luong2015        Takes: see the report; three seeds of sixteen small models, equal steps.

Ten to sixteen random digits; GRUs of 64, a source read backwards, windows of three to either side. Copying goes along the diagonal
of the alignment matrix, reversing across it. Feeding the last look back in is tried on English number words to German morphemes, where
words come twice in a sentence.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from ..tasks import TranslationConfig
from ..train import AdamW, Budget, Every, InverseSquareRoot, TrainConfig
from ._base import Claim, Figures, Recipe, RecipeFacts, folder
from ._pictures import alignments, learning
from ._trained import Trained

TRAIN = TrainConfig(
    budget=Budget(steps=300),
    optimizer=AdamW(betas=(0.9, 0.98)),
    schedule=InverseSquareRoot(peak=5e-3, warmup=50),
    every=Every(log=50, evaluate=50),
)
SIZE: dict[str, Any] = {"embedding": 32, "width": 64, "depth": 1, "cell": "gru", "dropout": 0.0}
DATA = {"copy": "copy:10-16", "reverse": "reverse:10-16", "numbers": "numbers:en-de_parts,list=2,count=6000"}
TASKS = ("copy", "reverse")
LOOKS: dict[str, dict[str, Any]] = {
    "dot": {"attention": "dot"},
    "general": {"attention": "general"},
    "concat": {"attention": "concat"},
    "location": {"attention": "location", "length": 32},
    "local-m": {"attention": "local_monotonic", "radius": 3},
    "local-p": {"attention": "local_predictive", "radius": 3},
}


def variant(task: str, model: str = "luong", **settings: Any) -> Trained:
    data = TranslationConfig(data=DATA[task], tokens="words", vocab=200, joint=False, budget=2048, smoothing=0.0, judged=50)
    return Trained(config=data, train=TRAIN, model=model, settings=SIZE | settings)


def looks(figures: Figures, out: Path) -> Path:
    runs = {f"{task}, {name}": folder(out, f"{task}, {name}", figures.seeds[0]) for task in TASKS for name in LOOKS}
    return alignments(out / "alignments.png", runs, "3 1 4 1 5 9 2 6 5 3 5 8", columns=len(LOOKS))


TOKENS, NATS = "token accuracy", "nats a token"


def learns(task: str, *names: str) -> Claim:
    told = {"copy": "to copy", "reverse": "to turn round"}[task]
    return Claim(
        f"{', '.join(names)}: at least 95 % of the tokens right when taught {told}",
        lambda f: all(f[f"{task}, {name}", TOKENS].low >= 0.95 for name in names),
        lambda f: "; ".join(str(f[f"{task}, {name}", TOKENS]) for name in names),
    )


def fails(task: str, name: str) -> Claim:
    return Claim(
        f"{task}, {name}: at most half of the tokens right",
        lambda f: f[f"{task}, {name}", TOKENS].high <= 0.5,
        lambda f: str(f[f"{task}, {name}", TOKENS]),
    )


def loses(task: str, worse: str, better: str) -> Claim:
    """On average over the seeds, each compared with its like."""
    return Claim(
        f"{task}: {worse} needs more nats a token than {better}",
        lambda f: (f[f"{task}, {worse}", NATS] - f[f"{task}, {better}", NATS]).mean > 0,
        lambda f: f"{f[f'{task}, {worse}', NATS]} against {f[f'{task}, {better}', NATS]}",
    )


recipe = Recipe(
    facts=RecipeFacts(
        name="luong2015",
        year=2015,
        title="Effective approaches to attention-based neural machine translation",
        paper="arXiv:1508.04025",
        takes="some ten minutes on two CPU cores",
    ),
    question="Which score, and which window, can follow the order of the source, and which can turn it round?",
    variants={
        **{f"{task}, {name}": variant(task, **look) for task in TASKS for name, look in LOOKS.items()},
        **{f"{task}, no attention": variant(task, "seq2seq") for task in TASKS},
        "numbers, general": variant("numbers", attention="general"),
        "numbers, general without feeding": variant("numbers", attention="general", feeding=False),
    },
    claims=(
        learns("copy", "dot", "general", "concat", "location"),
        learns("reverse", "dot", "general", "concat"),
        learns("copy", "local-m", "local-p"),
        learns("reverse", "local-p"),
        Claim(
            "reverse: local-m, whose window goes the other way, is at least 30 points below local-p, and no whole sequence is right",
            lambda f: (
                f["reverse, local-p", TOKENS].low - f["reverse, local-m", TOKENS].high >= 0.3
                and f["reverse, local-m", "exact match"].high < 0.01
            ),
            lambda f: f"{f['reverse, local-m', TOKENS]} against {f['reverse, local-p', TOKENS]}",
        ),
        fails("copy", "no attention"),
        fails("reverse", "no attention"),
        loses("reverse", "location", "general"),
        loses("reverse", "concat", "general"),
        loses("numbers", "general without feeding", "general"),
    ),
    pictures=(looks, *(partial(learning, among=task) for task in DATA)),
)
