"""Linear attention that forgets by choice: each token says how much of each feature stays."""

from __future__ import annotations

from typing import Self

from torch import Tensor
from torch.nn.functional import logsigmoid

from ._base import Facts
from ._recurrence import PATTERNS, GatedRecurrence, Terms


class GatedLinearAttention(GatedRecurrence):
    r"""A gate for every feature of every key decides what the state keeps of all that came before.

    $$o_i = \sum_{j \le i} \Big(\sum_f \frac{q_{if}\, k_{jf}}{\sqrt K} \prod_{t=j+1}^{i} \alpha_{tf}\Big) v_j, \qquad
      \alpha_t = \sigma(a_t)^{1/16}$$

    Here a_t are the extra numbers, as many as key features.

    Cost:    time O(L·(C·log C + K)·V) in chunks of C = 64; memory O(L·(C + K)). A step of decoding costs O(K·V), however long the past.
    Use it:  for long sequences in which the content says what may be forgotten.
    Avoid it: for exact recall of many things: they add up in one K × V matrix; `DeltaNet` overwrites.
    Limits:  `causal`, and which keys are real (`lengths`, `since`); no bias; weights may be negative and do not sum to one. So
             outputs want a norm a head after them: `layers.GatedHeads`.
    Paper:   Yang et al. 2023, "Gated linear attention transformers with hardware-efficient training", arXiv:2312.06635, section 4.
    We differ: MultiHead makes a_t with a whole matrix; the paper goes through 16 numbers to save parameters. The norm and the
             output gate are GatedHeads. Division by √K is of the authors' code.
    """

    facts = Facts(
        name="gated_linear",
        year=2023,
        title="Gated linear attention transformers with hardware-efficient training",
        paper="arXiv:2312.06635",
        formula="Σ_f q_f k_f Π α_f v,  α = σ(a)^(1/16)",
        time="L·(C·log C + K)·V",
        memory="L·(C + K)",
        patterns=PATTERNS,
        normalised=False,
        positional=True,
        bias=False,
    )

    def __init__(self, width: int, temperature: float = 16.0):
        super().__init__()
        self.extra, self.temperature = width, temperature

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        return cls(width)

    def terms(self, q_BLHK: Tensor, k_BMHK: Tensor, extra_BMHE: Tensor) -> Terms:
        return Terms(q_BLHK * q_BLHK.shape[-1] ** -0.5, k_BMHK, logsigmoid(extra_BMHE) / self.temperature)

    def extra_repr(self) -> str:
        return f"{self.extra}, temperature={self.temperature:g}"
