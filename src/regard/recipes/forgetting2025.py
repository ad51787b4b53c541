"""A forget gate in softmax attention replaces positions, and works on texts longer than those of training.

Paper: Lin et al. 2025, "Forgetting transformer: softmax attention with a forget gate", arXiv:2503.02130, section 4 (there
       760 million parameters and 16,384 tokens; without positions, and against rotary ones).
Run:   regard run forgetting2025        Takes: a quarter of an hour on one CPU core; three seeds of four small models.

Characters of CPython's documentation, in windows of 64 for training and of 256 for the test; two layers of width 64 with 4 heads. Loss beyond is that of
the 129th to the 256th character, loss within that of the 33rd to the 64th. The ablation has the gates, one per head, but they see no
text: a constant decay per head.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from ..attention import Attention, ForgettingAttention, SoftmaxAttention
from ..layers import MultiHead, Rotary
from ._engine import Claim, Curves, Recipe, RecipeFacts, Value, validation_curves
from ._engine.stacks import Heads, puzzle_training
from ._engine.text_stacks import TextStackVariant, loss

WIDTH, HEADS = 64, 4
FORGETTING, CONSTANT, ROTARY, NONE = "forget gate", "constant gate", "rotary positions", "no positions"


def constant_gates() -> nn.Module:
    """The ablation: gates of a bias alone."""
    heads = MultiHead(WIDTH, HEADS, ForgettingAttention())
    assert heads.gates is not None
    nn.init.zeros_(heads.gates.weight).requires_grad_(False)
    return heads


def heads(attention: Callable[[], Attention] = SoftmaxAttention, position: type[Rotary] | None = None) -> Heads:
    return Heads(attention=attention, width=WIDTH, heads=HEADS, position=position)


def variant(mixer: Callable[[], nn.Module]) -> TextStackVariant:
    return TextStackVariant(mixer=mixer, train=puzzle_training(800))


def within(name: str) -> Value:
    return loss(name, 33, 64)


def beyond(name: str) -> Value:
    return loss(name, 129, 256)


recipe = Recipe(
    facts=RecipeFacts(
        "forgetting2025", 2025, "Forgetting transformer: softmax attention with a forget gate", "arXiv:2503.02130", "a quarter of an hour"
    ),
    question="Does a forget gate replace positions, and does it work on longer texts?",
    variants={
        FORGETTING: variant(heads(ForgettingAttention)),
        CONSTANT: variant(constant_gates),
        ROTARY: variant(heads(position=Rotary)),
        NONE: variant(heads()),
    },
    claims=(
        Claim("within: below no positions by at least 0.05 nats", within(NONE) - within(FORGETTING) >= 0.05, source="section 4"),
        Claim("within: at most 0.02 nats above rotary positions", within(FORGETTING) - within(ROTARY) <= 0.02, source="section 4"),
        Claim(
            "the loss beyond is at most 0.02 nats above that within", beyond(FORGETTING) - within(FORGETTING) <= 0.02, source="section 4"
        ),
        Claim("beyond: below rotary positions by at least 0.1 nats", beyond(ROTARY) - beyond(FORGETTING) >= 0.1, source="section 4"),
        Claim("within: gates that see the text are below constant ones", within(CONSTANT) - within(FORGETTING) >= 0, source="section 4"),
    ),
    pictures=(
        Curves(metric="loss", file="contexts", x="characters read", y="loss per character (nats)", title="Loss by context", log="x"),
        validation_curves("accuracy"),
    ),
)
