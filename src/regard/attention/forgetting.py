"""Softmax attention with a forget gate: the weight of a key fades as later tokens close theirs."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from ..kernels import add_bias, attend
from ._base import Call, Facts, Paper
from ._recurrent import CAUSAL_PATTERNS
from ._score import DotProductAttention
from .helpers import float32_or_wider, share_heads


class ForgettingAttention(DotProductAttention):
    r"""Softmax attention in which each token's gate scales down the weights of everything before it.

    $$o_i = \sum_{j \le i} \mathrm{softmax}_j\Big(\frac{q_i^\top k_j}{\sqrt{K}} + \sum_{l=j+1}^{i} \log f_l\Big) v_j, \qquad
      f_l = \sigma(g_l)$$

    The sum of logs is c_i − c_j, with c the running sum of log f, and c_i is the same for all keys of a query: the softmax cancels it. So
    the gates are a bias of one number per key, −c_j, and the tiles of softmax attention apply.

    Cost:    time O(L·M·K); memory O(L·K).
    Use it:  for language models without position embeddings: how far a head looks is read from the text, and exact recall remains possible.
    Avoid it: without `causal`: no token forgets what is later.
    Limits:  `causal`, with `lengths`, `since`, `window` or `segments`: the cache must hold the gate of every token since the oldest key.
             c is a float32 sum: near c = −10⁴ scores are rounded to about 0.001.
    Shape:   q_BLHK, k_BMHK, v_BMHV, gates_BMHE → out_BLHV; weights_BHLM.
    Paper:   Lin et al. 2025, "Forgetting transformer: softmax attention with a forget gate", arXiv:2503.02130, section 3.
             The mechanism only: output gates, norms of q and k and shifts of k and v (its "Pro" block) belong to the layers around it.
    """

    facts = Facts(
        name="forgetting",
        paper=Paper("Forgetting transformer: softmax attention with a forget gate", 2025, "arXiv:2503.02130"),
        formula="softmax(q·k / √K + Σ log f) v,  f = σ(g)",
        time="L·M·K",
        memory="L·K",
        patterns=(*CAUSAL_PATTERNS, "window", "segments"),
        positional=True,
    )
    gates = 1

    def prepare(self, q_BLHK: Tensor, k_BMHK: Tensor) -> tuple[Tensor, Tensor]:
        return q_BLHK * q_BLHK.shape[-1] ** -0.5, k_BMHK

    def scores(self, q_BLHK: Tensor, k_BMHK: Tensor, call: Call) -> Tensor:
        return super().scores(q_BLHK, k_BMHK, call) + self._kept(q_BLHK.shape[2], call)

    def _kept(self, heads: int, call: Call) -> Tensor:
        """−c_j: how much of key j is left, as a bias (B, H, 1, M)."""
        assert call.gates_BMHE is not None  # `gates` asks for them
        log_f_BMH = logsigmoid(float32_or_wider(share_heads(call.gates_BMHE, heads))[..., 0])
        return -log_f_BMH.cumsum(1).transpose(1, 2).unsqueeze(2)

    def _forward(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHV: Tensor, call: Call) -> Tensor:
        q_BLHK, k_BMHK = self.prepare(q_BLHK, k_BMHK)
        bias = add_bias(self._kept(q_BLHK.shape[2], call), call.bias, call.queries, call.keys)
        return attend(q_BLHK, k_BMHK, v_BMHV, call.pattern, scale=1.0, bias=bias)
