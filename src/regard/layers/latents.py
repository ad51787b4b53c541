r"""Learned latent vectors: attention whose cost is the length times their number, not the length squared.

$$\mathrm{MAB}(x, y) = N(h + \mathrm{FF}(h)), \quad h = N(x + \mathrm{MultiHead}(x, y)) \qquad
  \mathrm{ISAB}(x) = \mathrm{MAB}(x, \mathrm{MAB}(I, x)) \qquad \mathrm{PMA}(x) = \mathrm{MAB}(S, \mathrm{FF}(x))$$

| here | in the paper | what it does |
|---|---|---|
| `Block(…, placement="post")` | SAB (Set Transformer) | self-attention over a set |
| `CrossBlock` | MAB; with "pre" the Perceiver's cross-attention | x attends to y |
| `InducedBlock` | ISAB | inducing points attend to the set, the set attends to them |
| `Pooling` | PMA | seed vectors attend to the set and summarise it |
| `Latents` | Perceiver, Perceiver IO | latents attend to the input, are processed, and are queried |

All are built from `MultiHead`, so any mechanism with cross-attention works, and `capture` records each. The token-to-token map of an
`InducedBlock` is the product of its two. Without positions the input is a set: the output is invariant or equivariant to its order.

Paper: Lee et al. 2019, "Set Transformer", arXiv:1810.00825, section 3; Jaegle et al. 2021, "Perceiver", arXiv:2103.03206, and
       "Perceiver IO", arXiv:2107.14795.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ..errors import ShapeError
from ..patterns import Pattern, full
from .block import Placement, Residual
from .multihead import MultiHead
from .positionwise import LayerNorm, Norm


class CrossBlock(nn.Module):
    """Cross-attention to another sequence, then a feed-forward layer, without self-attention. With "pre" the memory is normed, too.

    Args:
        width: model width D.
        cross: cross-attention of x to the memory.
        feedforward: position-wise layer after it; None: none.
        placement: position of the norms, as in `Block`.
        norm: factory of the norms, `width -> module`.
        dropout: dropout rate after each sublayer.

    Shape: x_BLD, memory_BMD → out_BLD.
    """

    def __init__(
        self,
        width: int,
        cross: MultiHead,
        feedforward: nn.Module | None,
        *,
        placement: Placement = "post",
        norm: Norm = LayerNorm,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.cross, self.feedforward = cross, feedforward
        self.around_cross = Residual(width, placement, norm, dropout)
        self.memory_norm = None if placement == "post" else norm(cross.memory_width)
        self.around_feedforward = None if feedforward is None else Residual(width, placement, norm, dropout)

    def forward(self, x_BLD: Tensor, memory_BMD: Tensor, pattern: Pattern = full) -> Tensor:
        """Attend to the memory, then apply the feed-forward layer.

        Args:
            x_BLD: activations.
            memory_BMD: the other sequence.
            pattern: pairs of x and memory that are allowed: `lengths` for padding.
        """
        memory_BMD = memory_BMD if self.memory_norm is None else self.memory_norm(memory_BMD)
        x_BLD = self.around_cross(x_BLD, lambda x: self.cross(x, memory_BMD, pattern))
        return x_BLD if self.around_feedforward is None else self.around_feedforward(x_BLD, self.feedforward)


class InducedBlock(nn.Module):
    """Learned inducing points attend to the tokens, and the tokens attend to them: O(length · points).

    Args:
        width: model width D.
        points: number of inducing points.
        gather: block in which the points attend to the tokens.
        spread: block in which the tokens attend to the points.

    Shape: x_BLD → out_BLD.
    """

    def __init__(self, width: int, points: int, gather: CrossBlock, spread: CrossBlock):
        super().__init__()
        self.points_CD = _learned(points, width)
        self.gather, self.spread = gather, spread

    def forward(self, x_BLD: Tensor, pattern: Pattern = full) -> Tensor:
        """Gather the tokens into the points, and spread these again. `pattern` says which tokens are real (`full`, `lengths`)."""
        return self.spread(x_BLD, self.gather(_for_each(self.points_CD, x_BLD), x_BLD, pattern))


class Pooling(nn.Module):
    """Pool a set into `seeds` vectors, each a learned query. The feed-forward layer is applied to the tokens first.

    Args:
        width: model width D.
        seeds: number of learned queries.
        cross: cross-attention of the queries to the tokens.
        feedforward: position-wise layer on the tokens first; None: none.

    Shape: x_BLD → out_BCD, C = `seeds`.
    """

    def __init__(self, width: int, seeds: int, cross: CrossBlock, feedforward: nn.Module | None = None):
        super().__init__()
        self.seeds_CD = _learned(seeds, width)
        self.cross, self.feedforward = cross, feedforward

    def forward(self, x_BLD: Tensor, pattern: Pattern = full) -> Tensor:
        seeds_BCD = _for_each(self.seeds_CD, x_BLD)
        return self.cross(seeds_BCD, x_BLD if self.feedforward is None else self.feedforward(x_BLD), pattern)


class Latents(nn.Module):
    """A learned array attends to the input and is processed; `queries`, if given, attend to the result. The cost of the blocks does
    not depend on the input length.

    Args:
        width: model width D of the latents.
        count: number of latents.
        read: cross-attention of the latents to the input.
        blocks: layers over the latents, after each read.
        rounds: number of rounds of read and blocks; all share the blocks.
        again: cross-attention to the input in later rounds; None: only the first round reads (Perceiver IO).
        write: cross-attention of `queries` to the latents; None: the latents are the result.

    Shape: x_BMD → latents_BCD, or with queries_BLD → out_BLD.
    """

    def __init__(
        self,
        width: int,
        count: int,
        read: CrossBlock,
        blocks: Iterable[nn.Module] = (),
        *,
        rounds: int = 1,
        again: CrossBlock | None = None,
        write: CrossBlock | None = None,
    ):
        super().__init__()
        if rounds < 1 or (again is not None and rounds == 1):
            raise ShapeError(f"Latents: rounds={rounds}; expected at least 1, and at least 2 with `again`, which is for later rounds")
        self.latents_CD = _learned(count, width, std=0.02)
        self.read, self.blocks, self.rounds, self.again, self.write = read, nn.ModuleList(blocks), rounds, again, write

    def forward(self, x_BMD: Tensor, pattern: Pattern = full, queries_BLD: Tensor | None = None) -> Tensor:
        """Read the input into the latents, and process them.

        Args:
            x_BMD: input.
            pattern: tokens of the input that are real (`full`, `lengths`).
            queries_BLD: queries that attend to the latents; None: the latents are the result.
        """
        if (queries_BLD is None) != (self.write is None):
            given = "was given queries and has no `write`" if self.write is None else "has `write` and was given no queries"
            raise ShapeError(f"this Latents {given}; expected both or neither")
        z_BCD = _for_each(self.latents_CD, x_BMD)
        for n in range(self.rounds):
            read = self.read if n == 0 else self.again
            z_BCD = z_BCD if read is None else read(z_BCD, x_BMD, pattern)
            for block in self.blocks:
                z_BCD = block(z_BCD)
        return z_BCD if self.write is None else self.write(queries_BLD, z_BCD)


def _learned(count: int, width: int, std: float | None = None) -> nn.Parameter:
    """Learned vectors, random so that they differ: Xavier uniform, or truncated normal with a given deviation."""
    table_CD = torch.empty(count, width)
    return nn.Parameter(nn.init.xavier_uniform_(table_CD) if std is None else nn.init.trunc_normal_(table_CD, std=std, a=-2, b=2))


def _for_each(table_CD: Tensor, x_BLD: Tensor) -> Tensor:
    return table_CD.expand(len(x_BLD), -1, -1)
