"""A transformer that reads segment by segment sees beyond them if it remembers its layers, and if places are told relative to each other.

Paper: Dai et al. 2019, "Transformer-XL: attentive language models beyond a fixed-length context", arXiv:1901.02860, sections 3.2 and
       3.3 (there long texts, here a token to be repeated after one and a half segments).
Run:   regard run xl2019        Takes: some minutes on two CPU cores; three seeds of three small models.

Streams of 80 tokens in segments of 16, a memory of 32 rows a layer without gradients; two layers. Ablations: no memory; memory with
places counted in each segment anew, so that two remembered tokens have the same place.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import nn

from ..layers import MultiHead, Recurrence, RelativeXL
from ..patterns import causal
from ._base import Claim, Recipe, RecipeFacts
from ._pictures import solving
from ._puzzles import Lag
from ._sequences import HEADS, WIDTH, Heads, Taught, training

SEGMENT, LAG = 16, 24
XL, SHUT, ABSOLUTE = "memory, relative places", "no memory", "memory, places in the segment"


@dataclass(frozen=True, kw_only=True)
class Remembering:
    """Heads that also look at the last `memory` rows of segments before."""

    heads: Heads
    memory: int

    def __call__(self) -> nn.Module:
        heads = self.heads()
        assert isinstance(heads, MultiHead)
        return Recurrence(heads, self.memory)


def variant(memory: int, relative: bool = True) -> Taught:
    heads = Heads(position=partial(RelativeXL, WIDTH, HEADS)) if relative else Heads()
    return Taught(
        puzzle=Lag(length=5 * SEGMENT, lag=LAG),
        mixer=Remembering(heads=heads, memory=memory),
        pattern=causal,
        segment=SEGMENT,
        places=not relative,
        train=training(400),
    )


recipe = Recipe(
    facts=RecipeFacts(
        name="xl2019",
        year=2019,
        title="Transformer-XL: attentive language models beyond a fixed-length context",
        paper="arXiv:1901.02860",
        takes="some minutes on two CPU cores",
    ),
    question="Does a transformer that reads in segments see what lies before the one it reads?",
    variants={XL: variant(2 * SEGMENT), SHUT: variant(0), ABSOLUTE: variant(2 * SEGMENT, relative=False)},
    claims=(
        Claim(
            "with memory and relative places: at least 95 % right, one and a half segments back",
            lambda f: f[XL, "accuracy"].low >= 0.95,
            lambda f: str(f[XL, "accuracy"]),
        ),
        Claim(
            "without memory: at most 10 %, where one in sixteen is chance",
            lambda f: f[SHUT, "accuracy"].high <= 0.1,
            lambda f: str(f[SHUT, "accuracy"]),
        ),
        Claim(
            "with memory, and places that begin anew in each segment: at least 15 points below relative ones",
            lambda f: (f[XL, "accuracy"] - f[ABSOLUTE, "accuracy"]).low >= 0.15,
            lambda f: f"{f[ABSOLUTE, 'accuracy']} against {f[XL, 'accuracy']}",
        ),
    ),
    pictures=(solving,),
)
