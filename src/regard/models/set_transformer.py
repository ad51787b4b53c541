r"""The Set Transformer: items attend to each other, learned seeds attend to the items, and the order of the items makes no difference.

$$\mathrm{MAB}(x, y) = N(h + \mathrm{rFF}(h)), \quad h = N(x + \mathrm{MHA}(x, y)) \qquad \mathrm{SAB}(x) = \mathrm{MAB}(x, x) \qquad
  \mathrm{ISAB}(x) = \mathrm{MAB}(x, \mathrm{MAB}(I, x))$$
$$z = \mathrm{SAB}^n(W x + b) \qquad s = \mathrm{SAB}^m(\mathrm{MAB}(S, \mathrm{rFF}(z))) \qquad y = W_o\,[s_1; \dots; s_C] + b_o$$

rFF(h) = relu(W h + b) of each item, N a layer norm or nothing. The head reads the seeds together (a number or a label per set), one by one
(the parameters of a mixture), or the items z themselves (a choice among them).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from ..bounds import DepthOrNone
from ..errors import BadConfig, ShapeError
from ..layers import Block, CrossBlock, Dropout, InducedBlock, LayerNorm, MultiHead, NoNorm, Pooling, max_pool, mean_pool
from ..patterns import lengths
from .model import Model, ModelConfig, ModelFacts, Probability, Size, attention_lines, build_heads


@dataclass(frozen=True, kw_only=True)
class SetTransformerConfig(ModelConfig):
    inputs: Size  # numbers per item
    outputs: Size = 1  # numbers that the head computes: per set, item or seed
    head: Literal["set", "item", "seed"] = "set"  # owner of the outputs: the set, each item, each seed
    width: Size = 64  # model width
    heads: Size = 4  # attention heads
    encoder: Literal["sab", "isab", "rff"] = "sab"  # blocks over the items: self-attention, through inducing points; rff: without attention
    points: Size = 16  # inducing points per isab block
    depth: DepthOrNone = 2  # blocks over the items
    pool: Literal["attention", "mean", "max"] = "attention"  # pooling by seeds that attend (PMA); mean and max are the ablations
    seeds: Size = 1  # vectors that the set is pooled into; mean and max give one
    decoder_depth: DepthOrNone = 1  # self-attention blocks over the seeds
    norm: bool = False  # layer norms; the paper leaves them out where numbers count, and so is the default
    attention: tuple[str, ...] = ("softmax",)  # mechanisms of the blocks over the items, in turn
    dropout: Probability = 0.0  # dropout after each sublayer
    max_length: Size = 1024  # items per set that a mechanism sized by length is built for; softmax attention has no limit

    def __post_init__(self) -> None:
        object.__setattr__(self, "attention", attention_lines(type(self).__name__, self.attention))
        super().__post_init__()
        if self.width % self.heads:
            raise BadConfig(f"{type(self).__name__}: width={self.width}; expected a multiple of heads={self.heads}")


class SetTransformer(Model):
    """Self-attention over the items of a set, pooling by attention, self-attention over what is pooled: for sets of any size, in any order.

    Cost:    time O(L²·D) per block for sets of L items with encoder="sab", O(L·points·D) with "isab".
    Use it:  where the input is a set: points, measurements, bags of instances; outputs do not change when items change places.
    Avoid it: where the order matters (it is not seen), or where items need not be compared: max or mean pooling then does as well.
    Limits:  an empty set is pooled to what the seeds know without any items (mean and max: zeros); head="item" gives it no outputs. Attention is
             scaled by the size of a head and has an output matrix, as in the paper's equations; the authors' code divides by the root of the
             whole width and has none.
    Shape:   x_BLI and n_B, the number of items of each set → out_BN; head="item": out_BLN; head="seed": out_BCN.
    Paper:   Lee et al. 2019, "Set Transformer: a framework for attention-based permutation-invariant neural networks", arXiv:1810.00825.
    """

    facts = ModelFacts(name="set_transformer", year=2019, title="Set Transformer", paper="arXiv:1810.00825")
    Config = SetTransformerConfig
    config: SetTransformerConfig

    def _build(self) -> None:
        c = self.config
        self.input = nn.Linear(c.inputs, c.width)
        self.encoder = nn.ModuleList(self._block(layer) for layer in range(c.depth))
        self.pool = self.rff = None
        if c.head != "item":
            self.pool = Pooling(c.width, c.seeds, self._mab(), self._rff()) if c.pool == "attention" else None
            self.rff = self._rff() if self.pool is None else None
        self.decoder = nn.ModuleList(self._sab("softmax") for _ in range(0 if c.head == "item" else c.decoder_depth))
        pooled = c.seeds if self.pool is not None else 1
        alone = c.head == "seed" and pooled == c.seeds  # every seed has its own vector
        self.output = nn.Linear(
            c.width if c.head == "item" or alone else pooled * c.width, c.outputs * (c.seeds if c.head == "seed" and not alone else 1)
        )

    def _block(self, layer: int) -> nn.Module:
        c, line = self.config, self.config.attention[layer % len(self.config.attention)]
        if c.encoder == "isab":
            return InducedBlock(c.width, c.points, self._mab(line), self._mab(line))
        return self._sab(line) if c.encoder == "sab" else nn.Sequential(self._rff(), Dropout(c.dropout))

    def _sab(self, line: str) -> Block:
        c = self.config
        return Block(c.width, self._heads(line), self._rff(), placement="post", norm=self._norm, dropout=c.dropout)

    def _mab(self, line: str = "softmax") -> CrossBlock:
        c = self.config
        return CrossBlock(c.width, self._heads(line), self._rff(), norm=self._norm, dropout=c.dropout)

    def _heads(self, line: str) -> MultiHead:
        c = self.config
        return build_heads(line, c.width, c.heads, c.max_length)

    def _rff(self) -> nn.Module:
        return nn.Sequential(nn.Linear(self.config.width, self.config.width), nn.ReLU())

    def _norm(self, width: int) -> nn.Module:
        return LayerNorm(width) if self.config.norm else NoNorm(width)

    def features(self, x_BLI: Tensor, n_B: Tensor) -> Tensor:
        """Compute z_BLD of the items; what is beyond a set's items is not defined.

        Args:
            x_BLI: items, padded with any numbers.
            n_B: number of items of each set.
        """
        if x_BLI.dim() != 3 or x_BLI.shape[2] != self.config.inputs or n_B.shape != x_BLI.shape[:1]:
            raise ShapeError(
                f"SetTransformer takes sets (batch, items, {self.config.inputs}) and their sizes (batch,), got {tuple(x_BLI.shape)} and "
                f"{tuple(n_B.shape)}; pad sets of different sizes, and give their numbers of items"
            )
        z_BLD = self.input(x_BLI)
        for block in self.encoder:
            z_BLD = block(z_BLD) if self.config.encoder == "rff" else block(z_BLD, lengths(n_B))
        return z_BLD

    def forward(self, x_BLI: Tensor, n_B: Tensor) -> Tensor:
        """Compute the outputs of each set, item or seed.

        Args:
            x_BLI: items, padded with any numbers.
            n_B: number of items of each set.
        """
        c, z_BLD = self.config, self.features(x_BLI, n_B)
        if c.head == "item":
            return self.output(z_BLD)
        s_BCD = self.pooled(z_BLD, n_B)
        for block in self.decoder:
            s_BCD = block(s_BCD)
        if c.head == "set":
            return self.output(s_BCD.flatten(1))
        out = self.output(s_BCD)
        return out if out.shape[1] == c.seeds else out.flatten(1).unflatten(1, (c.seeds, c.outputs))

    def pooled(self, z_BLD: Tensor, n_B: Tensor) -> Tensor:
        """Pool the items to s_BCD: a vector per seed, one for mean and max.

        Args:
            z_BLD: features of the items.
            n_B: number of items of each set.
        """
        if self.pool is not None:
            return self.pool(z_BLD, lengths(n_B))
        assert self.rff is not None
        pool = mean_pool if self.config.pool == "mean" else max_pool
        return pool(self.rff(z_BLD), n_B).unsqueeze(1)
