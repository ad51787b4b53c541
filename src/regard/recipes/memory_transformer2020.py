"""A few learned tokens that all may read and write carry what a window cannot reach.

Paper: Burtsev et al. 2020, "Memory transformer", arXiv:2006.11527, section 3 (there some tokens in front of the sentences of a translator); Guo et al. 2019, "Star-transformer", arXiv:1902.09113.
Run:   regard run memory_transformer2020        Takes: a quarter of an hour on one CPU core; three seeds of five small models.

One informative token in a hundred and twenty-eight, whose class all tokens must tell; windows of 4 to either side, two layers, two heads of 16:
without memory, those within 8 can. The memory attends to all tokens, and all attend to it. The ablation may be read, but attends to itself alone: what it says is the same for
every sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from ..layers import MemoryTokens
from ..patterns import window
from ._engine import Claim, Recipe, RecipeFacts, at_least, at_most, below, measured, validation_curves
from ._engine.puzzles import Spread
from ._engine.stacks import WIDTH, Heads, Stack, StackVariant, puzzle_training

RADIUS = 4
NONE, ONE, FOUR, UNWRITTEN, ALL = "no memory", "1 token", "4 tokens", "4 tokens, read only", "all keys"


class MemoryStack(nn.Module):
    """The blocks of a stack, with memory tokens in front of the sequence."""

    def __init__(self, stack: Stack, count: int, read_only: bool):
        super().__init__()
        self.stack, self.memory = stack, MemoryTokens(WIDTH, count)
        self.pattern = (self.memory.read_only if read_only else self.memory.both_ways)(window(RADIUS))

    def forward(self, ids_BL: Tensor) -> Tensor:
        """logits_BLN"""
        x_BLD = self.memory.put(self.stack.embedding(ids_BL))
        for block in self.stack.blocks:
            x_BLD = block(x_BLD, self.pattern)
        return self.stack.out(self.stack.norm(self.memory.take(x_BLD)[0]))


@dataclass(frozen=True, kw_only=True)
class MemoryVariant(StackVariant):
    """A stack with memory tokens, on a puzzle."""

    count: int
    read_only: bool = False

    def build(self) -> MemoryStack:  # type: ignore[override]
        return MemoryStack(super().build(), self.count, self.read_only)


def variant(count: int, read_only: bool = False) -> MemoryVariant:
    return MemoryVariant(puzzle=Spread(), mixer=Heads(), train=puzzle_training(400), count=count, read_only=read_only)


recipe = Recipe(
    facts=RecipeFacts("memory_transformer2020", 2020, "Memory transformer", "arXiv:2006.11527", "a quarter of an hour"),
    question="Do a few tokens that all may read and write carry what a window cannot reach?",
    variants={
        NONE: variant(0),
        ONE: variant(1),
        FOUR: variant(4),
        UNWRITTEN: variant(4, read_only=True),
        ALL: StackVariant(puzzle=Spread(), mixer=Heads(), train=puzzle_training(400)),
    },
    claims=(
        at_least("one token is enough: at least 95 % right", 0.95, ONE),
        Claim(
            "four tokens are at most 2 points below attention to all keys",
            measured(FOUR) - measured(ALL) >= -0.02,
            learned=(measured(ALL) >= 0.95,),
        ),
        at_most(
            "without memory at most 30 %, where one in eight is chance and an eighth of the tokens are near", 0.3, NONE, kind="control"
        ),
        below("four tokens that nothing is written to: at least 30 points below four", UNWRITTEN, FOUR, 0.3, source="section 3"),
    ),
    pictures=(validation_curves("accuracy"),),
)
