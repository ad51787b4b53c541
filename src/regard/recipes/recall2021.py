"""A sum of outer products holds few things and overwrites none; softmax keeps them apart, the delta rule writes over them.

Paper: Schlag, Irie & Schmidhuber 2021, "Linear transformers are secretly fast weight programmers", arXiv:2102.11174, section 6.1 (there
       random vectors, here symbols, and the mechanisms that came after).
Run:   regard run recall2021        Takes: some minutes on two CPU cores; three seeds of eleven small models.

Recall: sixteen keys with values, then the keys in another order. Overwrite: eight keys written twice, the last value counts. Two layers,
two heads of 16, no places; a short convolution before every mechanism shows it the token before. Where a mechanism has no
denominator a norm a head and a gate follow it, as in its paper. Overwriting takes its time to learn: after 600 steps delta had 75 % right and
linear 66, after 1,500 delta has 99 and linear more than the claim allows it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from ..attention import Attention, DeltaNet, GatedLinearAttention, LinearAttention, LocalAttention, Performer, Retention, SoftmaxAttention
from ..patterns import causal
from ._base import Claim, Figures, Recipe, RecipeFacts, folder
from ._pictures import looks, solving
from ._puzzles import Recall
from ._sequences import HEADS, WIDTH, Heads, Taught, training

SIZE = WIDTH // HEADS
PUZZLES = {"recall": Recall(pairs=16), "overwrite": Recall(pairs=8, times=2)}
LOOKS: dict[str, Callable[[], Attention]] = {
    "softmax": SoftmaxAttention,
    "linear": LinearAttention,
    "performer": partial(Performer, width=SIZE, features=64),
    "retention": Retention,
    "gated linear": partial(GatedLinearAttention, SIZE),
    "delta": DeltaNet,
    "window": partial(LocalAttention, 4),
}
TRIED = {"recall": tuple(LOOKS), "overwrite": ("softmax", "linear", "gated linear", "delta")}


def variant(task: str, name: str) -> Taught:
    heads = Heads(attention=LOOKS[name], near=3)
    steps = {"recall": 600, "overwrite": 1500}[task]
    return Taught(puzzle=PUZZLES[task], mixer=heads, pattern=causal, places=False, train=training(steps))


VARIANTS = {f"{task}, {name}": variant(task, name) for task, names in TRIED.items() for name in names}


def maps(figures: Figures, out: Path) -> Path:
    names = [f"{task}, {name}" for task in PUZZLES for name in ("softmax", "linear", "delta")]
    return looks(out / "looks.png", {name: VARIANTS[name].look(folder(out, name, figures.seeds[0])) for name in names}, columns=3)


recipe = Recipe(
    facts=RecipeFacts(
        name="recall2021",
        year=2021,
        title="Linear transformers are secretly fast weight programmers",
        paper="arXiv:2102.11174",
        takes="some fifteen minutes on two CPU cores",
    ),
    question="Which mechanism finds what was written under a key, and which when it was written twice?",
    variants=VARIANTS,
    claims=(
        Claim(
            "recall: softmax at least 99 % right",
            lambda f: f["recall, softmax", "accuracy"].low >= 0.99,
            lambda f: str(f["recall, softmax", "accuracy"]),
        ),
        Claim(
            "recall: linear, whose sums are no wider than a head, is below softmax",
            lambda f: (f["recall, softmax", "accuracy"] - f["recall, linear", "accuracy"]).mean > 0,
            lambda f: f"{f['recall, linear', 'accuracy']} against {f['recall, softmax', 'accuracy']}",
        ),
        Claim(
            "recall: retention, which forgets whatever is said, is below delta",
            lambda f: (f["recall, delta", "accuracy"] - f["recall, retention", "accuracy"]).mean > 0,
            lambda f: f"{f['recall, retention', 'accuracy']} against {f['recall, delta', 'accuracy']}",
        ),
        Claim(
            "recall: a window of 4, which reaches few of the pairs, at most half",
            lambda f: f["recall, window", "accuracy"].high <= 0.5,
            lambda f: str(f["recall, window", "accuracy"]),
        ),
        Claim(
            "overwrite: delta at least 95 % right",
            lambda f: f["overwrite, delta", "accuracy"].low >= 0.95,
            lambda f: str(f["overwrite, delta", "accuracy"]),
        ),
        Claim(
            "overwrite: linear, which adds, at most 70 %",
            lambda f: f["overwrite, linear", "accuracy"].high <= 0.7,
            lambda f: str(f["overwrite, linear", "accuracy"]),
        ),
    ),
    pictures=(partial(solving, among="recall"), partial(solving, among="overwrite"), maps),
)
