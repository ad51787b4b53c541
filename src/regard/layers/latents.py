r"""A few learned vectors between many tokens: attention whose cost is the length times their number, not the length squared.

$$\mathrm{MAB}(x, y) = N(h + \mathrm{FF}(h)), \quad h = N(x + \mathrm{MultiHead}(x, y)) \qquad
  \mathrm{ISAB}(x) = \mathrm{MAB}(x, \mathrm{MAB}(I, x)) \qquad \mathrm{PMA}(x) = \mathrm{MAB}(S, \mathrm{FF}(x))$$

| here | in the paper | what it does |
|---|---|---|
| `Block(…, placement="post")` | SAB (Set Transformer) | a set looks at itself |
| `CrossBlock` | MAB; a cross-attend of the Perceiver with "pre" | x looks at y |
| `InducedBlock` | ISAB | points look at the set, the set looks at the points |
| `Pooling` | PMA | seeds look at the set: some vectors for all of it |
| `Latents` | Perceiver, Perceiver IO | latents read the input, think, and are asked |

All are made of `MultiHead`s, so any mechanism that looks at another sequence serves, and `capture` sees each look. The map of tokens
over tokens that an `InducedBlock` stands for is the product of its two. Without positions all of them treat the input as
a set: another order changes nothing, or the order of the output alike.

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
from .norms import LayerNorm, Norm


class CrossBlock(nn.Module):
    """x looks at y, then thinks: a block whose only look is at another sequence. With "pre" y is normed, too."""

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
        """`pattern` says where in the memory each of x may look: `lengths` for padding."""
        memory_BMD = memory_BMD if self.memory_norm is None else self.memory_norm(memory_BMD)
        x_BLD = self.around_cross(x_BLD, lambda x: self.cross(x, memory_BMD, pattern))
        return x_BLD if self.around_feedforward is None else self.around_feedforward(x_BLD, self.feedforward)


class InducedBlock(nn.Module):
    """Learned points gather from the tokens, and each token reads what they gathered: O(length · points)."""

    def __init__(self, width: int, points: int, gather: CrossBlock, spread: CrossBlock):
        super().__init__()
        self.points_CD = _learned(points, width)
        self.gather, self.spread = gather, spread

    def forward(self, x_BLD: Tensor, pattern: Pattern = full) -> Tensor:
        """`pattern` says which tokens there are (`full`, `lengths`): the points are no positions that an order could hold for."""
        return self.spread(x_BLD, self.gather(_for_each(self.points_CD, x_BLD), x_BLD, pattern))  # type: ignore[no-any-return]


class Pooling(nn.Module):
    """A set becomes `seeds` vectors, each a learned question to it. The feed-forward part acts on the tokens first."""

    def __init__(self, width: int, seeds: int, look: CrossBlock, feedforward: nn.Module | None = None):
        super().__init__()
        self.seeds_CD = _learned(seeds, width)
        self.look, self.feedforward = look, feedforward

    def forward(self, x_BLD: Tensor, pattern: Pattern = full) -> Tensor:
        seeds_BCD = _for_each(self.seeds_CD, x_BLD)
        return self.look(seeds_BCD, x_BLD if self.feedforward is None else self.feedforward(x_BLD), pattern)  # type: ignore[no-any-return]


class Latents(nn.Module):
    """A learned array reads the input and thinks; if asked, others then read the array. Depth does not know the length.

    read    a look of the latents at the input
    blocks  latents among themselves, after each look
    rounds  how often in all; the blocks are the same in each
    again   what later rounds look at the input with; None: only the first looks (Perceiver IO)
    write   a look of `queries` at the latents; None: the latents are the result
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
            raise ShapeError(f"Latents take rounds ≥ 1, and ≥ 2 with `again`, which is for the later ones; got rounds={rounds}")
        self.latents_CD = _learned(count, width, std=0.02)
        self.read, self.blocks, self.rounds, self.again, self.write = read, nn.ModuleList(blocks), rounds, again, write

    def forward(self, x_BMD: Tensor, pattern: Pattern = full, queries_BLD: Tensor | None = None) -> Tensor:
        """`pattern` says which of the input there is (`full`, `lengths`)."""
        if (queries_BLD is None) != (self.write is None):
            asked = "has no `write` to answer queries with" if self.write is None else "answers queries, and was given none"
            raise ShapeError(f"this Latents {asked}; `write` and `queries_BLD` come together")
        z_BCD = _for_each(self.latents_CD, x_BMD)
        for n in range(self.rounds):
            look = self.read if n == 0 else self.again
            z_BCD = z_BCD if look is None else look(z_BCD, x_BMD, pattern)
            for block in self.blocks:
                z_BCD = block(z_BCD)
        return z_BCD if self.write is None else self.write(queries_BLD, z_BCD)


def _learned(count: int, width: int, std: float | None = None) -> nn.Parameter:
    """Vectors that begin at random, or they would stay alike: as xavier does, or with a given spread."""
    table_CD = torch.empty(count, width)
    return nn.Parameter(nn.init.xavier_uniform_(table_CD) if std is None else nn.init.trunc_normal_(table_CD, std=std, a=-2, b=2))


def _for_each(table_CD: Tensor, x_BLD: Tensor) -> Tensor:
    return table_CD.expand(len(x_BLD), -1, -1)
