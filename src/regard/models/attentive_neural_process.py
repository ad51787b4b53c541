r"""The attentive neural process: every target asks the known points for what matters there.

$$r_* = W_o\,[o_1; \dots; o_H] \qquad o_h = \mathrm{attention}\big(W_q^h φ(x_*),\; W_k^h φ(x_i),\; W_v^h r_i\big) \qquad
  r_i = \mathrm{SelfAttention}(\mathrm{MLP}_r(x_i, y_i))$$
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from ..attention import Attention
from ..bounds import DepthOrNone
from ..errors import BadConfig
from ..layers import Block, FeedForward
from ..layers.spec import Spec
from ..patterns import lengths
from .model import ModelFacts, Size, build_heads
from .process import ProcessConfig, ProcessModel, mlp


@dataclass(frozen=True, kw_only=True)
class AttentiveNeuralProcessConfig(ProcessConfig):
    heads: Size = 8  # attention heads
    attention: str = "softmax"  # mechanism from targets to known points
    self_depth: DepthOrNone = 0  # blocks of self-attention over the known points, of each path

    def __post_init__(self) -> None:
        super().__post_init__()
        Spec.read(self.attention)
        if self.width % self.heads:
            raise BadConfig(f"{type(self).__name__}: width={self.width}; expected a multiple of heads={self.heads}")


class TargetAttention(nn.Module):
    """Multi-head attention whose keys say where the known points are, and whose values say what is known there.

    Args:
        width: width of queries, keys, values and the output.
        heads: number of heads.
        attention: mechanism.

    Shape: at_BTD, where_BCD, what_BCD → out_BTD.
    """

    def __init__(self, width: int, heads: int, attention: Attention):
        super().__init__()
        self.heads, self.attention = heads, attention
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, at_BTD: Tensor, where_BCD: Tensor, what_BCD: Tensor, c_B: Tensor) -> Tensor:
        """Average what is known, by where it is known.

        Args:
            at_BTD: features of the targets' places.
            where_BCD: features of the known places.
            what_BCD: representations of the known points.
            c_B: number of known points.
        """
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)) for layer, x in ((self.q, at_BTD), (self.k, where_BCD), (self.v, what_BCD)))
        return self.out(self.attention(q, k, v, lengths(c_B)).flatten(2))


class AttentiveNeuralProcess(ProcessModel):
    """A function from some of its points, with attention from every target to the known points, and a latent variable for what is left open.

    Cost:    time O(C·T) for C known points and T targets.
    Use it:  to predict functions with uncertainty after training on many like them: one pass instead of a fit per function.
    Avoid it: where the kernel is known and points are few: a Gaussian process is then exact.
    Limits:  values and places should be standardised: deviations below 0.1 cannot be said. Functions unlike those of the training are not
             recognised as such.
    Shape:   x_BCX, y_BCY, at_BTX → mean and deviation (B, S, T, Y) for S samples of z.
    Paper:   Kim et al. 2019, "Attentive neural processes", arXiv:1901.05761.
    """

    facts = ModelFacts(name="attentive_neural_process", year=2019, title="Attentive neural processes", paper="arXiv:1901.05761")
    Config = AttentiveNeuralProcessConfig
    config: AttentiveNeuralProcessConfig

    def _build(self) -> None:
        super()._build()
        c = self.config
        self.latent_blocks = nn.ModuleList(self._block() for _ in range(c.self_depth if c.latent else 0))

    def _build_path(self) -> None:
        c = self.config
        self.blocks = nn.ModuleList(self._block() for _ in range(c.self_depth))
        self.place = mlp(c.inputs, c.width, c.width)
        attention = Spec.read(c.attention).build(heads=c.heads, head_dim=c.width // c.heads, length=c.max_length)
        self.across = TargetAttention(c.width, c.heads, attention)

    def _block(self) -> Block:
        c = self.config
        heads = build_heads("softmax", c.width, c.heads, c.max_length)
        return Block(c.width, heads, FeedForward(c.width, 2 * c.width))

    def at_targets(self, at_BTX: Tensor, x_BCX: Tensor, r_BCD: Tensor, c_B: Tensor) -> Tensor:
        for block in self.blocks:
            r_BCD = block(r_BCD, lengths(c_B))
        return self.across(self.place(at_BTX), self.place(x_BCX), r_BCD, c_B)

    def _latent_items(self, s_BCD: Tensor, c_B: Tensor) -> Tensor:
        for block in self.latent_blocks:
            s_BCD = block(s_BCD, lengths(c_B))
        return s_BCD
