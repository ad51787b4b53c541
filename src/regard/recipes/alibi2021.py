"""Trained on short texts, a penalty on the distance goes on working on long ones; sinusoids, and positions that were never seen, do not.

Paper: Press, Smith & Lewis 2021, "Train short, test long", arXiv:2108.12409, figure 1 and section 2.2 (there 512 tokens of WikiText-103).
Run:   regard run alibi2021        Takes: a quarter of an hour on one CPU core; three seeds of six small models.

Characters of CPython's documentation, in windows of 64 for training and of 256 for the test; two layers of width 64 with 4 heads. Loss beyond
is that of the 129th to the 256th character, loss within that of the 33rd to the 64th. The table of learned positions has 256 rows, of which
training reaches 64. `T5` is a learned bias per range of distances.
"""

from __future__ import annotations

from functools import partial

from ..layers import ALiBi, Buckets, Learned, Rotary, Sinusoidal
from ._engine import Claim, Curves, Recipe, RecipeFacts, Value, validation_curves
from ._engine.stacks import Heads, puzzle_training
from ._engine.text_stacks import TextStackVariant, loss

WIDTH, HEADS, LONGEST = 64, 4, 256
TRAIN = puzzle_training(800)
SINUSOIDAL, LEARNED, ROTARY, T5, ALIBI, NONE = "sinusoidal", "learned", "rotary", "T5", "ALiBi", "no positions"


def heads(**options: object) -> Heads:
    return Heads(width=WIDTH, heads=HEADS, **options)  # type: ignore[arg-type]


VARIANTS = {
    SINUSOIDAL: TextStackVariant(mixer=heads(), added=partial(Sinusoidal, WIDTH), train=TRAIN),
    LEARNED: TextStackVariant(mixer=heads(), added=partial(Learned, LONGEST, WIDTH), train=TRAIN),
    ROTARY: TextStackVariant(mixer=heads(position=Rotary), train=TRAIN),
    T5: TextStackVariant(mixer=heads(position=partial(Buckets, HEADS, causal=True)), train=TRAIN),
    ALIBI: TextStackVariant(mixer=heads(position=partial(ALiBi, HEADS)), train=TRAIN),
    NONE: TextStackVariant(mixer=heads(), train=TRAIN),
}


def within(name: str) -> Value:
    return loss(name, 33, 64)


def beyond(name: str) -> Value:
    return loss(name, 129, 256)


recipe = Recipe(
    facts=RecipeFacts("alibi2021", 2021, "Train short, test long", "arXiv:2108.12409", "a quarter of an hour"),
    question="Which positional encodings work on texts four times as long as those of training?",
    variants=VARIANTS,
    claims=(
        Claim("ALiBi: the loss beyond is at most 0.02 nats above that within", beyond(ALIBI) - within(ALIBI) <= 0.02, source="figure 1"),
        Claim(
            "sinusoidal: the loss beyond is at least 0.2 nats above that within", beyond(SINUSOIDAL) - within(SINUSOIDAL) >= 0.2, source="figure 1"
        ),
        Claim(
            "beyond, ALiBi is below T5's bias, and T5's below rotary; up to twice the length rotary is below sinusoidal",
            beyond(T5) - beyond(ALIBI) >= 0,
            beyond(ROTARY) - beyond(T5) >= 0,
            loss(SINUSOIDAL, 65, 128) - loss(ROTARY, 65, 128) >= 0,
            source="figure 1",
        ),
        Claim(
            "learned positions, of which most were never trained: the loss beyond is at least 0.2 nats above that within",
            beyond(LEARNED) - within(LEARNED) >= 0.2,
            kind="control",
        ),
        Claim(
            "within: ALiBi is at most 0.02 nats above sinusoidal, and at least 0.05 below no positions",
            within(ALIBI) - within(SINUSOIDAL) <= 0.02,
            within(NONE) - within(ALIBI) >= 0.05,
            source="section 4.1",
        ),
    ),
    pictures=(
        Curves(metric="loss", file="contexts", x="characters read", y="loss per character (nats)", title="Loss by context", log="x"),
        validation_curves("accuracy"),
    ),
)  # fmt: skip
