"""Reversible layers store no activations but the last: memory does not grow with the depth, gradients are the same, and so is what is learned.

Paper: Gomez et al. 2017, "The reversible residual network", arXiv:1707.04585, section 4 (there images); Kitaev, Kaiser & Levskaya 2020,
       "Reformer", arXiv:2001.04451, section 3 and figure 3.
Run:   regard run revnet2017        Takes: five minutes on one CPU core; three seeds of two small models, and of two measurements.

Stored: bytes of all tensors that autograd keeps for the backward pass, parameters not counted, of stacks of 2, 4, 8 and 16 blocks of width 64
on 8 sequences of 64 vectors. Gradients: those of the reversible stack of 8 against the same blocks run plainly, float32. Learning: 0w0w with
w of 31 out of 16 symbols, both with two streams; the other stack is the same model with a plain backward pass, and one with ordinary blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from ..layers import Block, FeedForward, MultiHead, Reversible, ReversibleBlock
from ..patterns import Pattern, causal, full
from ._engine import Claim, Curves, Recipe, RecipeFacts, at_least, at_most, measured, validation_curves
from ._engine.puzzles import Duplicate
from ._engine.stacks import Heads, Stack, StackVariant, puzzle_training

WIDTH, HEADS, BATCH, LENGTH, DEPTHS = 64, 4, 8, 64, (2, 4, 8, 16)
REVERSIBLE, PLAIN = "stored, reversible", "stored, ordinary"
LEARNS, LEARNS_PLAINLY = "learns, reversible", "learns, ordinary"
Kind = Literal["reversible", "ordinary"]


def reversible_blocks(depth: int) -> list[ReversibleBlock]:
    return [ReversibleBlock(WIDTH, MultiHead(WIDTH, HEADS), FeedForward(WIDTH, 4 * WIDTH)) for _ in range(depth)]


@dataclass(frozen=True)
class Stored:
    """Bytes kept for the backward pass by depth; of a reversible stack also the relative distance of its gradients to those of plain ones."""

    kind: Kind

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        stored = {depth: self._stored(depth) for depth in DEPTHS}
        growth = {"growth": stored[DEPTHS[-1]] / stored[DEPTHS[0]], **{f"bytes, depth {depth}": size for depth, size in stored.items()}}
        return growth | ({"gradient error": gradient_error(8)} if self.kind == "reversible" else {})

    def _stored(self, depth: int) -> float:
        x_BLD = torch.randn(BATCH, LENGTH, WIDTH, requires_grad=True)
        blocks = nn.ModuleList(
            reversible_blocks(depth)
            if self.kind == "reversible"
            else [Block(WIDTH, MultiHead(WIDTH, HEADS), FeedForward(WIDTH, 4 * WIDTH)) for _ in range(depth)]
        )
        own = {parameter.data_ptr() for parameter in blocks.parameters()}
        sizes: dict[int, int] = {}

        def note(kept: Tensor) -> Tensor:
            storage = kept.untyped_storage()
            if storage.data_ptr() not in own:
                sizes[storage.data_ptr()] = storage.nbytes()
            return kept

        with torch.autograd.graph.saved_tensors_hooks(note, lambda kept: kept):
            if self.kind == "reversible":
                Reversible(blocks)(x_BLD, x_BLD)  # type: ignore[arg-type]
            else:
                nn.Sequential(*blocks)(x_BLD)
        return float(sum(sizes.values()))


def gradient_error(depth: int) -> float:
    """Distance between the gradients of all parameters, relative."""
    blocks, x_BLD = reversible_blocks(depth), torch.randn(BATCH, LENGTH, WIDTH)
    parameters = list(nn.ModuleList(blocks).parameters())

    def gradient(pair: tuple[Tensor, Tensor]) -> Tensor:
        return torch.cat([one.flatten() for one in torch.autograd.grad(torch.cat(pair).square().sum(), parameters)])

    pair = (x_BLD, x_BLD)
    for block in blocks:
        pair = block(*pair)
    plain = gradient(pair)
    return float((gradient(Reversible(blocks)(x_BLD, x_BLD)) - plain).norm() / plain.norm())


class ReversibleStack(nn.Module):
    """The blocks of a stack as one: two streams that begin as x, of which the mean goes on."""

    def __init__(self, depth: int):
        super().__init__()
        self.blocks = Reversible(reversible_blocks(depth))

    def forward(self, x_BLD: Tensor, pattern: Pattern = full, state: None = None) -> Tensor:
        one_BLD, two_BLD = self.blocks(x_BLD, x_BLD, pattern)
        return (one_BLD + two_BLD) / 2


class ReversibleVariant(StackVariant):
    """A reversible stack on a puzzle."""

    def build(self) -> Stack:
        model = super().build()
        model.blocks = nn.ModuleList([ReversibleStack(self.depth)])
        return model


PUZZLE, TRAIN = Duplicate(), puzzle_training(500, 2e-3)
MIXER = Heads(width=WIDTH, heads=HEADS)
recipe = Recipe(
    facts=RecipeFacts("revnet2017", 2017, "The reversible residual network", "arXiv:1707.04585", "five minutes"),
    question="Do reversible layers train without storing activations?",
    variants={
        REVERSIBLE: Stored("reversible"),
        PLAIN: Stored("ordinary"),
        LEARNS: ReversibleVariant(puzzle=PUZZLE, mixer=MIXER, width=WIDTH, pattern=causal, train=TRAIN),
        LEARNS_PLAINLY: StackVariant(puzzle=PUZZLE, mixer=MIXER, width=WIDTH, pattern=causal, train=TRAIN),
    },
    claims=(
        at_most("16 reversible layers store at most 1.1 times the activations of 2", 1.1, (REVERSIBLE, "growth"), kind="control"),
        at_least("16 ordinary layers store at least 6 times those of 2", 6.0, (PLAIN, "growth"), kind="control"),
        at_most("gradients are those of the plain blocks, to 1 in 100,000", 1e-5, (REVERSIBLE, "gradient error"), kind="control"),
        Claim(
            "after equal steps the reversible stack is at most 2 points below ordinary layers",
            measured(LEARNS) - measured(LEARNS_PLAINLY) >= -0.02,
            source="section 4",
            learned=(measured(LEARNS_PLAINLY) >= 0.95,),
        ),
    ),
    pictures=(
        Curves(metric="bytes", file="bytes", x="layers", y="bytes", title="Stored for the backward pass", log="xy"),
        validation_curves("accuracy"),
    ),
)
