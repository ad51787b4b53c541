"""Words that were never seen are translated in pieces: a vocabulary of words cannot write them at all, one of characters must write more of them.

Paper: Sennrich, Haddow & Birch 2016, "Neural machine translation of rare words with subword units", arXiv:1508.07909, section 3.2 and table 2 (there
       news from English to German, whose compounds it translates).
Run:   regard run bpe2016        Takes: a quarter of an hour on one CPU core; three seeds of three small models.

English number words to German ones, which are compounds: 3,236 numbers below 10,000 are learned, and the German word of none of 170 others is one of theirs. A
transformer of two layers and width 64, 600 steps. Pieces are bytes and 200 merges of them, for both languages; the ablation has no merges, and the rival
is a vocabulary of all words of the training data.
"""

from __future__ import annotations

from typing import Any, Literal

from ..tasks import TranslationOptions
from ._engine import Claim, Recipe, RecipeFacts, above, at_least, at_most, measured, validation_curves
from ._engine.variants import TranslationMetrics, TranslationVariant, short_training

DATA = "numbers:en-de,count=3600"
SIZE: dict[str, Any] = {"width": 64, "heads": 4, "depth": (2, 2), "hidden": 128, "dropout": 0.0}
PIECES, CHARACTERS, WORDS = "pieces", "characters", "words"


def variant(tokenizer: Literal["bpe", "char", "word"], vocab_size: int) -> TranslationVariant:
    options = TranslationOptions(data=DATA, tokenizer=tokenizer, vocab_size=vocab_size, batch_tokens=2048, valid_sentences=50)
    train = short_training(600, 3e-3, "adamw", evaluations=4)
    return TranslationVariant(options=options, train=train, model="transformer", settings=SIZE, evaluate=TranslationMetrics(pairs=300))


recipe = Recipe(
    facts=RecipeFacts(
        "bpe2016",
        2016,
        "Neural machine translation of rare words with subword units",
        "arXiv:1508.07909",
        "a quarter of an hour",
    ),
    question="Can a translator write compounds that it has never seen?",
    variants={PIECES: variant("bpe", 460), CHARACTERS: variant("char", 200), WORDS: variant("word", 10_000)},
    claims=(
        at_least("pieces: at least 80 % of the unseen compounds are right", 0.8, (PIECES, "exact_match")),
        at_most("words: none, as none of them is in the vocabulary", 0.0, (WORDS, "exact_match"), kind="control"),
        above("after equal steps pieces are above characters", (PIECES, "exact_match"), (CHARACTERS, "exact_match")),
        Claim(
            "pieces are at least 50 points above words",
            measured(PIECES, "exact_match") - measured(WORDS, "exact_match") >= 0.5,
            source="table 2",
        ),
    ),
    pictures=(validation_curves("loss"),),
)
