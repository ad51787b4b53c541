"""Mixing that ignores the tokens it mixes shifts them by a constant as well as attention does, and cannot look anything up.

Paper: Tolstikhin et al. 2021, "MLP-Mixer", arXiv:2105.01601; Lee-Thorp et al. 2021, "FNet", arXiv:2105.03824; Liu et al. 2021, "Pay
       attention to MLPs", arXiv:2105.08050; Tay et al. 2020, "Synthesizer", arXiv:2005.00743 (there pictures and language).
Run:   regard run mixers2021        Takes: about ten minutes on two CPU cores; three seeds of fourteen small models.

Shift: the target of each of 32 tokens is the one five positions before, around the end. Recall: eight keys with values, then the keys
again in another order, without a mask; a short convolution before every mixer gives it the token before. Width 32, two layers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from ..attention import DenseSynthesizer, MixtureSynthesizer, RandomSynthesizer
from ..layers import FourierMixer, GatedMixer, MultiHead, TokenMixer
from ._engine import AttentionMaps, Claim, Kind, Recipe, RecipeFacts, at_least, at_most, below, validation_curves
from ._engine.puzzles import Lag, Puzzle, Recall
from ._engine.stacks import HEADS, WIDTH, Heads, NoMixing, StackVariant, puzzle_training

SHIFT, RECALL = Lag(length=32, lag=5, around=True), Recall(pairs=8, keys=16, values=16)
HIDDEN = 2 * WIDTH
Mixer = Callable[[], nn.Module]


def random(length: int) -> RandomSynthesizer:
    return RandomSynthesizer(heads=HEADS, max_length=length)


def frozen(length: int) -> RandomSynthesizer:
    return random(length).requires_grad_(False)


def mixture(length: int) -> MixtureSynthesizer:
    return MixtureSynthesizer([random(length)])


def with_attention(length: int) -> GatedMixer:
    small = MultiHead(WIDTH, 1, head_dim=WIDTH, out_width=HIDDEN // 2)
    return GatedMixer(WIDTH, HIDDEN, length, attention=small)


def mixers(puzzle: Puzzle) -> dict[str, Mixer]:
    n = puzzle.length
    return {
        "attention": Heads(),
        "random Synthesizer": Heads(attention=partial(random, n)),
        "MLP-Mixer": partial(TokenMixer, n, HIDDEN),
        "FNet": FourierMixer,
        "gMLP": partial(GatedMixer, WIDTH, HIDDEN, n),
    }


SHIFTS: dict[str, Mixer] = {
    **mixers(SHIFT),
    "dense Synthesizer": Heads(attention=partial(DenseSynthesizer, heads=HEADS, head_dim=WIDTH // HEADS, max_length=SHIFT.length)),
    "frozen Synthesizer": Heads(attention=partial(frozen, SHIFT.length)),
    "no mixing": NoMixing,
}
RECALLS: dict[str, Mixer] = {
    **mixers(RECALL),
    "random Synthesizer and attention": Heads(attention=partial(mixture, RECALL.length)),
    "aMLP": partial(with_attention, RECALL.length),
}
VARIANTS = {
    **{f"shift, {name}": StackVariant(puzzle=SHIFT, mixer=mixer, train=puzzle_training(800)) for name, mixer in SHIFTS.items()},
    **{
        f"recall, {name}": StackVariant(puzzle=RECALL, mixer=mixer, convolution=3, train=puzzle_training(600))
        for name, mixer in RECALLS.items()
    },
}
DRAWN = [f"{task}, {name}" for task in ("shift", "recall") for name in ("attention", "random Synthesizer", "gMLP")]


def learns(bound: float, task: str, *names: str) -> Claim:
    text = f"{task}: {', '.join(names)}: at least {100 * bound:.0f} % right"
    return at_least(text, bound, *(f"{task}, {name}" for name in names))


def fails(bound: float, task: str, *names: str, kind: Kind = "claim") -> Claim:
    text = f"{task}: {', '.join(names)}: at most {100 * bound:.0f} % right"
    return at_most(text, bound, *(f"{task}, {name}" for name in names), kind=kind)


recipe = Recipe(
    facts=RecipeFacts("mixers2021", 2021, "MLP-Mixer: an all-MLP architecture for vision", "arXiv:2105.01601", "about ten minutes"),
    question="What can be computed by mixing tokens regardless of their content, and what cannot?",
    variants=VARIANTS,
    claims=(
        learns(0.99, "shift", "attention", "random Synthesizer", "MLP-Mixer"),
        learns(0.85, "shift", "FNet"),
        fails(0.1, "shift", "no mixing", kind="control"),
        below(
            "shift: a Synthesizer whose matrix is not trained is at least 20 points below one whose matrix is",
            "shift, frozen Synthesizer",
            "shift, random Synthesizer",
            0.2,
        ),
        learns(0.99, "recall", "attention", "random Synthesizer and attention"),
        learns(0.9, "recall", "aMLP"),
        fails(0.35, "recall", "random Synthesizer", "MLP-Mixer", "FNet", "gMLP"),
    ),
    pictures=(
        validation_curves("accuracy", "shift"),
        validation_curves("accuracy", "recall"),
        AttentionMaps(variants={name: VARIANTS[name] for name in DRAWN}, layers=(0,), columns=3),
    ),
)
