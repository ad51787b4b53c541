"""Four scores and two windows under equal conditions: a window that moves with time cannot reverse a sequence, a predicted one can.

Paper: Luong, Pham & Manning 2015, "Effective approaches to attention-based neural machine translation", arXiv:1508.04025, sections 3
       and 5 (there English → German news, here digits to copy or to reverse).
Run:   regard run luong2015        Takes: about half an hour on two CPU cores; three seeds of eighteen small models, equal steps.

Ten to sixteen random digits; GRUs of 64, the source read backwards, windows of three to either side. Copying follows the diagonal
of the alignment matrix, reversing the antidiagonal. Input feeding is tried on English number words to German morphemes, where words occur
twice in a sentence.
"""

from __future__ import annotations

from typing import Any

from ..tasks import TranslationOptions
from ..train import TrainOptions
from ._engine import Alignments, Claim, Recipe, RecipeFacts, above, at_least, at_most, measured, validation_curves
from ._engine.variants import TranslationVariant

TRAIN = TrainOptions(steps=300, lr=5e-3, schedule="inverse-sqrt", warmup_steps=50, average=0, log_every=50, evaluate_every=50)
SIZE: dict[str, Any] = {"embedding": 32, "width": 64, "depth": 1, "cell": "gru", "dropout": 0.0}
DATA = {"copy": "copy:10-16", "reverse": "reverse:10-16", "numbers": "numbers:en-de_parts,list=2,count=6000"}
TASKS = ("copy", "reverse")
MECHANISMS: dict[str, dict[str, Any]] = {
    "dot": {"attention": "dot"},
    "general": {"attention": "general"},
    "concat": {"attention": "concat"},
    "location": {"attention": "location", "max_length": 32},
    "local-m": {"attention": "local_monotonic", "radius": 3},
    "local-p": {"attention": "local_predictive", "radius": 3},
    "local-p general": {"attention": "local_predictive_general", "radius": 3},
}


def variant(task: str, model: str = "luong", **settings: Any) -> TranslationVariant:
    options = TranslationOptions(
        data=DATA[task], tokenizer="word", vocab_size=200, joint=False, batch_tokens=2048, label_smoothing=0.0, valid_sentences=50
    )
    return TranslationVariant(options=options, train=TRAIN, model=model, settings=SIZE | settings)


def learns(task: str, *names: str) -> Claim:
    text = f"{', '.join(names)}: at least 95 % of the tokens right when trained to {task}"
    return at_least(text, 0.95, *(f"{task}, {name}" for name in names))


def fails(variant: str) -> Claim:
    return at_most(f"{variant}: at most half of the tokens right", 0.5, variant)


def higher_loss(task: str, worse: str, better: str, source: str = "") -> Claim:
    text = f"{task}: {worse} has a higher loss than {better}"
    return above(text, (f"{task}, {worse}", "loss"), (f"{task}, {better}", "loss"), source=source)


recipe = Recipe(
    facts=RecipeFacts(
        "luong2015", 2015, "Effective approaches to attention-based neural machine translation", "arXiv:1508.04025", "about half an hour"
    ),
    question="Which score, and which window, can follow the order of the source, and which can reverse it?",
    variants={
        **{f"{task}, {name}": variant(task, **settings) for task in TASKS for name, settings in MECHANISMS.items()},
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
            "reverse: local-m, whose window moves the other way, is at least 30 points below local-p, and no whole sequence is right",
            measured("reverse, local-m") - measured("reverse, local-p") <= -0.3,
            measured("reverse, local-m", "exact_match") <= 0.01,
        ),
        fails("copy, no attention"),
        fails("reverse, no attention"),
        higher_loss("reverse", "location", "general"),
        higher_loss("reverse", "concat", "general"),
        higher_loss("reverse", "local-p", "local-p general", "table 4"),
        higher_loss("numbers", "general without feeding", "general"),
    ),
    pictures=(
        Alignments(
            variants=tuple(f"{task}, {name}" for task in TASKS for name in MECHANISMS),
            sentence="3 1 4 1 5 9 2 6 5 3 5 8",
            columns=len(MECHANISMS),
        ),
        *(validation_curves("loss", task) for task in DATA),
    ),
)
