"""Reversible stacks against the plain form of the same blocks, and slices against the whole."""

from functools import partial

import pytest
import torch
from torch import nn

from regard.attention import HardAttention, LSHAttention, SoftmaxAttention
from regard.errors import ShapeError
from regard.layers import Chunked, FeedForward, MultiHead, Reversible, ReversibleBlock, gelu
from regard.patterns import causal, full, lengths

B, L, D, H, W = 2, 11, 12, 3, 20
close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)


def stack(depth: int, attention=SoftmaxAttention, dropout: float = 0.0, seed: int = 0, chunk: int = L) -> Reversible:
    torch.manual_seed(seed)
    parts = ((MultiHead(D, H, attention(), shared_qk=True), Chunked(FeedForward(D, W, gelu, dropout=dropout), chunk)) for _ in range(depth))
    return Reversible(ReversibleBlock(D, mixer, think, dropout=dropout) for mixer, think in parts).double()


def plain(blocks: Reversible, x1, x2, pattern=full):
    for block in blocks.blocks:
        x1, x2 = block(x1, x2, pattern)
    return x1, x2


def streams():
    return [torch.randn(B, L, D, dtype=torch.float64, requires_grad=True) for _ in range(2)]


def same(blocks: Reversible, pattern=full, reseed=lambda: torch.manual_seed(3)):
    x1, x2 = streams()
    cotangents = [torch.randn(B, L, D, dtype=torch.float64) for _ in range(2)]
    wanted = [x1, x2, *blocks.parameters()]
    found = []
    for way in (blocks, partial(plain, blocks)):
        reseed()
        out = way(x1, x2, pattern)
        found.append((out, torch.autograd.grad(out, wanted, cotangents, allow_unused=True)))
    close(found[0][0], found[1][0])
    for one, two in zip(found[0][1], found[1][1], strict=True):
        assert (one is None) == (two is None)
        if one is not None:
            close(one, two)


def saved(call) -> int:
    """Bytes that autograd keeps between a forward pass and its backward pass, parameters apart."""
    kept: dict[int, int] = {}

    def pack(x):
        if not isinstance(x, nn.Parameter) and not (x._base is not None and isinstance(x._base, nn.Parameter)):
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        out = call()
    assert out is not None
    return sum(kept.values())


class TestGradients:
    @pytest.mark.parametrize("pattern", [full, causal, lengths([L, 4])], ids=str)
    def test_as_the_plain_form(self, pattern):
        same(stack(6), pattern)

    def test_dropout_is_drawn_again(self):
        same(stack(4, dropout=0.3))

    def test_hash_functions_are_drawn_again(self):
        same(stack(3, partial(LSHAttention, chunk=2, buckets=4, seed=None)), causal)

    def test_generators_of_parts_are_wound_back_too(self):
        generator = torch.Generator()
        same(stack(3, partial(HardAttention, generator=generator)), reseed=lambda: generator.manual_seed(3))

    def test_in_slices(self):
        same(stack(3, chunk=4))

    def test_blocks_that_share_parameters(self):
        block = stack(1).blocks[0]
        same(Reversible([block, block, block]))

    def test_frozen_parameters_and_constant_inputs(self):
        blocks = stack(3)
        blocks.blocks[1].requires_grad_(False)
        x = torch.randn(B, L, D, dtype=torch.float64)
        for way in (blocks, partial(plain, blocks)):
            blocks.zero_grad()
            sum(y.square().sum() for y in way(x, x)).backward()
            gradients = [None if p.grad is None else p.grad.clone() for p in blocks.parameters()]
            if way is blocks:
                first = gradients
        for one, two in zip(first, gradients, strict=True):
            assert (one is None) == (two is None)
            if one is not None:
                close(one, two)

    def test_one_output_only(self):
        blocks, (x1, x2) = stack(2), streams()
        close(*(torch.autograd.grad(way(x1, x2)[0].sum(), (x1, x2)) for way in (blocks, partial(plain, blocks))))

    def test_no_blocks(self):
        (x1, x2) = streams()
        y1, y2 = Reversible([])(x1, x2)
        close((y1, y2), (x1, x2))
        close(torch.autograd.grad((y1 + 2 * y2).sum(), (x1, x2)), (torch.ones_like(x1), 2 * torch.ones_like(x1)))


def test_random_numbers_go_on_as_if_nothing_had_been_drawn_again():
    blocks, (x1, x2) = stack(3, dropout=0.5), streams()
    out = blocks(x1, x2)
    expected = torch.get_rng_state()
    sum(y.sum() for y in out).backward()
    assert torch.get_rng_state().equal(expected)


def test_memory_does_not_grow_with_depth():
    x1, x2 = streams()
    reversible = [saved(lambda n=n: stack(n)(x1, x2)) for n in (2, 12)]
    kept = [saved(lambda n=n: plain(stack(n), x1, x2)) for n in (2, 12)]
    assert reversible[0] == reversible[1] == 2 * x1.nbytes
    assert kept[1] > 5 * kept[0]


def test_streams_of_two_shapes_are_refused():
    x1, x2 = streams()
    with pytest.raises(ShapeError, match="one shape"):
        stack(1)(x1, x2[:, :5])


def test_under_autocast():
    blocks = stack(2).float()
    x = torch.randn(B, L, D, requires_grad=True)
    found = []
    for way in (blocks, partial(plain, blocks)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = way(x, x)
        found.append(torch.autograd.grad(sum(y.float().square().sum() for y in out), x)[0])
    torch.testing.assert_close(*found, rtol=0.05, atol=0.05)


class TestChunked:
    @pytest.mark.parametrize("size", [1, 3, 10, 11, 64])
    def test_the_same_result(self, size):
        torch.manual_seed(0)
        layer = FeedForward(D, W, gelu).double()
        x = torch.randn(B, L, D, dtype=torch.float64, requires_grad=True)
        cotangent, found = torch.randn(B, L, D, dtype=torch.float64), []
        for part in (layer, Chunked(layer, size)):
            out = part(x)
            found.append([out, *torch.autograd.grad(out, [x, *layer.parameters()], cotangent)])
        close(*found)
        with torch.no_grad():
            close(Chunked(layer, size)(x), found[0][0])

    def test_dropout_is_drawn_again(self):
        layer = Chunked(FeedForward(D, W, dropout=0.5).double(), 4)
        x = torch.randn(B, L, D, dtype=torch.float64, requires_grad=True)

        def call(x):
            torch.manual_seed(1)
            return layer(x)

        assert torch.autograd.gradcheck(call, (x,))

    def test_wide_features_are_not_kept(self):
        layer, x = FeedForward(D, 50 * D).double(), torch.randn(B, L, D, dtype=torch.float64, requires_grad=True)
        whole, sliced = saved(lambda: layer(x)), saved(lambda: Chunked(layer, 2)(x))
        assert sliced < whole / 20

    def test_a_size_of_nothing_is_refused(self):
        with pytest.raises(ShapeError, match="size=0"):
            Chunked(nn.Identity(), 0)
