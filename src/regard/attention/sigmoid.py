"""Sigmoid attention: each weight is a sigmoid of its own score, so keys do not compete."""

from __future__ import annotations

from torch import Tensor

from ..kernels import SIGMOID
from ._base import Call, Facts, Paper
from ._score import PointwiseAttention
from .helpers import allowed_counts


class SigmoidAttention(PointwiseAttention):
    r"""Each weight is the sigmoid of its own score, whatever the other scores of the row.

    $$o_i = \sum_j \sigma\big(q_i^\top k_j / \sqrt{K} + b_{ij} - \log n_i\big)\, v_j \qquad j \text{ allowed by the pattern, } n_i \text{ of them}$$

    Cost:    time O(L·M·K) dense, O(pairs·K) under a pattern; memory O(L·K): the tiles of exact attention, without a log-sum-exp.
    Use it:  in place of softmax where rows need not sum to one: a query may attend to nothing, or to several keys in full.
    Avoid it: to run a model trained with softmax.
    Limits:  weights are not normalised. Patterns other than `full` and `causal` build an L·M mask, one chunk at a
             time, to count n_i.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Ramapuram et al. 2024, "Theory, analysis, and best practices for sigmoid self-attention", arXiv:2409.04431, eq. 3.
    We differ: n_i is the number of keys the query may attend to, not the sequence length, so that streaming and
             padding change nothing. The paper's norm after the output projection is a separate layer.
    """

    facts = Facts(
        name="sigmoid",
        paper=Paper("Theory, analysis, and best practices for sigmoid self-attention", 2024, "arXiv:2409.04431"),
        formula="σ(q·k / √K − log n) v",
        time="L·M·K",
        memory="L·K",
        normalised=False,
    )
    activation = SIGMOID

    def row_bias(self, call: Call) -> Tensor:
        return -allowed_counts(call.pattern, call.queries, call.keys, call.device).clamp(min=1).log()
