"""Routing attention: exact limits, rows in no cluster and in several, and how centroids learn."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from regard.attention import RoutingAttention, SoftmaxAttention
from regard.attention.helpers import average
from regard.errors import BadConfig, ShapeError
from regard.layers import MultiHead
from regard.patterns import causal, full, keep, lengths, segments, window

B, L, H, K, V = 2, 24, 3, 6, 5
close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)


def tensors(length=L):
    return [torch.randn(B, length, H, size, dtype=torch.float64, requires_grad=True) for size in (K, K, V)]


def routing(**options) -> RoutingAttention:
    torch.manual_seed(1)
    return RoutingAttention(head_dim=K, heads=H, **options).double()


def law(attention, q, k, v, pattern=full):
    fast, slow = attention(q, k, v, pattern), average(attention.weights(q, k, pattern), v)
    close(fast, slow)
    close(*(torch.autograd.grad(out.square().sum(), (q, k, v)) for out in (fast, slow)))


class TestLimits:
    @pytest.mark.parametrize("pattern", [full, causal, causal & lengths([L, 9]), causal & ~window(0)], ids=str)
    def test_one_cluster_is_dense(self, pattern):
        q, k, v = tensors()
        ours, theirs = routing(clusters=1, size=L)(q, k, v, pattern), SoftmaxAttention()(q, k, v, pattern)
        if "lengths" in str(pattern):
            assert (ours[1, 9:] == 0).all()  # queries in the padding belong to no cluster
            ours, theirs = (torch.cat([x[0], x[1, :9]]) for x in (ours, theirs))
        close(ours, theirs)
        close(*(torch.autograd.grad(out.square().sum(), (q, k, v)) for out in (ours, theirs)))

    @pytest.mark.parametrize("pattern", [full, causal], ids=str)
    def test_clusters_that_are_apart_are_documents(self, pattern):
        """Four groups of six around vectors at right angles, centroids on these: each token sees its own group."""
        centres = F.layer_norm(torch.eye(K, dtype=torch.float64)[:4], (K,))
        topic = torch.stack([torch.randperm(L) % 4 for _ in range(B)])
        q, k = (centres[topic][:, :, None] * 3 + 0.1 * torch.randn(B, L, H, K, dtype=torch.float64) for _ in range(2))
        v = torch.randn(B, L, H, V, dtype=torch.float64)
        attention = routing(clusters=4, size=L // 4)
        attention.centroid_HCK.copy_(centres.expand(H, -1, -1))
        close(attention(q, k, v, pattern), SoftmaxAttention()(q, k, v, pattern & segments(topic)))


class TestMembers:
    def test_in_none_and_in_several(self):
        """Two equal centroids draw the same two queries and keys, so the other rows are zeros and these what one cluster gives."""
        q, k, v = tensors()
        attention, single = routing(clusters=2, size=2), routing(clusters=1, size=2)
        attention.centroid_HCK[:, 1] = attention.centroid_HCK[:, 0]
        single.centroid_HCK.copy_(attention.centroid_HCK[:, :1])
        assert attention.members(q).sum(-1).eq(2).all() and attention.members(q)[:, :, 0].equal(attention.members(q)[:, :, 1])
        close(attention(q, k, v), single(q, k, v))
        inside = single.members(q)[:, :, 0].transpose(1, 2)
        assert (attention(q, k, v)[~inside] == 0).all() and (attention(q, k, v)[inside] != 0).all()

    def test_mean_over_clusters_by_hand(self):
        """One query in two clusters, with one key each: half of either value."""
        attention = RoutingAttention(head_dim=2, heads=1, clusters=2, size=1)
        attention.centroid_HCK.copy_(torch.tensor([[[1.0, -1.0], [-1.0, 1.0]]]))
        q = torch.tensor([[5.0, 5.0]]).view(1, 1, 1, 2)
        weights = attention.weights(q, q)
        assert weights.flatten().tolist() == [1.0]
        k = torch.tensor([[2.0, 0.0], [0.0, 2.0], [1.0, 1.0]]).view(1, 3, 1, 2)
        q = torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]).view(1, 3, 1, 2)  # no direction at all: the first wins everywhere
        assert attention.weights(q, k)[0, 0].tolist() == [[0.5, 0.5, 0], [0, 0, 0], [0, 0, 0]]

    def test_a_cluster_without_a_past_does_not_count(self):
        attention = RoutingAttention(head_dim=2, heads=1, clusters=2, size=1)
        attention.centroid_HCK.copy_(torch.tensor([[[1.0, -1.0], [-1.0, 1.0]]]))
        k = torch.tensor([[2.0, 0.0], [0.0, 2.0]]).view(1, 2, 1, 2)
        q = torch.ones(1, 2, 1, 2)
        assert attention.weights(q, k, causal)[0, 0].tolist() == [[1, 0], [0, 0]]
        close(attention(q, k, k, causal)[0, :, 0], torch.tensor([[2.0, 0.0], [0.0, 0.0]]))

    def test_equals_are_taken_in_order(self):
        """Many tokens are alike, as in text before any mixing; the law must not depend on how a sort breaks ties."""
        few = torch.randn(3, H, K, dtype=torch.float64)
        x = few[torch.randint(3, (B, L))].requires_grad_()
        v = tensors()[2]
        law(routing(clusters=4, size=5), x, x.detach().clone().requires_grad_(), v, causal)

    @pytest.mark.parametrize("pattern", [full, causal, lengths([L, 9]), causal & lengths([L, 3])], ids=str)
    @pytest.mark.parametrize("size", [1, 5, 40])
    def test_the_law_for_clusters_of_any_size(self, pattern, size):
        law(routing(clusters=5, size=size), *tensors(), pattern)

    def test_any_mask(self):
        law(routing(clusters=5, size=7), *tensors(), keep(torch.rand(B, H, L, L) < 0.2))

    def test_how_many_are_left_out(self):
        """Of random tokens, with as many places as tokens: around an eighth in four clusters."""
        attention = RoutingAttention(head_dim=64, clusters=4, size=256)
        rate = 1 - attention.members(torch.randn(1, 1024, 1, 64)).any(2).float().mean()
        assert 0.05 < rate < 0.35


class TestCentroids:
    def test_tally_and_update_by_hand(self):
        """Two features: a normed vector is (1, −1) or (−1, 1). Three of the first kind, one of the second, and one centroid far off."""
        attention = RoutingAttention(head_dim=2, heads=1, clusters=3, size=1, decay=0.75).double()
        attention.centroid_HCK.copy_(torch.tensor([[[0.5, 0.0], [0.0, 0.5], [-9.0, -9.0]]]))
        q = torch.tensor([[3.0, 1.0], [9.0, 2.0]], dtype=torch.float64).view(1, 2, 1, 2)
        k = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64).view(1, 2, 1, 2)
        sums, counts = attention.tally(q, k)
        torch.testing.assert_close(sums, torch.tensor([[[3.0, -3.0], [-1.0, 1.0], [0.0, 0.0]]]).double(), atol=1e-3, rtol=0)
        assert counts.tolist() == [[3, 1, 0]]
        attention.update(torch.tensor([[[3.0, -3.0], [-1.0, 1.0], [0.0, 0.0]]]), counts)
        assert attention.centroid_HCK.tolist() == [[[0.625, -0.25], [-0.25, 0.625], [-9.0, -9.0]]]

    def test_padding_is_not_counted(self):
        q, k, _ = tensors()
        attention, pattern = routing(clusters=3), lengths([L, 9])
        sums, counts = attention.tally(q, k, pattern)
        assert counts.sum(-1).tolist() == [2 * (L + 9)] * H
        parts = [attention.tally(q[:1], k[:1]), attention.tally(q[1:, :9], k[1:, :9])]
        close((sums, counts), tuple(sum(part) for part in zip(*parts, strict=True)))

    def test_steps_without_memory_are_k_means(self):
        q, k, _ = tensors(200)
        attention, x = routing(clusters=8), F.layer_norm(torch.cat([q, k], 1).transpose(1, 2), (K,))
        distance = []
        for _ in range(5):
            distance.append(torch.cdist(x, attention.centroid_HCK.expand(B, -1, -1, -1)).square().amin(-1).mean().item())
            attention.update(*attention.tally(q, k), decay=0)
        assert distance == sorted(distance, reverse=True) and distance[-1] < 0.8 * distance[0]

    def test_calls_change_nothing(self):
        attention, (q, k, v) = routing(clusters=3), tensors()
        before = attention.centroid_HCK.clone()
        attention.train()(q, k, v, causal).sum().backward()
        attention.weights(q, k)
        assert attention.centroid_HCK.equal(before)

    def test_the_hook_of_the_docstring(self):
        def learn(attention, given, out):
            if torch.is_grad_enabled():
                q, k, _, pattern = given[:4]
                attention.update(*attention.tally(q, k, pattern))

        layer = MultiHead(H * K, H, RoutingAttention(head_dim=K, heads=H, clusters=3, size=8))
        before, handle = layer.attention.centroid_HCK.clone(), layer.attention.register_forward_hook(learn)
        with torch.no_grad():
            layer(torch.randn(B, L, H * K), pattern=causal)
        assert layer.attention.centroid_HCK.equal(before)
        layer(torch.randn(B, L, H * K), pattern=causal)
        assert not layer.attention.centroid_HCK.equal(before)
        handle.remove()

    def test_they_are_saved_with_the_weights(self):
        one, two = routing(clusters=3), RoutingAttention(head_dim=K, heads=H, clusters=3).double()
        two.load_state_dict(one.state_dict())
        assert two.centroid_HCK.equal(one.centroid_HCK)


def test_memory_grows_as_clusters_times_their_size(largest):
    sizes = []
    for length, clusters in ((256, 16), (1024, 32)):
        q, k, v = tensors(length)
        with largest() as made:
            routing(clusters=clusters, size=length // clusters)(q, k, v, causal).sum().backward()
        sizes.append(made.size)
    assert sizes[1] <= 8 * sizes[0] and sizes[1] < B * H * 1024**2 / 4


def test_wrong_settings_and_sizes():
    for wrong in ({"clusters": 0}, {"size": 0}, {"decay": 1.5}):
        with pytest.raises(BadConfig, match=f"RoutingAttention: {next(iter(wrong))}="):
            RoutingAttention(head_dim=K, **wrong)
    q, k, v = tensors()
    with pytest.raises(ShapeError, match="was made for 2 heads"):
        RoutingAttention(head_dim=K, heads=2).double()(q, k, v)
