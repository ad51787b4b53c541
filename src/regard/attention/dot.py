"""Luong's dot score: the plain dot product."""

from __future__ import annotations

from ._base import Facts, Paper
from ._score import DotProductAttention


class DotAttention(DotProductAttention):
    r"""The plain dot product of query and key, unscaled.

    $$o_i = \sum_j \mathrm{softmax}_j\big(q_i^\top k_j + b_{ij}\big)\, v_j$$

    Cost:    time O(L·M·K), memory O(L·K): the tiled softmax kernel.
    Use it:  where query and key share a space and are small: recurrent states, unit-norm embeddings.
    Avoid it: for large K: dot products grow with √K, so the softmax becomes one-hot and its gradient vanishes;
             SoftmaxAttention divides by √K.
    Limits:  none.
    Shape:   q_BLHK, k_BMHK, v_BMHV → out_BLHV; weights_BHLM.
    Paper:   Luong, Pham & Manning 2015, "Effective approaches to attention-based neural machine translation",
             arXiv:1508.04025, section 3.1 (dot).
    We differ: nothing. The layer after the average, tanh W[c; h], belongs to the decoder.
    """

    facts = Facts(
        name="dot",
        paper=Paper("Effective approaches to attention-based neural machine translation", 2015, "arXiv:1508.04025"),
        formula="softmax(q·k) v",
        time="L·M·K",
        memory="L·K",
    )
