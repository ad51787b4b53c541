"""Sinkhorn attention and SortCut: exact limits, what sorting is, what counts where a block is not full."""

from functools import partial
from itertools import permutations

import pytest
import torch

from regard.attention import SinkhornAttention, SoftmaxAttention, SortCutAttention
from regard.attention.helpers import average
from regard.attention.sinkhorn import sinkhorn_normalise
from regard.errors import BadConfig, PatternNotSupported, ShapeError
from regard.patterns import block, causal, full, keep, lengths, window

B, L, H, K, V = 2, 24, 3, 6, 5
close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)


def tensors(length=L):
    return [torch.randn(B, length, H, size, dtype=torch.float64, requires_grad=True) for size in (K, K, V)]


def sortcut(**options) -> SortCutAttention:
    torch.manual_seed(1)
    return SortCutAttention(head_dim=K, heads=H, **options).double()


def equal(ours, theirs, inputs):
    close(ours, theirs)
    close(*(torch.autograd.grad(out.square().sum(), inputs) for out in (ours, theirs)))


def moving(attention, order):
    """Block u is given block order[u], for sure."""
    attention.sort = lambda *_: torch.eye(len(order), dtype=torch.float64)[order].expand(B, H, -1, -1)
    return attention


class TestSorting:
    def test_rows_and_columns_sum_to_one(self):
        q, k, _ = tensors()
        sort = SinkhornAttention(block=4, temperature=0.2).sort(q, k)
        close(sort.sum(-1), torch.ones(B, H, 6, dtype=torch.float64))
        torch.testing.assert_close(sort.sum(-2), torch.ones(B, H, 6, dtype=torch.float64), atol=1e-3, rtol=0)

    def test_by_division(self):
        """In probabilities, not logarithms: divide columns, then rows, by their sums."""
        scores = torch.randn(B, H, 5, 5, dtype=torch.float64)
        s = scores.exp()
        for _ in range(3):
            s = s / s.sum(-2, keepdim=True)
            s = s / s.sum(-1, keepdim=True)
        close(sinkhorn_normalise(scores, torch.ones(5, 5, dtype=torch.bool), torch.ones(5, 1, dtype=torch.float64), 3), s)

    def test_causal_by_division(self):
        """Column sums go over the rows so far; a row has only earlier blocks; the first has none."""
        scores = torch.randn(5, 5, dtype=torch.float64)
        earlier = torch.ones(5, 5, dtype=torch.bool).tril(-1)
        s = scores.exp() * earlier
        for _ in range(3):
            columns = torch.stack([s[: u + 1].sum(0) for u in range(5)])
            s = s / columns.masked_fill(columns == 0, 1)
            rows = s.sum(-1, keepdim=True)
            s = s / rows.masked_fill(rows == 0, 1)
        ours = sinkhorn_normalise(scores[None, None], earlier, None, 3)[0, 0]
        close(ours, s)
        assert (ours[0] == 0).all() and ours[1].tolist() == [1, 0, 0, 0, 0]

    def test_without_iterations_rows_only(self):
        scores = torch.randn(1, 1, 5, 5, dtype=torch.float64)
        close(sinkhorn_normalise(scores, torch.ones(5, 5, dtype=torch.bool), torch.ones(5, 1, dtype=torch.float64), 0), scores.softmax(-1))

    def test_cold_is_the_best_permutation(self):
        scores, ones = torch.randn(4, 1, 5, 5, dtype=torch.float64), torch.ones(5, 5, dtype=torch.bool)
        sort = sinkhorn_normalise(scores / 0.02, ones, ones[:, :1].double(), 500)
        orders = torch.tensor(list(permutations(range(5))))
        best = scores.expand(4, len(orders), 5, 5).gather(-1, orders[..., None].expand(4, -1, -1, -1)).sum((-1, -2)).argmax(-1)
        assert sort[:, 0].argmax(-1).equal(orders[best]) and sort.amax(-1).mean() > 0.9

    def test_scores_are_products_of_means(self):
        q, k, _ = tensors(10)
        scores = torch.einsum("buhk,bvhk->bhuv", *(torch.stack([x[:, :4].mean(1), x[:, 4:8].mean(1), x[:, 8:].mean(1)], 1) for x in (q, k)))
        close(SinkhornAttention(block=4, iterations=0, temperature=2).sort(q, k), (scores * K**-0.5 / 2).softmax(-1))

    def test_causal_scores_use_the_past(self):
        """Block 2's mean query is that of positions 0 … 8, its first; block 1 can only be given block 0."""
        q, k, _ = tensors(12)
        scores = torch.einsum("bhk,bvhk->bhv", q[:, :9].mean(1), torch.stack([k[:, :4].mean(1), k[:, 4:8].mean(1)], 1)) * K**-0.5
        sort = SinkhornAttention(block=4, iterations=0, temperature=1).sort(q, k, causal)
        close(sort[:, :, 2, :2], scores.softmax(-1))
        assert sort[0, 0, :2].tolist() == [[0, 0, 0], [1, 0, 0]]

    def test_noise_only_while_training_and_from_the_generator(self):
        q, k, v = tensors()
        generator = torch.Generator()
        attention, quiet = SinkhornAttention(block=4, noise=1.0, generator=generator), SinkhornAttention(block=4)

        def sort():
            generator.manual_seed(2)
            return attention.sort(q, k)

        assert sort().equal(sort()) and not sort().equal(quiet.sort(q, k)) and not attention.sort(q, k).equal(attention.sort(q, k))
        generator.manual_seed(2)
        fast = attention(q, k, v, causal)
        generator.manual_seed(2)
        equal(fast, average(attention.weights(q, k, causal), v), (q, k, v))
        close(attention.eval().sort(q, k), quiet.sort(q, k))


class TestSinkhorn:
    @pytest.mark.parametrize("pattern", [full, causal, lengths([L, 9]), causal & lengths([L, 9])], ids=str)
    def test_one_block_is_dense(self, pattern):
        """Every key is seen twice, which changes nothing; under `causal` nothing comes before the only block."""
        q, k, v = tensors()
        equal(SinkhornAttention(block=L)(q, k, v, pattern), SoftmaxAttention()(q, k, v, pattern), (q, k, v))

    @pytest.mark.parametrize("length", [24, 22, 17])
    def test_a_permutation_is_a_mask(self, length):
        """The last block may have an end that holds nothing: it gives nothing."""
        q, k, v = tensors(length)
        order = [3, 0, 5, 1, 2, 4] if length > 20 else [3, 0, 4, 1, 2]
        given = torch.tensor(order).repeat_interleave(4)[:length, None] == torch.arange(length) // 4
        attention = moving(SinkhornAttention(block=4), order)
        equal(attention(q, k, v), SoftmaxAttention()(q, k, v, keep(given) | block(4)), (q, k, v))

    @pytest.mark.parametrize("pattern", [full, causal, lengths([22, 9]), causal & lengths([22, 1])], ids=str)
    @pytest.mark.parametrize("size", [1, 2, 3, 5, 11, 40])
    @pytest.mark.parametrize("alike", [False, True], ids=["V ≠ K", "V = K"])
    def test_the_law_for_blocks_of_any_size(self, pattern, size, alike):
        q, k, v = tensors(22)
        v = torch.randn_like(k, requires_grad=True) if alike else v
        attention = SinkhornAttention(block=size, temperature=0.1)
        equal(attention(q, k, v, pattern), average(attention.weights(q, k, pattern), v), (q, k, v))

    def test_mixture_by_hand(self):
        """Blocks of one key: S is all there is. Scores 0, so own key and mixture count the same."""
        attention = SinkhornAttention(block=1)
        attention.sort = lambda *_: torch.tensor([[0.25, 0.75], [0.5, 0.5]])[None, None]
        q = torch.zeros(1, 2, 1, 2)
        assert attention.weights(q, q)[0, 0].tolist() == [[0.625, 0.375], [0.25, 0.75]]

    def test_a_place_that_is_half_empty_counts_half(self):
        """Three keys in blocks of two: place 1 of the mixture has only block 0 to come from, with half of S."""
        attention = SinkhornAttention(block=2)
        attention.sort = lambda *_: torch.full((1, 1, 2, 2), 0.5)
        q = torch.zeros(1, 3, 1, 2)
        # row 2: own key 2 with 1, place 0 = (k0 + k2)/2 with 1, place 1 = k1 with 1/2
        torch.testing.assert_close(attention.weights(q, q)[0, 0, 2], torch.tensor([0.5, 0.5, 1.5]) / 2.5)

    def test_other_patterns_are_refused(self):
        with pytest.raises(PatternNotSupported, match="window"):
            SinkhornAttention()(*tensors(), window(3))


class TestSortCut:
    @pytest.mark.parametrize("pattern", [full, lengths([L, 9])], ids=str)
    def test_one_block_is_dense(self, pattern):
        q, k, v = tensors()
        equal(sortcut(block=L)(q, k, v, pattern), SoftmaxAttention()(q, k, v, pattern), (q, k, v))

    @pytest.mark.parametrize("length", [24, 22, 17])
    def test_a_choice_is_a_mask(self, length):
        (q, k, v), last = tensors(length), -(-length // 4) - 1
        attention = sortcut(block=4)
        attention.sort = lambda *_: torch.eye(last + 1, dtype=torch.float64)[[2, last]].expand(B, H, -1, -1)
        seen = (torch.arange(length) // 4 == 2) | (torch.arange(length) // 4 == last)
        equal(attention(q, k, v), SoftmaxAttention()(q, k, v, keep(seen.expand(length, -1))), (q, k, v))

    @pytest.mark.parametrize("kept", [1, 2, 6])
    def test_as_sorting_all_places(self, kept):
        """The places that are not kept, one by one, with scores of zero."""
        k, attention = tensors()[1], sortcut(block=4, kept=kept)
        means = k.unflatten(1, (6, 4)).mean(2)
        scores = torch.zeros(B, H, 6, 6, dtype=torch.float64)
        scores[:, :, :kept] = torch.einsum("hnk,bvhk->bhnv", attention.place_HNK, means) * K**-0.5 / 0.75
        for _ in range(8):
            scores = scores - scores.logsumexp(-2, keepdim=True)
            scores = scores - scores.logsumexp(-1, keepdim=True)
        close(attention.sort(k), scores.exp()[:, :, :kept])

    def test_fewer_blocks_than_places(self):
        """Three keys in one block, five places: the first holds the block, the others nothing."""
        q, k, v = tensors(3)
        attention = sortcut(block=4, kept=5)
        assert attention.sort(k)[0, 0].tolist() == [[1], [0], [0], [0], [0]]
        equal(attention(q, k, v), SoftmaxAttention()(q, k, v), (q, k, v))

    @pytest.mark.parametrize("pattern", [full, lengths([22, 9]), lengths([22, 1])], ids=str)
    @pytest.mark.parametrize(("size", "kept"), [(1, 3), (3, 2), (5, 9), (40, 2)])
    def test_the_law_for_blocks_of_any_size(self, pattern, size, kept):
        (q, k, v), attention = tensors(22), sortcut(block=size, kept=kept, temperature=0.2)
        inputs = (q[:, :7], k, v)
        fast, slow = attention(*inputs, pattern), average(attention.weights(*inputs[:2], pattern), v)
        equal(fast, slow, (q, k, v, attention.place_HNK))

    def test_noise(self):
        (q, k, v), generator = tensors(), torch.Generator()
        attention = sortcut(block=4, noise=1.0, generator=generator)
        generator.manual_seed(2)
        fast = attention(q, k, v)
        generator.manual_seed(2)
        close(fast, average(attention.weights(q, k), v))
        assert not fast.equal(attention(q, k, v)) and attention.eval()(q, k, v).equal(attention(q, k, v))

    def test_steps_over_a_memory_equal_one_pass(self):
        (q, k, v), attention = tensors(), sortcut(block=4)
        state = attention.start(B)
        parts = [attention(q[:, t : t + 5], k, v, lengths([L, 9]), state=state) for t in range(0, L, 5)]
        close(torch.cat(parts, 1), attention(q, k, v, lengths([L, 9])))
        assert state.length == L and state.reorder(torch.tensor([1])).batch == 1

    def test_causal_is_refused(self):
        with pytest.raises(PatternNotSupported, match="SortCutAttention"):
            sortcut()(*tensors(), causal)


@pytest.mark.parametrize("make", [partial(SinkhornAttention, block=16), partial(sortcut, block=16)], ids=["sinkhorn", "sortcut"])
def test_memory_is_linear_in_the_length(make, largest):
    sizes = []
    for length in (256, 512, 1024):
        q, k, v = tensors(length)
        with largest() as made:
            make()(q, k, v).sum().backward()
        sizes.append(made.size)
    assert sizes[1] <= 2 * sizes[0] and sizes[2] <= 2 * sizes[1] and sizes[2] < B * H * 1024**2 / 4


def test_wrong_settings_and_sizes():
    for wrong in ({"block": 0}, {"iterations": -1}, {"temperature": 0.0}):
        for kind in (SinkhornAttention, sortcut):
            with pytest.raises(BadConfig, match=f"Attention: {next(iter(wrong))}="):
                kind(**wrong)
    with pytest.raises(BadConfig, match="kept=0"):
        sortcut(kept=0)
    q, k, v = tensors()
    with pytest.raises(ShapeError, match="was made for 2 heads"):
        SortCutAttention(head_dim=K, heads=2).double()(q, k, v)


@pytest.mark.parametrize("length", [13, 64])
def test_the_definition_has_second_derivatives(length):
    torch.manual_seed(0)
    attention = SinkhornAttention.sized(heads=2, head_dim=3, length=length).double().eval()
    q, k = torch.randn(2, 1, length, 2, 3, dtype=torch.float64, requires_grad=True).unbind()
    first = torch.autograd.grad(attention.weights(q, k, causal).square().sum(), (q, k), create_graph=True)
    assert all(x.isfinite().all() for x in torch.autograd.grad(sum(x.square().sum() for x in first), (q, k)))
