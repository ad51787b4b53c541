"""Gated linear attention: each token sets how much of each feature the state keeps."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from ..bounds import Positive, Size
from ._base import Paper
from ._recurrent import RecurrentAttention, RecurrentFacts, Terms


class GatedLinearAttention(RecurrentAttention):
    r"""A gate per token and key feature decides how much of the past the state keeps.

    $$o_i = \sum_{j \le i} \Big(\sum_f \frac{q_{if}\, k_{jf}}{\sqrt K} \prod_{t=j+1}^{i} \alpha_{tf}\Big) v_j, \qquad
      \alpha_t = \sigma(a_t)^{1/16}$$

    a_t are the gates, one per key feature.

    Cost:    time O(L·(C·log C + K)·V) in chunks of C = 64; memory O(L·(C + K)). A decoding step costs O(K·V) at any length.
    Use it:  for long sequences whose content determines what may be forgotten.
    Avoid it: for exact recall of many items: they add up in one K × V matrix; `DeltaNet` overwrites.
    Limits:  `causal` and key masks (`lengths`, `since`) only; no bias; weights may be negative and do not sum to
             one, so outputs need a norm per head: `layers.GatedHeads`.
    Args:
        head_dim: size K of each head, and gates per token and head.
        temperature: root that is taken of the gates: 16 keeps them near one.
    Shape:   q_BLHK, k_BMHK, v_BMHV, gates_BMHE → out_BLHV; weights_BHLM.
    Paper:   Yang et al. 2023, "Gated linear attention transformers with hardware-efficient training", arXiv:2312.06635, section 4.
    We differ: MultiHead projects a_t with a full matrix; the paper uses one of rank 16 to save parameters. The norm
             and the output gate are in GatedHeads. The division by √K follows the authors' code.
    """

    facts = RecurrentFacts(
        name="gated_linear",
        paper=Paper("Gated linear attention transformers with hardware-efficient training", 2023, "arXiv:2312.06635"),
        formula="Σ_f q_f k_f Π α_f v,  α = σ(a)^(1/16)",
        time="L·(C·log C + K)·V",
        memory="L·(C + K)",
    )

    def __init__(self, *, head_dim: Size, temperature: Positive = 16.0):
        super().__init__()
        self.head_dim, self.temperature = head_dim, temperature
        self.gates = head_dim

    def terms(self, q_BLHK: Tensor, k_BMHK: Tensor, gates_BMHE: Tensor) -> Terms:
        return Terms(q_BLHK * q_BLHK.shape[-1] ** -0.5, k_BMHK, logsigmoid(gates_BMHE) / self.temperature)
