"""Contributions of the parts of a transformer: positional encoding, heads, label smoothing, averaged parameters, beam search.

Paper: Vaswani et al. 2017, "Attention is all you need", arXiv:1706.03762, sections 5.4 and 6.1 and table 3 (there English → German
       news, here number words → digits).
Run:   regard run transformer2017        Takes: about fifteen minutes on two CPU cores; three seeds of six models, one evaluated three times.

Width 64, 2 + 2 layers, equal steps. The positional encoding is removed from a model trained on most numbers below 10,000; the rest is
compared on models trained on about 180 of them, so that there is room for improvement. All are evaluated on the same unseen numbers,
with the mean of the parameters at the last five evaluations, as in the paper.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..tasks import TranslationOptions
from ..train import TrainOptions
from ._engine import Claim, Recipe, RecipeFacts, Reevaluation, above, at_least, at_most, measured, validation_curves
from ._engine.variants import TranslationMetrics, TranslationVariant

MANY = TranslationOptions(
    data="numbers:en-digits", tokenizer="word", vocab_size=200, batch_tokens=2048, joint=True, label_smoothing=0.1, valid_sentences=50
)
FEW = replace(MANY, data="numbers:en-digits,count=200")
TRAIN = TrainOptions(steps=500, lr=4e-3, schedule="inverse-sqrt", warmup_steps=100, average=5, log_every=50, evaluate_every=50)
SIZE: dict[str, Any] = {"width": 64, "heads": 4, "depth": (2, 2), "hidden": 256, "dropout": 0.1}
METRICS = TranslationMetrics(test=MANY.data, parameters="average")


def variant(options: TranslationOptions, **changes: Any) -> TranslationVariant:
    return TranslationVariant(options=options, train=TRAIN, model="transformer", settings=SIZE | changes, evaluate=METRICS)


def few_above(text: str, other: str, metric: str) -> Claim:
    return above(text, ("few numbers", metric), (other, metric))


recipe = Recipe(
    facts=RecipeFacts("transformer2017", 2017, "Attention is all you need", "arXiv:1706.03762", "about fifteen minutes"),
    question="What do positions, heads, label smoothing, averaged parameters and beam search contribute to a transformer?",
    variants={
        "many numbers": variant(MANY),
        "many, no positions": variant(MANY, position="none"),
        "few numbers": variant(FEW),
        "few, last parameters": Reevaluation("few numbers", replace(METRICS, parameters="last")),
        "few, beam of 4": Reevaluation("few numbers", replace(METRICS, beam=4)),
        "few, 1 head": variant(FEW, heads=1),
        "few, 16 heads": variant(FEW, heads=16),
        "few, no label smoothing": variant(replace(FEW, label_smoothing=0.0)),
    },
    claims=(
        at_least("with positions at least 97 % of unseen numbers are right", 0.97, ("many numbers", "exact_match")),
        at_most("without positions at most half", 0.5, ("many, no positions", "exact_match")),
        few_above("four heads have a higher exact match than one", "few, 1 head", "exact_match"),
        few_above("four heads have a higher exact match than sixteen of a quarter of their size", "few, 16 heads", "exact_match"),
        few_above("label smoothing makes the references less likely: a higher loss", "few, no label smoothing", "loss"),
        few_above("and yet a higher exact match", "few, no label smoothing", "exact_match"),
        few_above("the mean of the last five parameters has a higher exact match than the last", "few, last parameters", "exact_match"),
        Claim(
            "a beam of 4 finds likelier translations than greedy decoding does",
            measured("few, beam of 4", "log_probability") - measured("few numbers", "log_probability") >= 0,
            kind="control",
        ),
    ),
    pictures=(validation_curves("loss"),),
)
