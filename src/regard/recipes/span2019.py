"""Heads that pay for how far they look find out how far they must.

Paper: Sukhbaatar et al. 2019, "Adaptive attention span in transformers", arXiv:1905.07799, section 3 (there characters of
       encyclopaedias, here a token to be repeated after twenty).
Run:   regard run span2019        Takes: some minutes on two CPU cores; three seeds of three small models.

One layer, one head, a ramp of 8, spans that begin at 64, the whole sequence. A token more of span costs 0.001 nats, so that all of it costs
0.06 (in the paper 0.02). At 0.01 the span shrank before every place had learned where to look, and one of them never did. The lag should
end on the ramp: z ≤ 20 ≤ z + 8; the claim allows half a ramp more to either side.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ..attention import AdaptiveSpanAttention, LocalAttention
from ..patterns import causal
from ._base import Claim, Figures, Recipe, RecipeFacts, folder
from ._pictures import looks, solving
from ._puzzles import Lag
from ._sequences import Heads, Reader, Taught, training

LENGTH, LAG, RAMP, COST = 64, 20, 8, 0.001
PAID, FREE, SHORT = "span that costs", "span that is free", "window of 16"


def spans(model: Reader) -> dict[str, float]:
    found = [float(part.span().detach().max()) for part in model.modules() if isinstance(part, AdaptiveSpanAttention)]
    return {"span": max(found)} if found else {}  # of the one layer


def variant(heads: Heads, cost: float = 0.0) -> Taught:
    puzzle = Lag(length=LENGTH, lag=LAG)
    return Taught(puzzle=puzzle, mixer=heads, pattern=causal, depth=1, span_cost=cost, also=spans, train=training(1000))


SPAN = Heads(attention=partial(AdaptiveSpanAttention, heads=1, longest=LENGTH, ramp=RAMP, begin=LENGTH), heads=1)
VARIANTS = {PAID: variant(SPAN, COST), FREE: variant(SPAN), SHORT: variant(Heads(attention=partial(LocalAttention, 16), heads=1))}


def maps(figures: Figures, out: Path) -> Path:
    shown = {name: each.look(folder(out, name, figures.seeds[0])) for name, each in VARIANTS.items()}
    return looks(out / "looks.png", shown, columns=len(shown))


recipe = Recipe(
    facts=RecipeFacts(
        name="span2019",
        year=2019,
        title="Adaptive attention span in transformers",
        paper="arXiv:1905.07799",
        takes="some minutes on two CPU cores",
    ),
    question="Does a head find out by itself how far it must look?",
    variants=VARIANTS,
    claims=(
        Claim(
            "with a cost: at least 99 % right",
            lambda f: f[PAID, "accuracy"].low >= 0.99,
            lambda f: str(f[PAID, "accuracy"]),
        ),
        Claim(
            f"and the middle of the ramp, span + {RAMP // 2}, is within {RAMP} of the lag of {LAG}",
            lambda f: f[PAID, "span"].low + RAMP / 2 >= LAG - RAMP and f[PAID, "span"].high + RAMP / 2 <= LAG + RAMP,
            lambda f: f"span {f[PAID, 'span']}",
        ),
        Claim(
            "without a cost the span stays above 50 of 64",
            lambda f: f[FREE, "span"].low > 50,
            lambda f: f"span {f[FREE, 'span']}",
        ),
        Claim(
            "a window that ends before the lag: at most 12.5 % right, twice chance",
            lambda f: f[SHORT, "accuracy"].high <= 0.125,
            lambda f: str(f[SHORT, "accuracy"]),
        ),
    ),
    pictures=(solving, maps),
)
