"""Heads whose span costs something learn how far they must attend.

Paper: Sukhbaatar et al. 2019, "Adaptive attention span in transformers", arXiv:1905.07799, section 3 (there characters of
       encyclopaedias, here a token to be repeated after twenty).
Run:   regard run span2019        Takes: about fifteen minutes on two CPU cores; three seeds of three small models.

One layer, one head, a ramp of 8, spans that start at 56, so that the ramp ends with the sequence of 64. (From 64 on the ramp is outside of
it and has no gradient: without a cost such a span could not change; with one it shrinks towards the lag, too, because nothing beyond it helps.) The cost is 0.001 nats per token of span, 0.06 for all of it
(in the paper 0.02). At 0.01 the span shrank before every position had learned where to attend, and one of them never did. The lag should
end on the ramp: z ≤ 20 ≤ z + 8; the claim allows half a ramp more on either side.
"""

from __future__ import annotations

from functools import partial

from ..attention import AdaptiveSpanAttention, LocalAttention
from ..patterns import causal
from ._engine import AttentionMaps, Claim, Recipe, RecipeFacts, at_least, at_most, below, measured, validation_curves
from ._engine.puzzles import Lag
from ._engine.stacks import Heads, Stack, StackVariant, puzzle_training

LENGTH, LAG, RAMP, COST = 64, 20, 8, 0.001
BEGIN = LENGTH - RAMP
PAID, FREE, SHORT = "span with a cost", "span without a cost", "window of 16"


def span(model: Stack) -> dict[str, float]:
    spans = [float(part.span().detach().max()) for part in model.modules() if isinstance(part, AdaptiveSpanAttention)]
    return {"span": max(spans)} if spans else {}  # of the one layer


def variant(heads: Heads, cost: float = 0.0) -> StackVariant:
    puzzle, train = Lag(length=LENGTH, lag=LAG), puzzle_training(1000)
    return StackVariant(puzzle=puzzle, mixer=heads, pattern=causal, depth=1, span_cost=cost, extra_metrics=span, train=train)


SPAN = Heads(attention=partial(AdaptiveSpanAttention, heads=1, longest=LENGTH, ramp=RAMP, begin=BEGIN), heads=1)
VARIANTS = {PAID: variant(SPAN, COST), FREE: variant(SPAN), SHORT: variant(Heads(attention=partial(LocalAttention, 16), heads=1))}

recipe = Recipe(
    facts=RecipeFacts("span2019", 2019, "Adaptive attention span in transformers", "arXiv:1905.07799", "about fifteen minutes"),
    question="Does a head learn how far it must attend?",
    variants=VARIANTS,
    claims=(
        at_least("with a cost: at least 99 % right", 0.99, PAID),
        Claim(
            f"and the middle of the ramp, span + {RAMP // 2}, is within {RAMP} of the lag of {LAG}",
            measured(PAID, "span") >= LAG - 1.5 * RAMP,
            measured(PAID, "span") <= LAG + 0.5 * RAMP,
            kind="level",
        ),
        below(f"the cost shortens the span by at least {RAMP // 2}", (PAID, "span"), (FREE, "span"), by=RAMP / 2),
        Claim("and costs at most half a point of accuracy", measured(PAID) - measured(FREE) >= -0.005, source="table 2"),
        at_most("a window that ends before the lag: at most 12.5 % right, twice chance", 0.125, SHORT, kind="control"),
    ),
    pictures=(validation_curves("accuracy"), AttentionMaps(variants=VARIANTS, columns=3)),
)
