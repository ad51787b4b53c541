"""Reformer's attention: exact limits, hand-worked chunks, hash functions, and what is counted how often."""

from functools import partial
from itertools import permutations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from regard import capture
from regard.attention import LSHAttention, lsh
from regard.attention.helpers import average, softmax_where
from regard.errors import BadConfig
from regard.layers import MultiHead, Rotary
from regard.patterns import causal, full, keep, lengths, window

B, L, H, K, V = 2, 37, 3, 6, 5
close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)


def shared(length=L, values=V):
    x = torch.randn(B, length, H, K, dtype=torch.float64, requires_grad=True)
    return x, torch.randn(B, length, H, values, dtype=torch.float64, requires_grad=True)


def at(buckets_RL, **options) -> LSHAttention:
    """With buckets that are given, the same in all rows and heads."""
    attention = LSHAttention(rounds=len(buckets_RL), **options)
    attention.hash = lambda q, pattern=full: torch.tensor(buckets_RL).expand(q.shape[0], q.shape[2], -1, -1)
    return attention


def dense(x, pattern=full):
    """Attention of shared vectors over all pairs; oneself only where there is nobody else."""
    length = x.shape[1]
    seen, oneself = pattern.mask(length, length), torch.eye(length, dtype=torch.bool)
    others = seen & ~oneself
    scores = torch.einsum("blhk,bmhk->bhlm", x, x / x.norm(dim=-1, keepdim=True))
    return softmax_where(scores, torch.where(others.any(-1, keepdim=True), others, seen))


class TestLimits:
    @pytest.mark.parametrize("pattern", [full, causal, lengths([L, 9]), causal & lengths([L, 9]), causal & window(1)], ids=str)
    @pytest.mark.parametrize("rounds", [1, 3])
    def test_one_chunk_is_dense(self, pattern, rounds):
        x, v = shared()
        ours, theirs = LSHAttention(rounds=rounds, chunk=L)(x, x, v, pattern), average(dense(x, pattern), v)
        rows = torch.ones(B, L, 1, 1, dtype=torch.float64)
        if "lengths" in str(pattern):
            rows[1, 9:] = 0  # what a query in the padding gets is nobody's concern
        close(ours * rows, theirs * rows)
        close(*(torch.autograd.grad((out * rows).square().sum(), (x, v)) for out in (ours, theirs)))

    @pytest.mark.parametrize("rounds", [1, 2, 4])
    @pytest.mark.parametrize("pattern", [full, causal, lengths([L, 9]), causal & lengths([L, 9])], ids=str)
    def test_the_law_with_one_vector_for_both(self, pattern, rounds):
        x, v = shared()
        attention = LSHAttention(rounds=rounds, chunk=4, buckets=(4, 6), seed=7)
        fast, slow = attention(x, x, v, pattern), average(attention.weights(x, x, pattern), v)
        close(fast, slow)
        close(*(torch.autograd.grad(out.square().sum(), (x, v)) for out in (fast, slow)))

    @pytest.mark.parametrize("pattern", [full, causal & lengths([L, 9])], ids=str)
    def test_the_law_a_few_chunks_at_a_time(self, pattern, monkeypatch):
        """As long inputs go: groups of chunks, computed again on the way back."""
        x, v = shared()
        attention = LSHAttention(rounds=3, chunk=4)
        slow = average(attention.weights(x, x, pattern), v)
        for budget in (1, B * H * 3 * 4 * 8 * 2):
            monkeypatch.setattr(lsh, "SCORES_AT_ONCE", budget)
            fast = attention(x, x, v, pattern)
            close(fast, slow)
            close(*(torch.autograd.grad(out.square().sum(), (x, v), retain_graph=True) for out in (fast, slow)))
            with torch.no_grad():
                close(attention(x, x, v, pattern), slow)

    def test_nearer_to_dense_with_every_round(self):
        centres = torch.randn(16, 32, dtype=torch.float64)
        x = (centres[torch.arange(512) % 16] + 0.3 * torch.randn(512, 32, dtype=torch.float64))[None, :, None]
        v, exact = torch.randn(1, 512, 1, 32, dtype=torch.float64), dense(x)
        errors = [(LSHAttention(rounds=rounds, chunk=32, buckets=32)(x, x, v) - average(exact, v)).norm().item() for rounds in (1, 2, 4, 8)]
        assert errors == sorted(errors, reverse=True) and errors[-1] < 0.6 * errors[0]


class TestByHand:
    def test_own_chunk_and_the_one_before(self):
        """Buckets 1 0 1 0 sort positions to 1 3 | 0 2: the second chunk sees the first as well."""
        q = torch.randn(1, 4, 1, K)
        weights = at([[1, 0, 1, 0]], chunk=2).weights(q, q)[0, 0]
        assert (weights > 0).int().tolist() == [[0, 1, 1, 1], [0, 0, 0, 1], [1, 1, 0, 1], [0, 1, 0, 0]]

    def test_two_rounds_are_a_union(self):
        q = torch.randn(1, 4, 1, K)
        weights = at([[0, 0, 1, 1], [0, 1, 1, 0]], chunk=1).weights(q, q)[0, 0]
        # round 1 in order 0 1 2 3, round 2 in order 0 3 1 2; each sees the one before it
        assert (weights > 0).int().tolist() == [[1, 0, 0, 0], [1, 0, 0, 1], [0, 1, 0, 0], [1, 0, 1, 0]]

    def test_scores_by_hand(self):
        """Two others, at angles 0 and 90°: scores 2 and 0, whatever the keys' length."""
        q = torch.tensor([[2.0, 0.0], [3.0, 0.0], [0.0, 0.5]]).view(1, 3, 1, 2)
        e = torch.e**2
        torch.testing.assert_close(LSHAttention().weights(q, q)[0, 0, 0], torch.tensor([0, e / (1 + e), 1 / (1 + e)]))

    def test_pairs_met_again_count_once(self):
        x, v = shared(8)
        once, thrice = at([[0, 1, 0, 1, 2, 2, 0, 1]], chunk=2), at([[0, 1, 0, 1, 2, 2, 0, 1]] * 3, chunk=2)
        close(thrice(x, x, v), once(x, x, v))

    @pytest.mark.parametrize("length", [1, 8])
    def test_oneself_only_if_nobody_else(self, length):
        x, v = shared(length)
        x = x * 1e3  # the score of a vector with itself is by far the largest
        close(LSHAttention(chunk=2, buckets=2)(x, x, v, causal)[:, 0], v[:, 0])
        diagonal = LSHAttention(chunk=length).weights(x, x, causal).diagonal(dim1=-2, dim2=-1)
        assert (diagonal[..., 0] == 1).all() and (diagonal[..., 1:] == 0).all()

    def test_places_are_those_of_queries_and_directions_those_of_keys(self):
        (q, v), k = shared(), torch.randn(B, L, H, K, dtype=torch.float64)
        attention = LSHAttention(chunk=4)
        close(attention(q, k, v), attention(q, 5 * k, v))
        assert ((attention.weights(q, k) > 0) == (attention.weights(q, q) > 0)).all()
        assert not torch.allclose(attention.weights(q, k), attention.weights(q, q))


class TestHash:
    def test_formula(self):
        """argmax [xR; −xR], and two hashes put together."""
        x, attention = torch.randn(B, L, H, K), LSHAttention(rounds=2, buckets=(4, 6), seed=3)
        generator = torch.Generator().manual_seed(3)
        for bucket_BHL in attention.hash(x).unbind(2):
            parts = []
            for size in (4, 6):
                turned = torch.einsum("blhk,hkn->bhln", x, torch.randn(H, K, size // 2, generator=generator))
                parts.append(torch.cat([turned, -turned], -1).argmax(-1))
            assert bucket_BHL.equal(parts[0] + 4 * parts[1])

    def test_only_the_direction_counts(self):
        x, attention = torch.randn(B, L, H, K), LSHAttention(buckets=8)
        assert attention.hash(x).equal(attention.hash(5 * x))
        assert attention.hash(x).equal((attention.hash(-x) + 4) % 8)

    def test_like_vectors_meet(self):
        x, attention = torch.randn(1, 2000, 1, 16), LSHAttention(rounds=8, buckets=16)
        near, far = (attention.hash(y) == attention.hash(x) for y in (x + 0.2 * torch.randn_like(x), torch.randn_like(x)))
        assert near.float().mean() > 0.6 and far.float().mean() < 0.1

    def test_padding_has_a_bucket_of_its_own(self):
        bucket = LSHAttention(buckets=(2, 4)).hash(torch.randn(B, L, H, K), causal & lengths([L, 9]))
        assert (bucket[1, :, :, 9:] == 8).all() and (bucket[1, :, :, :9] < 8).all() and (bucket[0] < 8).all()

    def test_seeds(self):
        x, v = shared()
        call = [LSHAttention(chunk=3, seed=seed)(x, x, v) for seed in (1, 1, 2)]
        assert call[0].equal(call[1]) and not call[0].equal(call[2])
        anew = LSHAttention(chunk=3, seed=None)
        assert not anew(x, x, v).equal(anew(x, x, v))
        torch.manual_seed(1)
        first = anew(x, x, v)
        torch.manual_seed(1)
        close(first, average(anew.weights(x, x), v))

    def test_buckets_are_found_again_on_the_way_back(self):
        x, v = shared()
        attention = LSHAttention(chunk=3, seed=None)
        torch.manual_seed(1)
        plain = attention(x, x, v)
        torch.manual_seed(1)
        again = checkpoint(attention, x, x, v, use_reentrant=False)
        close(*(torch.autograd.grad(out.square().sum(), (x, v)) for out in (plain, again)))

    @pytest.mark.parametrize("wrong", [{"rounds": 0}, {"chunk": 0}, {"buckets": 3}, {"buckets": (4, 5)}, {"buckets": ()}])
    def test_settings_that_cannot_be(self, wrong):
        with pytest.raises(BadConfig, match=f"LSHAttention: {next(iter(wrong))}="):
            LSHAttention(**wrong)


def test_memory_is_linear_in_the_length(largest):
    sizes = []
    for length in (256, 512, 1024):
        x, v = shared(length)
        with largest() as made:
            LSHAttention(rounds=2, chunk=8)(x, x, v, causal).sum().backward()
        sizes.append(made.size)
    assert sizes[1] <= 2 * sizes[0] and sizes[2] <= 2 * sizes[1] and sizes[2] < B * H * 1024**2 / 4


def test_causal_is_a_mask_only():
    """The facts say so: weights of the future are zero, but a later token may move borders between chunks."""
    x = torch.randn(1, 64, 1, K)
    changed = torch.cat([x[:, :40], torch.randn(1, 24, 1, K)], 1)
    attention = LSHAttention(rounds=1, chunk=4, buckets=8)
    before, after = (attention.weights(y, y, causal)[0, 0, :40, :40] for y in (x, changed))
    assert (before.triu(1) == 0).all() and (after.triu(1) == 0).all()
    assert not torch.allclose(before, after)


def test_in_a_layer():
    layer, x = MultiHead(12, 3, LSHAttention(chunk=4), shared_qk=True, position=Rotary()).double(), torch.randn(B, L, 12).double()
    with capture(layer) as maps:
        layer(x, pattern=causal)
    torch.testing.assert_close(maps.view().weights_BHLM, layer.weights(x, pattern=causal).float(), atol=1e-6, rtol=1e-6)
    q, k, v, *_ = layer._given(x, None, full, None)
    assert q.equal(k)
    close(layer(x, pattern=causal), layer.out(average(layer.weights(x, pattern=causal), v).flatten(-2)))


def test_any_mask():
    x, v = shared()
    mask = torch.rand(B, H, L, L) < 0.2
    attention = LSHAttention(rounds=3, chunk=5)
    close(attention(x, x, v, keep(mask)), average(attention.weights(x, x, keep(mask)), v))


def test_zero_vectors_have_gradients():
    x, v = shared()
    x = (x * 0).detach().requires_grad_()
    out = LSHAttention(chunk=4)(x, x, v)
    assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), (x, v)))
    assert F.normalize(x, dim=-1).eq(0).all()


@pytest.mark.parametrize("order", list(permutations(range(4))), ids=str)
def test_any_layout_in_memory(order):
    torch.manual_seed(0)
    attention = LSHAttention.sized(heads=5, head_dim=3, length=8)
    plain = [torch.randn(1, 8, 5, 3) for _ in range(3)]
    back = [order.index(axis) for axis in range(4)]
    laid = [x.permute(order).contiguous().permute(back).requires_grad_() for x in plain]
    torch.testing.assert_close(attention(*laid, full), attention(*plain, full))
    attention(*laid, full).square().sum().backward()
