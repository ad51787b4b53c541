"""Attention removes the length bottleneck: a translator that looks back keeps its quality where a thought vector loses it.

Paper: Bahdanau et al. 2014, "Neural machine translation by jointly learning to align and translate", arXiv:1409.0473, figure 2.
Run:   regard run bahdanau2014        Takes: see the report; three seeds of two models, equal steps.

Lists of one to three numbers, English words to German morphemes; judged on lists of up to six, by the length of the source.
No number of the test is in any list of the training.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..tasks import TranslationConfig
from ..train import AdamW, Budget, Every, InverseSquareRoot, TrainConfig
from ._base import Claim, Figures, Recipe, RecipeFacts, folder
from ._pictures import alignments, learning, lines, series
from ._trained import Judged, Trained

DATA = TranslationConfig(data="numbers:en-de_parts,list=3,count=12000", tokens="words", vocab=200, budget=2048, joint=False)
TEST = "numbers:en-de_parts,list=6,count=4000,seed=1"
TRAIN = TrainConfig(
    budget=Budget(steps=600),
    optimizer=AdamW(betas=(0.9, 0.98)),
    schedule=InverseSquareRoot(peak=3e-3, warmup=100),
    every=Every(log=50, evaluate=150),
)


def variant(model: str, **settings: Any) -> Trained:
    return Trained(config=DATA, train=TRAIN, model=model, settings=settings, judge=Judged(test=TEST, pairs=600))


def curves(figures: Figures, out: Path) -> Path:
    points = series(figures, "BLEU")
    return lines(out / "by_length.png", points, x="source words, up to", y="BLEU", title="Quality by length of the sentence")


def looks(figures: Figures, out: Path) -> Path:
    runs = {"RNNsearch": folder(out, "RNNsearch", figures.seeds[0])}
    return alignments(out / "alignment.png", runs, "four thousand, three hundred and twenty-one; fifty-six", columns=1)


SHORT, LONG = "exact match, 1–6 words", "exact match, 13–18 words"

recipe = Recipe(
    facts=RecipeFacts(
        name="bahdanau2014",
        year=2014,
        title="Neural machine translation by jointly learning to align and translate",
        paper="arXiv:1409.0473",
        takes="minutes on two CPU cores",
    ),
    question="Does looking back at the source keep quality where one vector loses it?",
    variants={
        "RNNsearch": variant("rnnsearch", embedding=96, width=128, alignment=96, maxout=64),
        "thought vector": variant("seq2seq", embedding=96, width=192, depth=1, cell="gru", bidirectional=True),
    },
    claims=(
        Claim(
            "with attention at least 95 % of the short sentences are right",
            lambda f: f["RNNsearch", SHORT].low >= 0.95,
            lambda f: str(f["RNNsearch", SHORT]),
        ),
        Claim(
            "from 13 words on the thought vector is at least 30 points lower",
            lambda f: f["RNNsearch", LONG].low - f["thought vector", LONG].high >= 0.3,
            lambda f: f"{f['RNNsearch', LONG]} against {f['thought vector', LONG]}",
        ),
    ),
    pictures=(curves, learning, looks),
)
