"""Clusters that follow the keys put those together that belong together; centroids that stay at random do so less.

Paper: Roy et al. 2020, "Efficient content-based sparse attention with routing transformers", arXiv:2003.05997, section 4 and table 1 (there CIFAR-10,
       with random routing as an ablation).
Run:   regard run routing2020        Takes: a quarter of an hour on one CPU core; three seeds of four small models.

0w0w with w of 63 out of 16 symbols; two layers, width 64, 2 heads; queries and keys are the same vector. Sixteen clusters of the 8 queries and keys that
are nearest to a centroid: 8 pairs per token. Each step moves the centroids towards the vectors that are nearest to them. The first ablation
leaves them where they were drawn; the second draws new ones at every call, so that no layer can get used to them. The window has as many
pairs.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import LocalAttention, RoutingAttention
from ..patterns import causal
from ._engine import Claim, Recipe, RecipeFacts, above, at_most, measured, validation_curves
from ._engine.puzzles import Duplicate
from ._engine.stacks import Heads, StackVariant, puzzle_training

LENGTH, WIDTH, HEADS, CLUSTERS, SIZE = 128, 64, 2, 16, 16
LEARNED, FROZEN, REDRAWN, LOCAL, ALL = "routing", "frozen centroids", "new centroids at every call", "window", "all keys"


class LearnedRouting(RoutingAttention):
    """Routing whose centroids move after every call that trains."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.register_forward_hook(follow)


def follow(attention: nn.Module, inputs: tuple[Any, ...], out: Tensor) -> None:
    """Move the centroids towards the queries and keys of this call."""
    if torch.is_grad_enabled():
        assert isinstance(attention, RoutingAttention)
        q, k, _, pattern = inputs[:4]
        attention.update(*attention.tally(q, k, pattern))


class RedrawnRouting(RoutingAttention):
    """The ablation: clusters that are random at every call."""

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        self.centroid_HCK.normal_()
        return super().forward(*inputs, **options)


def variant(kind: type[RoutingAttention]) -> StackVariant:
    attention = partial(kind, head_dim=WIDTH // HEADS, heads=HEADS, clusters=CLUSTERS, size=SIZE, decay=0.99)
    return puzzle(Heads(attention=attention, width=WIDTH, heads=HEADS, shared_qk=True))


def puzzle(mixer: Heads) -> StackVariant:
    return StackVariant(puzzle=Duplicate(length=LENGTH), mixer=mixer, train=puzzle_training(600), width=WIDTH, pattern=causal)


recipe = Recipe(
    facts=RecipeFacts(
        "routing2020",
        2020,
        "Efficient content-based sparse attention with routing transformers",
        "arXiv:2003.05997",
        "a quarter of an hour",
    ),
    question="Do clusters of keys need to follow the keys?",
    variants={
        LEARNED: variant(LearnedRouting),
        FROZEN: variant(RoutingAttention),
        REDRAWN: variant(RedrawnRouting),
        LOCAL: puzzle(Heads(attention=partial(LocalAttention, SIZE), width=WIDTH, heads=HEADS)),
        ALL: puzzle(Heads(width=WIDTH, heads=HEADS)),
    },
    claims=(
        Claim(
            "clusters that follow the keys: at most 5 points below all keys",
            measured(LEARNED) - measured(ALL) >= -0.05,
            source="table 1",
            learned=(measured(ALL) >= 0.95,),
        ),
        above("they are at least 5 points above frozen centroids", LEARNED, FROZEN, 0.05, source="table 1"),
        above("and at least 20 points above centroids that are random at every call", LEARNED, REDRAWN, 0.2, source="table 1"),
        at_most("a window with as many pairs: at most 15 %, where one in sixteen is chance", 0.15, LOCAL, kind="control"),
    ),
    pictures=(validation_curves("accuracy"),),
)
