"""A sum of outer products stores few associations and overwrites none; softmax keeps them apart, the delta rule overwrites them.

Paper: Schlag, Irie & Schmidhuber 2021, "Linear transformers are secretly fast weight programmers", arXiv:2102.11174, section 6.1 (there
       random vectors, here symbols, and the mechanisms that came after).
Run:   regard run recall2021        Takes: about an hour on one CPU core; three seeds of fourteen small models.

Recall: sixteen keys with values, then the keys in another order. Overwrite: eight keys written twice, the last value counts. Two layers,
two heads of 16, no positional encoding; a short convolution before every mechanism gives it the token before. Retention, gated linear attention
and the delta rule are tried with and without the norm per head and the gate of their layers (`GatedHeads`): the norm lets retention learn, and
keeps the delta rule, whose queries and keys are normed already, from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import nn

from ..attention import Attention, DeltaNet, GatedLinearAttention, LinearAttention, LocalAttention, Performer, Retention, SoftmaxAttention
from ..layers import GatedHeads
from ..patterns import causal
from ._engine import AttentionMaps, Recipe, RecipeFacts, above, at_least, at_most, below, measured, validation_curves
from ._engine.puzzles import Recall
from ._engine.stacks import HEADS, WIDTH, Heads, StackVariant, puzzle_training

HEAD_DIM = WIDTH // HEADS
PUZZLES = {"recall": Recall(pairs=16), "overwrite": Recall(pairs=8, times=2)}
TRAIN = puzzle_training(1500)
NORMED = ("retention", "gated linear", "delta")
LINEAR = 0.5  # accuracy of a linear attention that has learned; a value at random is one of 16
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


@dataclass(frozen=True, kw_only=True)
class Gated:
    """A factory of heads with a norm per head and a gate, called once per block."""

    heads: Heads

    def __call__(self) -> nn.Module:
        return GatedHeads(self.heads())  # type: ignore[arg-type]


def variant(task: str, name: str, gated: bool = False) -> StackVariant:
    heads = Heads(attention=MECHANISMS[name])
    mixer = Gated(heads=heads) if gated else heads
    return StackVariant(puzzle=PUZZLES[task], mixer=mixer, convolution=3, pattern=causal, positions=False, train=TRAIN)


VARIANTS = {f"{task}, {name}": variant(task, name) for task, names in TRIED.items() for name in names}
VARIANTS |= {f"recall, {name}, normed and gated": variant("recall", name, gated=True) for name in NORMED}
DRAWN = [f"{task}, {name}" for task in PUZZLES for name in ("softmax", "linear", "delta")]


recipe = Recipe(
    facts=RecipeFacts("recall2021", 2021, "Linear transformers are secretly fast weight programmers", "arXiv:2102.11174", "about an hour"),
    question="Which mechanism finds the value written under a key, and which when it was overwritten?",
    variants=VARIANTS,
    claims=(
        at_least("recall: softmax at least 99 % right", 0.99, "recall, softmax"),
        below(
            "recall: linear, whose state is as wide as a head, is below softmax",
            "recall, linear",
            "recall, softmax",
            source="section 6.1.1",
            learned=(measured("recall, linear") >= LINEAR,),
        ),
        above("recall: delta is above linear", "recall, delta", "recall, linear", learned=(measured("recall, linear") >= LINEAR,)),
        at_most("recall: a window of 4, which reaches few of the pairs, at most half", 0.5, "recall, window", kind="control"),
        at_least("overwrite: delta at least 95 % right", 0.95, "overwrite, delta"),
        above(
            "overwrite: delta is at least 10 points above linear, which adds",
            "overwrite, delta",
            "overwrite, linear",
            0.1,
            source="section 6.1.2",
            learned=(measured("overwrite, linear") >= LINEAR,),
        ),
    ),
    pictures=(
        validation_curves("accuracy", "recall"),
        validation_curves("accuracy", "overwrite"),
        AttentionMaps(variants={name: VARIANTS[name] for name in DRAWN}, columns=3),
    ),
)
