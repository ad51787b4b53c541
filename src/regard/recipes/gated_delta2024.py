"""A decay clears the state at once, the delta rule overwrites single values; Gated DeltaNet does both, its relatives one of them.

Paper: Yang, Kautz & Hatamizadeh 2024, "Gated delta networks", arXiv:2412.06464, sections 3.1 and 4 and table 2 (there needles in 8,000 tokens of
       text: DeltaNet loses them where the past must be forgotten, Mamba-2 where it must be kept).
Run:   regard run gated_delta2024        Takes: half an hour on one CPU core; three seeds of ten small models.

Overwrite: eight keys written twice, the last value counts. Clear: four chapters of twelve keys with values each, then the keys of the chapter in
another order; the state has 16 rows per head, so that chapters which are over are in the way. Two layers, two heads of 16, a short convolution
before every mechanism, no positional encoding. None has the norm and gate per head of the papers' layers (`GatedHeads`): with them gated delta
had 22 % of overwritten values right after 800 steps, whatever the learning rate.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..attention import Attention, DeltaNet, GatedDeltaNet, GatedLinearAttention, KimiDeltaAttention, Retention, StateSpaceDuality
from ..patterns import causal
from ._engine import Claim, Recipe, RecipeFacts, below, measured, validation_curves
from ._engine.puzzles import Chapters, Puzzle, Recall
from ._engine.stacks import HEADS, WIDTH, Heads, StackVariant, puzzle_training

HEAD_DIM, LEARNED = WIDTH // HEADS, 0.9
PUZZLES: dict[str, Puzzle] = {"overwrite": Recall(pairs=8, times=2), "clear": Chapters(pairs=12)}
MECHANISMS: dict[str, Callable[[], Attention]] = {
    "gated delta": partial(GatedDeltaNet, heads=HEADS),
    "Kimi delta": partial(KimiDeltaAttention, heads=HEADS, head_dim=HEAD_DIM),
    "delta": DeltaNet,
    "SSD": partial(StateSpaceDuality, heads=HEADS),
    "gated linear": partial(GatedLinearAttention, head_dim=HEAD_DIM),
    "retention": Retention,
}


COMMON = ("gated delta", "Kimi delta", "delta", "SSD")
TRIED = {"overwrite": (*COMMON, "gated linear"), "clear": (*COMMON, "retention")}


def variant(task: str, name: str) -> StackVariant:
    mixer, train = Heads(attention=MECHANISMS[name]), puzzle_training(1000)
    return StackVariant(puzzle=PUZZLES[task], mixer=mixer, convolution=3, pattern=causal, positions=False, train=train)


recipe = Recipe(
    facts=RecipeFacts(
        "gated_delta2024", 2024, "Gated delta networks: improving Mamba2 with delta rule", "arXiv:2412.06464", "half an hour"
    ),
    question="Which recurrent state can overwrite one value, which can forget all, and which can do both?",
    variants={f"{task}, {name}": variant(task, name) for task, names in TRIED.items() for name in names},
    claims=(
        Claim(
            "overwrite: SSD, which decays and adds, is at least 5 points below gated delta",
            measured("overwrite, gated delta") - measured("overwrite, SSD") >= 0.05,
            source="table 2",
            learned=(measured("overwrite, gated delta") >= LEARNED,),
        ),
        Claim(
            "clear: delta, which cannot decay, is at least 5 points below gated delta",
            measured("clear, gated delta") - measured("clear, delta") >= 0.05,
            source="table 2",
            learned=(measured("clear, gated delta") >= LEARNED,),
        ),
        Claim(
            "overwrite: gated delta is at most 2 points below delta; clear: at most 2 points below SSD",
            measured("overwrite, gated delta") - measured("overwrite, delta") >= -0.02,
            measured("clear, gated delta") - measured("clear, SSD") >= -0.02,
            source="section 3.1",
        ),
        Claim(
            "both: a decay per feature, Kimi delta, is at most 2 points below one per head",
            *(measured(f"{task}, Kimi delta") - measured(f"{task}, gated delta") >= -0.02 for task in PUZZLES),
            source="Kimi Linear, section 3",
        ),
        below("overwrite: gated linear, which decays per feature and adds, is below gated delta", "overwrite, gated linear", "overwrite, gated delta"),
        below("clear: retention, whose decay ignores what it reads, is below SSD", "clear, retention", "clear, SSD"),
    ),
    pictures=(validation_curves("accuracy", "overwrite"), validation_curves("accuracy", "clear")),
)  # fmt: skip
