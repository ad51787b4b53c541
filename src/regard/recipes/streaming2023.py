"""A trained model puts surplus weight on the first tokens; a window that keeps them works on, one that drops them does not.

Paper: Xiao et al. 2023, "Efficient streaming language models with attention sinks", arXiv:2309.17453, section 3.1 and table 1 (there Llama-2-13B on
       65,000 tokens: perplexity 5.40 with 4 first tokens and 1,020 recent ones, 5,158 with 1,024 recent ones alone).
Run:   regard run streaming2023        Takes: ten minutes on one CPU core; three seeds of two small models.

Characters of CPython's documentation in windows of 128, two layers of width 64 with 4 heads and rotary positions, trained with attention to all earlier
characters, and read with 32 keys per query: the last 32, or the last 28 and the first 4. The loss is that of the 65th to the 128th
character, none of which is further from a key than in training. The ablation is trained with the window: it needs no first tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from ..attention import Attention, LocalAttention, SoftmaxAttention, StreamingAttention
from ..layers import Rotary
from ..look import capture
from ._engine import Claim, Curves, Recipe, RecipeFacts, Value, measured, validation_curves
from ._engine.stacks import Heads, Stack, puzzle_training
from ._engine.text_stacks import Characters, TextStackVariant, loss

LENGTH, KEYS, FIRST = 128, 32, 4
TRAINED, WINDOWED = "trained with all keys", "trained with the window"
SINKS, NO_SINKS = "28 keys and 4 sinks", "32 keys"


def heads(attention: Callable[[], Attention]) -> Heads:
    return Heads(attention=attention, width=64, heads=4, position=Rotary)


WINDOW = heads(partial(LocalAttention, KEYS - 1))  # a window of r on one side is r keys and the query's own
READERS = {SINKS: heads(partial(StreamingAttention, KEYS - 1 - FIRST, FIRST)), NO_SINKS: WINDOW}


@torch.no_grad()
def weight_of_first(model: Stack, ids_BL: Tensor) -> Mapping[str, float]:
    """Weight of the first 4 tokens from the 65th on, and what it would be if all keys had equal weights."""
    with capture(model) as maps:
        model(ids_BL[:16])
    weights = torch.stack([one.weights_BHLM[..., LENGTH // 2 :, :FIRST].sum(-1).mean() for one in maps.all])
    equal = float((FIRST / torch.arange(LENGTH // 2 + 1, LENGTH + 1)).mean())
    return {"weight of the first 4": float(weights.max()), "equal weights": equal}


def variant(mixer: Heads) -> TextStackVariant:
    return TextStackVariant(
        puzzle=Characters(length=LENGTH), longest=LENGTH, mixer=mixer, train=puzzle_training(600), reevaluated=READERS, read=weight_of_first
    )


def late(variant: str, reader: str = "") -> Value:
    return loss(variant, 65, 128, reader)


recipe = Recipe(
    facts=RecipeFacts("streaming2023", 2023, "Efficient streaming language models with attention sinks", "arXiv:2309.17453", "ten minutes"),
    question="What does a window lose when it drops the first tokens of a trained model?",
    variants={TRAINED: variant(heads(SoftmaxAttention)), WINDOWED: variant(WINDOW)},
    claims=(
        Claim(
            "in one layer the first 4 tokens have at least twice the weight that equal ones would give them",
            measured(TRAINED, "weight of the first 4") / measured(TRAINED, "equal weights") >= 2,
            source="figure 2",
        ),
        Claim(
            "a window of 32 keys has a higher loss than one of 28 with the first 4, by 0.1 nats",
            late(TRAINED, NO_SINKS) - late(TRAINED, SINKS) >= 0.1,
            source="table 1",
        ),
        Claim(
            "with the first 4, the loss is at most 0.05 nats above that of all keys",
            late(TRAINED, SINKS) - late(TRAINED) <= 0.05,
            source="table 1",
        ),
        Claim(
            "trained with the window, the first 4 gain nothing: at most 0.02 nats",
            late(WINDOWED, NO_SINKS) - late(WINDOWED, SINKS) <= 0.02,
        ),
    ),
    pictures=(
        Curves(metric="loss", file="contexts", x="characters read", y="loss per character (nats)", title="Loss by context", log="x"),
        validation_curves("accuracy"),
    ),
)
