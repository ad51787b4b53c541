"""Layers of graph networks: a complete graph is self-attention; sparse features are a matrix; edges listed twice, self-loops and isolated nodes."""

import pytest
import torch
from torch import nn

from regard.attention import GraphAttention, GraphAttentionV2, SoftmaxAttention
from regard.kernels import EdgeBias, force
from regard.layers import FeatureSum, GraphHeads, MultiHead, SparseFeatures
from regard.patterns import edges

N, D, H, K = 23, 7, 3, 5


def heads(attention, concat=True, edge_width=0):
    return GraphHeads(nn.Linear(D, H * K, bias=False), attention, H, K, concat=concat, edge_width=edge_width).double()


@pytest.mark.parametrize("path", ["dense", "tiles", "edges"])
def test_self_attention_is_a_graph_layer_on_the_complete_graph(path):
    """With dot-product scores and one projection for q, k and v."""
    x_ND, layer = torch.randn(N, D, dtype=torch.float64), heads(SoftmaxAttention())
    multi = MultiHead(D, H, head_dim=K, out_width=H * K, bias=False).double()
    with torch.no_grad():
        multi.qkv.weight.copy_(layer.project.weight.repeat(3, 1))
        multi.out.weight.copy_(torch.eye(H * K))
    complete = edges(torch.cartesian_prod(torch.arange(N), torch.arange(N)).T)
    with force(path):
        torch.testing.assert_close(layer(x_ND, complete), multi(x_ND[None])[0], atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("attention", [GraphAttention, GraphAttentionV2, SoftmaxAttention])
@pytest.mark.parametrize("path", ["dense", "edges"])
def test_isolated_nodes_duplicates_and_directions(attention, path):
    x_ND = torch.randn(N, D, dtype=torch.float64)
    made = attention() if attention is SoftmaxAttention else attention(heads=H, head_dim=K)
    layer = heads(made)
    pairs = torch.tensor([[0, 0, 1, 2], [1, 2, 0, 2]])
    with force(path):
        out = layer(x_ND, edges(pairs))
        assert torch.equal(layer(x_ND, edges(pairs.repeat(1, 2))), out)  # an edge that is listed twice counts once
        assert (out[3:] == 0).all()  # no edge, no neighbour to average
        torch.testing.assert_close(out[2], layer.project(x_ND[2]))  # a self-loop alone
        torch.testing.assert_close(out[1], layer.project(x_ND[0]))
        assert not torch.allclose(out, layer(x_ND, edges(pairs.flip(0))))


@pytest.mark.parametrize("attention", [GraphAttention, GraphAttentionV2])
def test_permuting_the_nodes_permutes_the_output(attention):
    x_ND, layer = torch.randn(N, D, dtype=torch.float64), heads(attention(heads=H, head_dim=K), edge_width=2)
    pairs, features = torch.randint(N, (2, 60)), torch.randn(60, 2, dtype=torch.float64)
    order = torch.randperm(N)
    place = torch.argsort(order)
    with force("edges"):
        one = layer(x_ND, edges(pairs), pairs, features)
        two = layer(x_ND[order], edges(place[pairs]), place[pairs], features)
    torch.testing.assert_close(one[order], two, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("attention", [GraphAttention, GraphAttentionV2, SoftmaxAttention])
def test_edge_features_by_edges_and_by_a_whole_mask(attention):
    made = attention() if attention is SoftmaxAttention else attention(heads=H, head_dim=K)
    layer, x_ND = heads(made, edge_width=2), torch.randn(N, D, dtype=torch.float64, requires_grad=True)
    pairs, features = torch.randint(N, (2, 60)), torch.randn(60, 2, dtype=torch.float64)
    found = {}
    for path in ("dense", "edges", "tiles"):
        with force(path):
            out = layer(x_ND, edges(pairs), pairs, features)
            found[path] = out, *torch.autograd.grad(out.square().sum(), (x_ND, layer.edge.weight))
    torch.testing.assert_close(found["dense"], found["edges"], atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(found["tiles"], found["edges"], atol=1e-10, rtol=1e-10)
    assert not torch.allclose(found["edges"][0], layer(x_ND, edges(pairs)))


def test_of_an_edge_listed_twice_the_first_bias_counts():
    bias = EdgeBias(torch.tensor([[1, 0, 1], [2, 0, 2]]), torch.tensor([[5.0], [7.0], [9.0]]))
    whole = bias.whole(3, 3, torch.device("cpu"))[0, 0]
    assert whole.tolist() == [[7, 0, 0], [0, 0, 5], [0, 0, 0]]


@pytest.mark.parametrize("path", ["dense", "edges"])
@pytest.mark.parametrize("attention", [GraphAttention, GraphAttentionV2])
def test_dropout_acts_on_weights_in_training(attention, path):
    layer = GraphHeads(nn.Linear(D, H * K, bias=False), attention(heads=H, head_dim=K, dropout=0.5), H, K)
    x_ND, pairs = torch.ones(400, D), torch.randint(400, (2, 20_000))
    with force(path):
        out, expected = layer(x_ND, edges(pairs)), layer.eval()(x_ND, edges(pairs))
    torch.testing.assert_close(out.mean(0), expected.mean(0), atol=0.02, rtol=0.05)
    assert out.std(0).min() > 10 * expected.std(0).max()


def test_sparse_features_are_a_matrix():
    dense_NF = torch.randn(N, 11) * (torch.rand(N, 11) < 0.3)
    dense_NF[4] = 0
    at = dense_NF.nonzero()
    first = torch.searchsorted(at[:, 0].contiguous(), torch.arange(N + 1))
    layer = FeatureSum(11, 6, dropout=0.5).eval()
    features = SparseFeatures(at[:, 1], dense_NF[dense_NF != 0], first)
    torch.testing.assert_close(layer(features), dense_NF @ layer.weight)
    many = torch.stack([layer.train()(features) for _ in range(600)])
    torch.testing.assert_close(many.mean(0), dense_NF @ layer.weight, atol=0.3, rtol=0.1)
