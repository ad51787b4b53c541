"""Two factors of √L keys each reach what a window of as many keys does not: rows and columns, strides, summaries, gaps.

Paper: Child et al. 2019, "Generating long sequences with sparse transformers", arXiv:1904.10509, section 4 (p = 2 factors connect all positions in
       p + 1 steps at most); Beltagy et al. 2020, "Longformer", arXiv:2004.05150, section 3.1 (gaps); Ho et al. 2019, "Axial attention",
       arXiv:1912.12180, section 3.
Run:   regard run sparse2019        Takes: a quarter of an hour on one CPU core; three seeds of nine small models.

A needle of eight classes among 144 tokens, which all that come 60 or more after it must tell; causal, two layers, two heads of 16. Strides, blocks and
rows are of 12 = √144. At most 24 keys per query, as many as the window has. The ablations have one factor only: a stride, or a gap, is
the same in all heads, and positions of different columns never meet.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from ..attention import (
    Attention,
    ColumnAttention,
    DilatedAttention,
    LocalAttention,
    RowAttention,
    SoftmaxAttention,
    SparseFixedAttention,
    SparseStridedAttention,
    StridedAttention,
)
from ..layers import Axial
from ..patterns import causal
from ._engine import AttentionMaps, Claim, Recipe, RecipeFacts, at_least, at_most, measured, validation_curves
from ._engine.puzzles import SpreadLater
from ._engine.stacks import HEADS, WIDTH, Heads, StackVariant, puzzle_training

STEP = 12
PUZZLE = SpreadLater(length=STEP**2, beyond=60)
ALL, LOCAL = "all keys", "window of 24"
STRIDED, FIXED, GAPS, AXIAL = "strided", "fixed", "two gaps", "rows, then columns"
ALONE = ("stride alone", "gap alone", "rows alone", "columns alone")


def variant(mixer: Callable[[], nn.Module]) -> StackVariant:
    return StackVariant(puzzle=PUZZLE, mixer=mixer, pattern=causal, train=puzzle_training(400))


def heads(kind: Callable[..., Attention], *args: object) -> Heads:
    return Heads(attention=partial(kind, *args))


VARIANTS = {
    STRIDED: variant(heads(SparseStridedAttention, STEP)),
    FIXED: variant(heads(SparseFixedAttention, STEP)),
    GAPS: variant(heads(DilatedAttention, STEP, (1, STEP))),
    AXIAL: variant(partial(Axial, WIDTH, HEADS, STEP)),
    LOCAL: variant(heads(LocalAttention, 2 * STEP)),
    ALONE[0]: variant(heads(StridedAttention, STEP)),
    ALONE[1]: variant(heads(DilatedAttention, STEP, STEP)),
    ALONE[2]: variant(heads(RowAttention, STEP)),
    ALONE[3]: variant(heads(ColumnAttention, STEP)),
    ALL: variant(heads(SoftmaxAttention)),
}
FACTORS = (STRIDED, FIXED, GAPS, AXIAL)
recipe = Recipe(
    facts=RecipeFacts("sparse2019", 2019, "Generating long sequences with sparse transformers", "arXiv:1904.10509", "a quarter of an hour"),
    question="Do two factors with √L keys each reach what a window with as many keys does not?",
    variants=VARIANTS,
    claims=(
        at_least("all keys: at least 95 % right", 0.95, ALL),
        *(
            Claim(
                f"{name}: at most 2 points below all keys, and at least 30 above the window",
                measured(name) - measured(ALL) >= -0.02,
                measured(name) - measured(LOCAL) >= 0.3,
                source=source,
                learned=(measured(ALL) >= 0.95,),
            )
            for name, source in zip(FACTORS, ("section 4.3", "section 4.3", "Longformer, section 3.1", "Ho et al., section 3"), strict=True)
        ),
        at_most("the window, which reaches 48 in two layers: at most 20 %, where one in eight is chance", 0.2, LOCAL, kind="control"),
        Claim(
            "one factor alone: at least 30 points below both",
            *(measured(both) - measured(one) >= 0.3 for one, both in zip(ALONE, (STRIDED, GAPS, AXIAL, AXIAL), strict=True)),
            source="section 4.3",
        ),
    ),
    pictures=(
        validation_curves("accuracy"),
        AttentionMaps(variants={name: VARIANTS[name] for name in (STRIDED, FIXED, LOCAL)}, layers=(0, 1), columns=2),
    ),
)  # fmt: skip
