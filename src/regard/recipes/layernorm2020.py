"""At the start, norms before the sublayers keep gradients small, the more so the deeper the model; norms after the sum do not.

Paper: Xiong et al. 2020, "On layer normalization in the transformer architecture", arXiv:2002.04745, theorem 1 and figure 3 (there
       translation with width 512 and up to 14 layers).
Run:   regard run layernorm2020        Takes: a minute on one CPU core; nothing is trained.

Sequences of 32 random tokens with random targets, Xavier initialisation, width 128, 4 heads. The gradient is that of the second matrix of the
feed-forward layers, in the Frobenius norm, the mean over sixteen models: in the last layer by depth, of the loss of one token, which the theorem
is about; and in all layers of a stack of six, of the mean loss of eight sequences, as in the figure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from ..layers import Block, Embedding, FeedForward, LayerNorm, MultiHead, Sinusoidal, init_xavier
from ..layers.block import Placement
from ._engine import Claim, Curves, Recipe, RecipeFacts, between, measured

WIDTH, HEADS, HIDDEN, VOCABULARY, LENGTH, ROWS, DRAWS = 128, 4, 512, 64, 32, 8, 16
DEPTHS, LAYERS = (2, 6, 12, 24), 6
PRE, POST = "norms before", "norms after"


class Stack(nn.Module):
    """Embedding, blocks, and logits. Pre-norm stacks have a norm after the last block."""

    def __init__(self, depth: int, placement: Placement):
        super().__init__()
        self.embedding = Embedding(VOCABULARY, WIDTH, Sinusoidal(WIDTH), scaled=True)
        self.blocks = nn.ModuleList(
            Block(WIDTH, MultiHead(WIDTH, HEADS), FeedForward(WIDTH, HIDDEN), placement=placement) for _ in range(depth)
        )
        self.norm = LayerNorm(WIDTH) if placement == "pre" else nn.Identity()
        self.out = nn.Linear(WIDTH, VOCABULARY, bias=False)
        init_xavier(self)

    def forward(self, ids_BL: torch.Tensor) -> torch.Tensor:
        x_BLD = self.embedding(ids_BL)
        for block in self.blocks:
            x_BLD = block(x_BLD)
        return self.out(self.norm(x_BLD))


@dataclass(frozen=True)
class FirstGradients:
    """Norms of gradients before the first step: in the last layer by depth, and by layer."""

    placement: Placement

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        last = {depth: self._norms(depth, rows=1, targets=1)[-1] for depth in DEPTHS}
        layers = self._norms(LAYERS, ROWS, LENGTH)
        return {
            "exponent": math.log(last[DEPTHS[-1]] / last[DEPTHS[0]]) / math.log(DEPTHS[-1] / DEPTHS[0]),
            "last to first": layers[-1] / layers[0],
            **{f"gradient, depth {depth}": norm for depth, norm in last.items()},
            **{f"gradient by layer, {n + 1}": norm for n, norm in enumerate(layers)},
        }

    def _norms(self, depth: int, rows: int, targets: int) -> list[float]:
        """Norms of the gradient of the mean loss of the last `targets` tokens of each row, by layer, the mean over models and batches."""
        total = torch.zeros(depth)
        for _ in range(DRAWS):
            model = Stack(depth, self.placement)
            matrices: list[torch.Tensor] = [block.feedforward.down.weight for block in model.blocks]  # type: ignore[union-attr, misc]
            ids_BL, target_BT = torch.randint(VOCABULARY, (rows, LENGTH)), torch.randint(VOCABULARY, (rows, targets))
            loss = F.cross_entropy(model(ids_BL)[:, -targets:].flatten(0, 1), target_BT.flatten())
            total += torch.stack([one.norm() for one in torch.autograd.grad(loss, matrices)])
        return (total / DRAWS).tolist()


recipe = Recipe(
    facts=RecipeFacts("layernorm2020", 2020, "On layer normalization in the transformer architecture", "arXiv:2002.04745", "a minute"),
    question="How large are the first gradients of deep transformers, with norms before the sublayers and after?",
    variants={PRE: FirstGradients("pre"), POST: FirstGradients("post")},
    claims=(
        between(
            "norms before: the gradient of the last layer falls with the root of the depth: exponent between −0.65 and −0.35",
            -0.65, -0.35, (PRE, "exponent"), kind="claim", source="theorem 1 and figure 3",
        ),
        between(
            "norms after: it does not depend on the depth: exponent between −0.15 and 0.15",
            -0.15, 0.15, (POST, "exponent"), kind="claim", source="theorem 1 and figure 3",
        ),
        between(
            "norms before, six layers: gradients of the first and the last layer differ by less than a factor of two",
            0.5, 2.0, (PRE, "last to first"), kind="claim", source="figure 3",
        ),
        Claim(
            "norms after, six layers: the gradient of the last layer is larger than that of the first, by a factor above that with norms before",
            measured(POST, "last to first") >= 1.0,
            measured(POST, "last to first") - measured(PRE, "last to first") >= 0,
            source="figure 3",
        ),
    ),
    pictures=(
        Curves(metric="gradient", file="depth", x="layers", y="norm of the gradient", title="Gradient of the last layer", log="xy"),
        Curves(metric="gradient by layer", file="layer", x="layer", y="norm of the gradient", title="Gradient by layer, of six"),
    ),
)  # fmt: skip
