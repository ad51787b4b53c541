"""Graph attention layers against those of torch_geometric, with its parameters copied: outputs, weights and gradients."""

import pytest
import torch
from torch import nn

from regard.attention import GraphAttention, GraphAttentionV2
from regard.layers import GraphHeads
from regard.look import capture
from regard.patterns import edges

geometric = pytest.importorskip("torch_geometric.nn", reason="torch_geometric, the oracle, is not installed")
N, D, H, K, F = 50, 12, 4, 5, 3


@pytest.fixture
def graph():
    """Nodes, edges as (source, target) without self-loops and duplicates, and their features. Some nodes have no edge."""
    g = torch.Generator().manual_seed(0)
    pairs = torch.unique(torch.randint(N - 5, (2, 300), generator=g), dim=1)
    pairs = pairs[:, pairs[0] != pairs[1]]
    return torch.randn(N, D, generator=g, requires_grad=True), pairs, torch.randn(pairs.shape[1], F, generator=g)


def same(ours, theirs, x):
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    cotangent = torch.randn_like(ours)
    torch.testing.assert_close(*(torch.autograd.grad(out, x, cotangent)[0] for out in (ours, theirs)), atol=1e-5, rtol=1e-5)


def gat(concat, edge_width, **options):
    theirs = geometric.GATConv(D, K, heads=H, concat=concat, edge_dim=edge_width or None, **options)
    ours = GraphHeads(nn.Linear(D, H * K, bias=False), GraphAttention(heads=H, head_dim=K), H, K, concat=concat, edge_width=edge_width)
    with torch.no_grad():
        ours.project.weight.copy_(theirs.lin.weight)
        ours.attention.a_k_HK.copy_(theirs.att_src[0])
        ours.attention.a_q_HK.copy_(theirs.att_dst[0])
        ours.bias.copy_(theirs.bias.normal_())
        if ours.edge is not None:
            ours.edge.weight.copy_(torch.einsum("hk,hkf->hf", theirs.att_edge[0], theirs.lin_edge.weight.view(H, K, F)))
    return ours, theirs


@pytest.mark.parametrize("concat", [True, False])
@pytest.mark.parametrize("edge_width", [0, F])
def test_gat(graph, concat, edge_width):
    x, pairs, features = graph
    ours, theirs = gat(concat, edge_width, add_self_loops=False)
    f = features if edge_width else None
    same(ours(x, edges(pairs.flip(0)), pairs.flip(0), f), theirs(x, pairs, f), x)


@pytest.mark.parametrize("concat", [True, False])
def test_gatv2(graph, concat):
    x, pairs, _ = graph
    theirs = geometric.GATv2Conv(D, K, heads=H, concat=concat, add_self_loops=False)
    mechanism, query = GraphAttentionV2(heads=H, head_dim=K), nn.Linear(D, H * K)
    ours = GraphHeads(nn.Linear(D, H * K), mechanism, H, K, concat=concat, query=query)
    with torch.no_grad():
        ours.project.load_state_dict(theirs.lin_l.state_dict())
        query.load_state_dict(theirs.lin_r.state_dict())
        mechanism.a_HK.copy_(theirs.att[0])
        ours.bias.copy_(theirs.bias.normal_())
    same(ours(x, edges(pairs.flip(0))), theirs(x, pairs), x)


def test_weights_with_self_loops(graph):
    x, pairs, _ = graph
    ours, theirs = gat(True, 0)
    loops = torch.cat([pairs.flip(0), torch.arange(N).expand(2, -1)], 1)
    _, (source_target, weights_EH) = theirs(x, pairs, return_attention_weights=True)
    with capture(ours) as maps:
        ours(x, edges(loops))
    found_HNN = maps.all[0].weights_BHLM[0]
    torch.testing.assert_close(found_HNN[:, source_target[1], source_target[0]].T, weights_EH, atol=1e-5, rtol=1e-5)
    assert (found_HNN > 0).sum() <= loops.shape[1] * H
