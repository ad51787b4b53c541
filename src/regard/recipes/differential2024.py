"""The difference of two softmax attentions cancels what both give to irrelevant tokens: more of the weight is on the answer.

Paper: Ye et al. 2024, "Differential transformer", arXiv:2410.05258, figure 1 and section 3.3 (there needles in 4,000 tokens, of
       which it gives several times the weight to the answer).
Run:   regard run differential2024        Takes: a quarter of an hour on one CPU core; three seeds of three small models.

Recall: forty keys with values, then the keys in another order; causal, two layers of width 32, a short convolution before each, no positional encoding.
Two heads of 16, or one differential head of 32, whose two maps have 16 features each, and 64 parameters more per layer. The weight is that from a key
that is asked for to its value and the token after it, which the convolution lets hold both, in the head and layer that gives them most, as a share
of the sum of all its weights without their signs. The ablation has the norm and the factor of the differential head, and no second map.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import DifferentialAttention
from ..layers import DifferentialHeads
from ..look import capture
from ..patterns import causal
from ._engine import Claim, Recipe, RecipeFacts, above, at_least, measured, validation_curves
from ._engine.puzzles import Recall
from ._engine.stacks import TEST_SEED, WIDTH, Heads, Stack, StackVariant, draw_sequences, puzzle_training

PUZZLE = Recall(pairs=40, keys=64)
DIFFERENTIAL, SOFTMAX, ONE_MAP = "differential", "softmax", "differential, without the second map"


class OneMap(DifferentialAttention):
    """The ablation: nothing is subtracted."""

    def share(self) -> Tensor:
        return torch.zeros_like(super().share())


@dataclass(frozen=True)
class DifferentialLayer:
    """A factory of layers with one differential head."""

    ablated: bool = False

    def __call__(self) -> nn.Module:
        heads = DifferentialHeads(WIDTH, 1)
        if self.ablated:
            heads.attention = OneMap(heads=1, head_dim=WIDTH)
        return heads


@torch.no_grad()
def weight_of_answer(model: Stack) -> Mapping[str, float]:
    """Weight on the value of the key that is asked for and the token after it, as a share of all."""
    ids_BL, _ = draw_sequences(PUZZLE, TEST_SEED, 64)
    written_BN, asked_BN = ids_BL[:, : 2 * PUZZLE.pairs : 2], ids_BL[:, 2 * PUZZLE.pairs :]
    at_BL = 2 * (asked_BN[:, :, None] == written_BN[:, None]).long().argmax(-1) + 1
    with capture(model) as maps:
        model(ids_BL)
    found = []
    for one in maps.all:
        weights_BHLM = one.weights_BHLM[:, :, 2 * PUZZLE.pairs :].abs()
        share_BHLM = weights_BHLM / weights_BHLM.sum(-1, keepdim=True).clamp(min=1e-9)
        index_BHL2 = torch.stack([at_BL, at_BL + 1], -1)[:, None].expand(-1, share_BHLM.shape[1], -1, -1)
        found.append(share_BHLM.gather(-1, index_BHL2).sum(-1).mean((0, 2)).max())
    return {"weight of the answer": float(torch.stack(found).max())}


def variant(mixer: Callable[[], nn.Module]) -> StackVariant:
    settings: dict[str, Any] = {"pattern": causal, "positions": False, "convolution": 3, "extra_metrics": weight_of_answer}
    return StackVariant(puzzle=PUZZLE, mixer=mixer, train=puzzle_training(600), **settings)


VARIANTS = {DIFFERENTIAL: variant(DifferentialLayer()), SOFTMAX: variant(Heads()), ONE_MAP: variant(DifferentialLayer(ablated=True))}
WEIGHT = "weight of the answer"
LEARNED = (measured(DIFFERENTIAL) >= 0.9, measured(SOFTMAX) >= 0.9)
recipe = Recipe(
    facts=RecipeFacts("differential2024", 2024, "Differential transformer", "arXiv:2410.05258", "a quarter of an hour"),
    question="Does the difference of two attentions put more weight on the answer, among many distractors?",
    variants=VARIANTS,
    claims=(
        at_least("differential: at least 95 % right", 0.95, DIFFERENTIAL),
        Claim(
            "differential gives the answer a larger share of its weights than softmax, by at least 0.1",
            measured(DIFFERENTIAL, WEIGHT) - measured(SOFTMAX, WEIGHT) >= 0.1,
            source="figure 1",
            learned=LEARNED,
        ),
        above("and a larger share than without the second map", (DIFFERENTIAL, WEIGHT), (ONE_MAP, WEIGHT), source="section 2.1"),
        Claim(
            "after equal steps it is at most 2 points below softmax",
            measured(DIFFERENTIAL) - measured(SOFTMAX) >= -0.02,
            source="figure 1",
            learned=(measured(SOFTMAX) >= 0.9,),
        ),
    ),
    pictures=(validation_curves("accuracy"),),
)
