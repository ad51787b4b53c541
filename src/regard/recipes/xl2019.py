"""A transformer that reads in segments attends beyond them if its layers keep a memory and positions are relative.

Paper: Dai et al. 2019, "Transformer-XL: attentive language models beyond a fixed-length context", arXiv:1901.02860, sections 3.2 and
       3.3 (there long texts, here a token to be repeated after one and a half segments).
Run:   regard run xl2019        Takes: about ten minutes on two CPU cores; three seeds of three small models.

Sequences of 80 tokens in segments of 16, a memory of 32 positions per layer without gradients; two layers. Ablations: no memory; memory with
positions that start anew in each segment, so that two remembered tokens have the same position.
"""

from __future__ import annotations

from functools import partial

from ..layers import RelativeXL
from ..patterns import causal
from ._engine import Recipe, RecipeFacts, at_least, at_most, below, validation_curves
from ._engine.puzzles import Lag
from ._engine.stacks import HEADS, WIDTH, Heads, StackVariant, puzzle_training

SEGMENT, LAG = 16, 24
XL, NO_MEMORY, ABSOLUTE = "memory, relative positions", "no memory", "memory, positions in the segment"


def variant(memory: int, relative: bool = True) -> StackVariant:
    return StackVariant(
        puzzle=Lag(length=5 * SEGMENT, lag=LAG),
        mixer=Heads(memory=memory, position=partial(RelativeXL, WIDTH, HEADS) if relative else None),
        pattern=causal,
        segment=SEGMENT,
        positions=not relative,
        train=puzzle_training(400),
    )


recipe = Recipe(
    facts=RecipeFacts(
        "xl2019", 2019, "Transformer-XL: attentive language models beyond a fixed-length context", "arXiv:1901.02860", "about ten minutes"
    ),
    question="Does a transformer that reads in segments attend to what came before the current one?",
    variants={XL: variant(2 * SEGMENT), NO_MEMORY: variant(0), ABSOLUTE: variant(2 * SEGMENT, relative=False)},
    claims=(
        at_least("with memory and relative positions: at least 95 % right, one and a half segments back", 0.95, XL),
        at_most("without memory: at most 10 %, where one in sixteen is chance", 0.1, NO_MEMORY, kind="control"),
        below("with memory, and positions that start anew in each segment: at least 15 points below relative ones", ABSOLUTE, XL, 0.15),
    ),
    pictures=(validation_curves("accuracy"),),
)
