"""Attention pools a sequence without diluting it: trained on 60 tokens, it finds the one that counts among 600, where the mean loses it.

Paper: Lin et al. 2017, "A structured self-attentive sentence embedding", arXiv:1703.03130; Conneau et al. 2017, arXiv:1705.02364, where the maximum
       is better than attention (there SNLI with recurrent encoders, here a puzzle).
Run:   regard run lin2017        Takes: about a minute on one CPU core; three seeds of three small models.

Letters, five digits in ten tokens, and a mark before the digit that is asked for. The encoder sees a token and the one before it, and nothing
else: a recurrent encoder would carry the digit to every state, and with it the mean does as well as anything. At the length of training the mean
learns the puzzle, too, five times as slowly; it is longer sequences that dilute it. The maximum is the honest rival. Equal sizes, but for the
query and its keys, and equal steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..layers import AttentionPooling, max_pool, mean_pool
from ..look import Map, capture
from ..train import TrainOptions
from ._engine import AttentionMaps, Claim, Proportion, Recipe, RecipeFacts, above, at_least, at_most, measured, validation_curves
from ._engine.puzzles import Marked
from ._engine.stacks import TEST_SEED, PuzzleVariant, draw_sequences, puzzle_training, score_targets

LENGTHS = (60, 240, 600)
TEST = 1024  # sequences of each length
TRAIN = puzzle_training(600)
ATTENTION, MEAN, MAX = "attention", "mean", "maximum"


class Bigrams(nn.Module):
    """States relu(W [e_t; e_{t−1}]) of each token, pooled to one vector, from which the digit is read."""

    def __init__(self, vocab_size: int, width: int, pooling: Literal["attention", "mean", "max"]):
        super().__init__()
        self.token, self.pair = nn.Embedding(vocab_size, width), nn.Linear(2 * width, width)
        self.attention = AttentionPooling(width, width) if pooling == "attention" else None
        self.pool = max_pool if pooling == "max" else mean_pool
        self.out = nn.Linear(width, vocab_size)

    def forward(self, ids_BL: Tensor) -> Tensor:
        """logits_BLN: the same at every position."""
        h_BLD, n_B = self.states(ids_BL), torch.full((len(ids_BL),), ids_BL.shape[1])
        y_BD = self.pool(h_BLD, n_B) if self.attention is None else self.attention(h_BLD, n_B).squeeze(1)
        return self.out(y_BD)[:, None].expand(-1, ids_BL.shape[1], -1)

    def states(self, ids_BL: Tensor) -> Tensor:
        e_BLD = self.token(ids_BL)
        return torch.relu(self.pair(torch.cat([e_BLD, F.pad(e_BLD, (0, 0, 1, 0))[:, :-1]], -1)))


MARKED = Marked(length=LENGTHS[0], distractors=0.5)


@dataclass(frozen=True, kw_only=True)
class PoolingVariant(PuzzleVariant[Bigrams]):
    """A pooling over states of two tokens, evaluated on sequences up to ten times as long as those of training."""

    puzzle: Marked = MARKED
    train: TrainOptions = TRAIN
    batch_size: int = 64
    pooling: Literal["attention", "mean", "max"]
    width: int = 64

    def build(self) -> Bigrams:
        return Bigrams(self.puzzle.vocab_size, self.width, self.pooling)

    @torch.no_grad()
    def metrics(self, model: Bigrams) -> dict[str, float]:
        found: dict[str, float] = {}
        for length in LENGTHS:
            ids_BL, target_BL = draw_sequences(replace(self.puzzle, length=length), TEST_SEED, TEST)
            _, right, count = score_targets(model, ids_BL, target_BL)
            found[f"accuracy, length {length}"] = Proportion(right / count, count)
            if model.attention is not None:
                weights_BM = model.attention.weights(model.states(ids_BL), torch.full((len(ids_BL),), length))[:, 0]
                at_B = self.puzzle.answers(ids_BL)
                found[f"weight, length {length}"] = float(weights_BM[torch.arange(len(at_B)), at_B].mean())
        return {"accuracy": min(found[f"accuracy, length {length}"] for length in LENGTHS), **found}

    @torch.no_grad()
    def attention_map(self, out: Path, layer: int = -1) -> Map:
        """The weights of the query over the first test sequence."""
        model, ids_BL = self.load(out), draw_sequences(self.puzzle, TEST_SEED)[0][:1]
        digits, mark = self.puzzle.digits, self.puzzle.vocab_size - 1
        words = [str(n) if n < digits else "mark" if n == mark else chr(ord("a") + n - digits) for n in ids_BL[0].tolist()]
        with capture(model) as maps:
            model(ids_BL)
        return maps.all[-1].label(["query"], words)


VARIANTS = {
    ATTENTION: PoolingVariant(pooling="attention"),
    MEAN: PoolingVariant(pooling="mean"),
    MAX: PoolingVariant(pooling="max"),
}
recipe = Recipe(
    facts=RecipeFacts("lin2017", 2017, "A structured self-attentive sentence embedding", "arXiv:1703.03130", "about a minute"),
    question="Does attention find the token that counts in a sequence ten times as long as those of training?",
    variants=VARIANTS,
    claims=(
        at_least("attention is right at all three lengths: at least 97 %", 0.97, *((ATTENTION, f"accuracy, length {n}") for n in LENGTHS)),
        at_least("and gives the digit at least 0.9 of its weight", 0.9, *((ATTENTION, f"weight, length {n}") for n in LENGTHS)),
        at_most("the mean is right in at most half of all cases at four and ten times the length of training", 0.5,
                *((MEAN, f"accuracy, length {n}") for n in LENGTHS[1:])),
        above("at ten times the length attention is at least 50 points above the mean",
              (ATTENTION, f"accuracy, length {LENGTHS[-1]}"), (MEAN, f"accuracy, length {LENGTHS[-1]}"), 0.5),
        Claim(
            "the maximum, the honest rival, is within 3 points of attention at every length",
            *(measured(MAX, f"accuracy, length {n}") - measured(ATTENTION, f"accuracy, length {n}") <= 0.03 for n in LENGTHS),
            *(measured(MAX, f"accuracy, length {n}") - measured(ATTENTION, f"accuracy, length {n}") >= -0.03 for n in LENGTHS),
        ),
    ),
    pictures=(validation_curves("accuracy"), AttentionMaps(variants={ATTENTION: VARIANTS[ATTENTION]}, columns=1)),
)  # fmt: skip
