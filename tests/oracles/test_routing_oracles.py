"""Routing attention against routing-transformer, centroids copied.

It norms vectors to unit length and we as LayerNorm does, so vectors here have mean zero: then the two differ by a factor.
It divides by the number of clusters plus 1e-5. Its `shared_qk` and causal forms add a learned key or a penalty on oneself, and
padding may be drawn into its clusters; these are not compared.
"""

import pytest
import torch

from regard.attention import RoutingAttention
from regard.patterns import full

package = pytest.importorskip("routing_transformer", reason="the other implementation of the Routing Transformer")

B, L, H, K = 2, 32, 3, 8


@pytest.mark.parametrize(("clusters", "size"), [(1, L), (4, 8), (5, 3), (2, L)])
def test_outputs_and_gradients(clusters, size):
    theirs = package.KmeansAttention(num_clusters=clusters, window_size=size, num_heads=H, head_dim=K).double().eval()
    theirs.kmeans.initted.fill_(True)
    ours = RoutingAttention(head_dim=K, heads=H, clusters=clusters, size=size).double()
    ours.centroid_HCK.copy_(theirs.kmeans.means)
    q, k = ((x - x.mean(-1, keepdim=True)).detach().requires_grad_() for x in torch.randn(2, B, L, H, K, dtype=torch.float64))
    v = torch.randn(B, L, H, K, dtype=torch.float64, requires_grad=True)
    expected = theirs(*(x.transpose(1, 2) for x in (q, k, v)))[0].transpose(1, 2)
    out = ours(q, k, v, full)
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)
    cotangent = torch.randn_like(out)
    torch.testing.assert_close(*(torch.autograd.grad(y, (q, k, v), cotangent) for y in (out, expected)), atol=1e-4, rtol=1e-4)
