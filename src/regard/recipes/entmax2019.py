"""Most weights of a trained model may be exactly zero without a higher loss.

Paper: Peters et al. 2019, "Sparse sequence-to-sequence models", arXiv:1905.05702, sections 3 and 5; Correia et al. 2019, "Adaptively sparse
       transformers", arXiv:1909.00015, table 1 (there translation: α-entmax is on par with softmax).
Run:   regard run entmax2019        Takes: a quarter of an hour on one CPU core; three seeds of three small models.

Characters of CPython's documentation in windows of 64, two layers of width 64 with 4 heads and rotary positions. Zeros are those among the weights of
earlier characters, from the 33rd on. The rival is sparsemax, α = 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from ..attention import Attention, EntmaxAttention, SoftmaxAttention
from ..layers import Rotary
from ..look import capture
from ._engine import Claim, Recipe, RecipeFacts, above, at_most, measured, validation_curves
from ._engine.stacks import Heads, Stack, puzzle_training
from ._engine.text_stacks import Characters, TextStackVariant

LENGTH = 64
SOFTMAX, ENTMAX, SPARSEMAX = "softmax", "1.5-entmax", "sparsemax"


@torch.no_grad()
def zeros(model: Stack, ids_BL: Tensor) -> Mapping[str, float]:
    """Share of the weights of earlier characters that are exactly zero, in the second half of the windows."""
    with capture(model) as maps:
        model(ids_BL[:16])
    earlier_LM = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()[LENGTH // 2 :]
    return {
        "zeros": float(torch.stack([(one.weights_BHLM[..., LENGTH // 2 :, :] == 0)[..., earlier_LM] for one in maps.all]).float().mean())
    }


def variant(attention: Callable[[], Attention]) -> TextStackVariant:
    mixer = Heads(attention=attention, width=64, heads=4, position=Rotary)
    return TextStackVariant(puzzle=Characters(length=LENGTH), longest=LENGTH, mixer=mixer, train=puzzle_training(600), read=zeros)


recipe = Recipe(
    facts=RecipeFacts("entmax2019", 2019, "Sparse sequence-to-sequence models", "arXiv:1905.05702", "a quarter of an hour"),
    question="How many attention weights may be exactly zero?",
    variants={
        SOFTMAX: variant(SoftmaxAttention),
        ENTMAX: variant(EntmaxAttention),
        SPARSEMAX: variant(partial(EntmaxAttention, alpha=2.0)),
    },
    claims=(
        Claim(
            "1.5-entmax: at least half of the weights are zero, at a loss at most 0.02 nats above that of softmax",
            measured(ENTMAX, "zeros") >= 0.5,
            measured(ENTMAX, "loss") - measured(SOFTMAX, "loss") <= 0.02,
            source="Correia et al., table 1",
        ),
        at_most("softmax has no zeros: at most 1 in 1,000", 1e-3, (SOFTMAX, "zeros"), kind="control"),
        above("sparsemax has more of them than 1.5-entmax", (SPARSEMAX, "zeros"), (ENTMAX, "zeros"), source="section 3"),
    ),
    pictures=(validation_curves("accuracy"),),
)
