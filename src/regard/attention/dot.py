"""Luong's simplest score: the plain dot product."""

from __future__ import annotations

from ._base import Facts
from ._scored import Product


class DotAttention(Product):
    r"""The query and the key agree as far as their dot product says, unscaled.

    $$o_i = \sum_j \mathrm{softmax}_j\big(q_i^\top k_j + b_{ij}\big)\, v_j$$

    Cost:    time O(L·M·K), memory O(L·K), in the kernel of softmax attention.
    Use it:  where query and key live in one space and are small: recurrent states, embeddings of unit length.
    Avoid it: for large K. Products grow like √K, the softmax becomes one-hot and its gradient vanishes; SoftmaxAttention
             divides by √K.
    Limits:  none of the contract.
    Paper:   Luong, Pham & Manning 2015, "Effective approaches to attention-based neural machine translation",
             arXiv:1508.04025, section 3.1 (dot).
    We differ: nothing. The layer after the average, tanh W[c; h], belongs to the decoder.
    """

    facts = Facts(
        name="dot",
        year=2015,
        title="Effective approaches to attention-based neural machine translation",
        paper="arXiv:1508.04025",
        formula="softmax(q·k) v",
        time="L·M·K",
        memory="L·K",
    )
