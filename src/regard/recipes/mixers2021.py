"""Mixing that does not read what it mixes moves tokens by a constant as well as attention does, and cannot look anything up.

Paper: Tolstikhin et al. 2021, "MLP-Mixer", arXiv:2105.01601; Lee-Thorp et al. 2021, "FNet", arXiv:2105.03824; Liu et al. 2021, "Pay
       attention to MLPs", arXiv:2105.08050; Tay et al. 2020, "Synthesizer", arXiv:2005.00743 (there pictures and language).
Run:   regard run mixers2021        Takes: some minutes on two CPU cores; three seeds of fourteen small models.

Shift: each of 32 tokens must say which one stood five places before, around the end. Recall: eight keys with values, then the keys
again in another order, all seen at once; a short convolution before every mixer shows it the token before. Width 32, two layers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from torch import nn

from ..attention import DenseSynthesizer, MixtureSynthesizer, RandomSynthesizer
from ..layers import FourierMixer, GatedMixer, MultiHead, TokenMixer
from ._base import Claim, Figures, Recipe, RecipeFacts, folder
from ._pictures import looks, solving
from ._puzzles import Lag, Puzzle, Recall
from ._sequences import HEADS, WIDTH, Alone, Heads, Near, Taught, training

SHIFT, RECALL = Lag(length=32, lag=5, around=True), Recall(pairs=8, keys=16, values=16)
HIDDEN = 2 * WIDTH


def random(length: int) -> RandomSynthesizer:
    return RandomSynthesizer(heads=HEADS, length=length)


def frozen(length: int) -> RandomSynthesizer:
    return random(length).requires_grad_(False)


def mixture(length: int) -> MixtureSynthesizer:
    return MixtureSynthesizer([random(length)])


def with_attention(length: int) -> GatedMixer:
    small = MultiHead(WIDTH, 1, head_width=WIDTH, out_width=HIDDEN // 2)
    return GatedMixer(WIDTH, HIDDEN, length, attention=small)


def near(make: Callable[[], nn.Module]) -> Near:
    return Near(WIDTH, make(), 3)


def shift(mixer: Callable[[], nn.Module], depth: int = 2) -> Taught:
    return Taught(puzzle=SHIFT, mixer=mixer, depth=depth, train=training(800))


def recall(mixer: Callable[[], nn.Module]) -> Taught:
    return Taught(puzzle=RECALL, mixer=partial(near, mixer), train=training(600))


def each(puzzle: Puzzle) -> dict[str, Callable[[], nn.Module]]:
    n = puzzle.length
    return {
        "attention": Heads(),
        "random Synthesizer": Heads(attention=partial(random, n)),
        "MLP-Mixer": partial(TokenMixer, n, HIDDEN),
        "FNet": FourierMixer,
        "gMLP": partial(GatedMixer, WIDTH, HIDDEN, n),
    }


SHIFTS: dict[str, Callable[[], nn.Module]] = {
    **each(SHIFT),
    "dense Synthesizer": Heads(attention=partial(DenseSynthesizer, heads=HEADS, width=WIDTH // HEADS, length=SHIFT.length)),
    "frozen Synthesizer": Heads(attention=partial(frozen, SHIFT.length)),
    "no mixing": Alone,
}
RECALLS: dict[str, Callable[[], nn.Module]] = {
    **each(RECALL),
    "random Synthesizer and attention": Heads(attention=partial(mixture, RECALL.length)),
    "aMLP": partial(with_attention, RECALL.length),
}
VARIANTS = {
    **{f"shift, {name}": shift(mixer) for name, mixer in SHIFTS.items()},
    **{f"recall, {name}": recall(mixer) for name, mixer in RECALLS.items()},
}
BY_PLACE = ("random Synthesizer", "MLP-Mixer", "FNet", "gMLP")


def maps(figures: Figures, out: Path) -> Path:
    names = [f"{task}, {name}" for task in ("shift", "recall") for name in ("attention", "random Synthesizer", "gMLP")]
    return looks(out / "looks.png", {name: VARIANTS[name].look(folder(out, name, figures.seeds[0]), 0) for name in names}, columns=3)


def at_least(least: float, task: str, *names: str) -> Claim:
    return Claim(
        f"{task}: {', '.join(names)}: at least {100 * least:.0f} % right",
        lambda f: all(f[f"{task}, {name}", "accuracy"].low >= least for name in names),
        lambda f: "; ".join(str(f[f"{task}, {name}", "accuracy"]) for name in names),
    )


def at_most(most: float, task: str, *names: str) -> Claim:
    return Claim(
        f"{task}: {', '.join(names)}: at most {100 * most:.0f} % right",
        lambda f: all(f[f"{task}, {name}", "accuracy"].high <= most for name in names),
        lambda f: "; ".join(str(f[f"{task}, {name}", "accuracy"]) for name in names),
    )


recipe = Recipe(
    facts=RecipeFacts(
        name="mixers2021",
        year=2021,
        title="MLP-Mixer: an all-MLP architecture for vision",
        paper="arXiv:2105.01601",
        takes="some ten minutes on two CPU cores",
    ),
    question="What can be done by mixing tokens without reading them, and what cannot?",
    variants=VARIANTS,
    claims=(
        at_least(0.99, "shift", "attention", "random Synthesizer", "MLP-Mixer"),
        at_least(0.85, "shift", "FNet"),
        at_most(0.1, "shift", "no mixing"),
        Claim(
            "shift: a Synthesizer whose matrix does not learn is at least 20 points below one whose matrix does",
            lambda f: (f["shift, random Synthesizer", "accuracy"] - f["shift, frozen Synthesizer", "accuracy"]).low >= 0.2,
            lambda f: f"{f['shift, frozen Synthesizer', 'accuracy']} against {f['shift, random Synthesizer', 'accuracy']}",
        ),
        at_least(0.99, "recall", "attention", "random Synthesizer and attention"),
        at_least(0.9, "recall", "aMLP"),
        at_most(0.35, "recall", *BY_PLACE),
    ),
    pictures=(partial(solving, among="shift"), partial(solving, among="recall"), maps),
)
