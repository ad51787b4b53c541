"""A sum of outer products stores few associations and overwrites none; softmax keeps them apart, the delta rule overwrites them.

Paper: Schlag, Irie & Schmidhuber 2021, "Linear transformers are secretly fast weight programmers", arXiv:2102.11174, section 6.1 (there
       random vectors, here symbols, and the mechanisms that came after).
Run:   regard run recall2021        Takes: about fifteen minutes on two CPU cores; three seeds of eleven small models.

Recall: sixteen keys with values, then the keys in another order. Overwrite: eight keys written twice, the last value counts. Two layers,
two heads of 16, no positional encoding; a short convolution before every mechanism gives it the token before. Overwriting is slow to
learn: after 600 steps delta had 75 % right and linear 66, after 1,500 delta has 99 and linear more than the claim allows it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..attention import Attention, DeltaNet, GatedLinearAttention, LinearAttention, LocalAttention, Performer, Retention, SoftmaxAttention
from ..patterns import causal
from ._engine import AttentionMaps, Recipe, RecipeFacts, at_least, at_most, below, validation_curves
from ._engine.puzzles import Recall
from ._engine.stacks import HEADS, WIDTH, Heads, StackVariant, puzzle_training

HEAD_DIM = WIDTH // HEADS
PUZZLES = {"recall": Recall(pairs=16), "overwrite": Recall(pairs=8, times=2)}
STEPS = {"recall": 600, "overwrite": 1500}
MECHANISMS: dict[str, Callable[[], Attention]] = {
    "softmax": SoftmaxAttention,
    "linear": LinearAttention,
    "performer": partial(Performer, head_dim=HEAD_DIM, num_features=64),
    "retention": Retention,
    "gated linear": partial(GatedLinearAttention, head_dim=HEAD_DIM),
    "delta": DeltaNet,
    "window": partial(LocalAttention, 4),
}
TRIED = {"recall": tuple(MECHANISMS), "overwrite": ("softmax", "linear", "gated linear", "delta")}


def variant(task: str, name: str) -> StackVariant:
    heads, train = Heads(attention=MECHANISMS[name]), puzzle_training(STEPS[task])
    return StackVariant(puzzle=PUZZLES[task], mixer=heads, convolution=3, pattern=causal, positions=False, train=train)


VARIANTS = {f"{task}, {name}": variant(task, name) for task, names in TRIED.items() for name in names}
DRAWN = [f"{task}, {name}" for task in PUZZLES for name in ("softmax", "linear", "delta")]


recipe = Recipe(
    facts=RecipeFacts(
        "recall2021", 2021, "Linear transformers are secretly fast weight programmers", "arXiv:2102.11174", "about fifteen minutes"
    ),
    question="Which mechanism finds the value written under a key, and which when it was overwritten?",
    variants=VARIANTS,
    claims=(
        at_least("recall: softmax at least 99 % right", 0.99, "recall, softmax"),
        below("recall: linear, whose state is as wide as a head, is below softmax", "recall, linear", "recall, softmax"),
        below("recall: retention, whose decay ignores content, is below delta", "recall, retention", "recall, delta"),
        at_most("recall: a window of 4, which reaches few of the pairs, at most half", 0.5, "recall, window", kind="control"),
        at_least("overwrite: delta at least 95 % right", 0.95, "overwrite, delta"),
        at_most("overwrite: linear, which adds, at most 70 %", 0.7, "overwrite, linear"),
    ),
    pictures=(
        validation_curves("accuracy", "recall"),
        validation_curves("accuracy", "overwrite"),
        AttentionMaps(variants={name: VARIANTS[name] for name in DRAWN}, columns=3),
    ),
)
