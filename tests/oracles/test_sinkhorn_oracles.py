"""Sinkhorn attention and SortCut against sinkhorn-transformer, with the sorting matrix given.

Not compared: its scores (logarithms of ReLU, by default not Sinkhorn but the top few), its causal form (the top few earlier
blocks and a learned key). In 0.11.4 the moved block has the moved keys for values; with values equal to keys this does not
show. Its SortCut adds the query's own block if queries and keys have equally many blocks, so here they have not.
"""

import pytest
import torch
from torch import nn

from regard.attention import SinkhornAttention, SortCutAttention
from regard.attention.sinkhorn import sinkhorn_normalise

pytest.importorskip("sinkhorn_transformer", reason="the other implementation of Sinkhorn attention")
package = pytest.importorskip("sinkhorn_transformer.sinkhorn_transformer")

B, L, H, K, C = 2, 24, 3, 8, 4


class Given(nn.Module):
    def __init__(self, sort):
        super().__init__()
        self.sort = sort

    def forward(self, q, k, topk=1):
        return self.sort.flatten(0, 1)


def equal(ours, theirs, inputs):
    torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)
    cotangent = torch.randn_like(ours)
    torch.testing.assert_close(*(torch.autograd.grad(y, inputs, cotangent) for y in (ours, theirs)), atol=1e-10, rtol=1e-10)


def tensors():
    return [torch.randn(B, L, H, K, dtype=torch.float64, requires_grad=True) for _ in range(3)]


def test_balancing():
    """Theirs does rows first and columns last: the same on the transposed."""
    scores = torch.randn(B, 5, 5, dtype=torch.float64)
    theirs = package.sinkhorn_sorting_operator(scores.mT, n_iters=8).mT
    ours = sinkhorn_normalise(scores[:, None], torch.ones(5, 5, dtype=torch.bool), torch.ones(5, 1, dtype=torch.float64), 8)[:, 0]
    torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)


def test_sinkhorn():
    q, k, _ = tensors()
    ours = SinkhornAttention(block=C, temperature=0.1)
    theirs = package.SinkhornAttention(bucket_size=C, dim=H * K, dim_heads=K, heads=H, max_seq_len=L)
    theirs.sort_net = Given(ours.sort(q, k))
    equal(ours(q, k, k), theirs(*(x.transpose(1, 2) for x in (q, k, k))).transpose(1, 2), (q, k))


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_sortcut(kept):
    q, k, v = tensors()
    torch.manual_seed(1)
    ours = SortCutAttention(head_dim=K, heads=H, block=C, kept=kept, temperature=0.1).double()
    theirs = package.SinkhornAttention(bucket_size=2 * C, kv_bucket_size=C, dim=H * K, dim_heads=K, heads=H, max_seq_len=L, n_sortcut=kept)
    theirs.sort_net = Given(ours.sort(k))
    equal(ours(q, k, v), theirs(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2), (q, k, v))
