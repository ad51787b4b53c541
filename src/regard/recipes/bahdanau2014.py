"""Attention removes the length bottleneck: a translator that attends to the source keeps its quality where a thought vector loses it.

Paper: Bahdanau et al. 2014, "Neural machine translation by jointly learning to align and translate", arXiv:1409.0473, figure 2.
Run:   regard run bahdanau2014        Takes: about 9 minutes on two CPU cores; three seeds of two models, equal steps.

Lists of one to three numbers, English words to German morphemes; evaluated on lists of up to six, by the length of the source.
No number of the test lists is in any training list.
"""

from __future__ import annotations

from typing import Any

from ..tasks import TranslationOptions
from ..train import TrainOptions
from ._engine import Alignments, Claim, Curves, Recipe, RecipeFacts, at_least, measured, validation_curves
from ._engine.variants import TranslationMetrics, TranslationVariant

DATA = TranslationOptions(
    data="numbers:en-de_parts,list=3,count=12000",
    tokenizer="word",
    vocab_size=200,
    batch_tokens=2048,
    joint=False,
    label_smoothing=0.1,
    valid_sentences=200,
)
TEST = "numbers:en-de_parts,list=6,count=4000,seed=1"
TRAIN = TrainOptions(steps=600, lr=3e-3, schedule="inverse-sqrt", warmup_steps=100, average=0, log_every=50, evaluate_every=150)
SHORT, LONG = "exact_match, 1–6 words", "exact_match, 13–18 words"


def variant(model: str, **settings: Any) -> TranslationVariant:
    return TranslationVariant(options=DATA, train=TRAIN, model=model, settings=settings, evaluate=TranslationMetrics(test=TEST, pairs=600))


recipe = Recipe(
    facts=RecipeFacts(
        "bahdanau2014", 2014, "Neural machine translation by jointly learning to align and translate", "arXiv:1409.0473", "about 9 minutes"
    ),
    question="Does attention to the source keep the quality of long translations where a single vector loses it?",
    variants={
        "RNNsearch": variant("rnnsearch", embedding=96, width=128, alignment=96, maxout=64),
        "thought vector": variant("seq2seq", embedding=96, width=192, depth=1, cell="gru", bidirectional=True),
    },
    claims=(
        at_least("with attention at least 95 % of the short sentences are right", 0.95, ("RNNsearch", SHORT)),
        Claim(
            "from 13 words on the thought vector is at least 30 points lower",
            measured("RNNsearch", LONG) - measured("thought vector", LONG) >= 0.3,
            source="figure 2",
        ),
    ),
    pictures=(
        Curves(metric="bleu", file="by_length", x="source words, up to", y="BLEU", title="Quality by sentence length"),
        validation_curves("loss"),
        Alignments(variants=("RNNsearch",), sentence="four thousand, three hundred and twenty-one; fifty-six", columns=1),
    ),
)
