"""Segments that remember: equal to one pass where all is remembered, cut where it should be, and nothing learned through the memory."""

from functools import partial

import pytest
import torch
from torch import nn

from regard import AdaptiveSpanAttention, capture, causal, keep, lengths, window
from regard.errors import ShapeError, StateNotSupported
from regard.layers import (
    ALiBi,
    Block,
    Buckets,
    Compression,
    ConvPool,
    FeedForward,
    MaxPool,
    MeanPool,
    MultiHead,
    RelativeXL,
    Rotary,
    SegmentRecurrence,
    compression_loss,
)

B, L, H, D = 2, 23, 3, 12
CUTS = [[L], [1] * L, [5, 1, 9, 8], [11, 12]]
close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)
SCHEMES = {
    "xl": lambda: RelativeXL(D, H),
    "rotary": lambda: Rotary(),
    "alibi": lambda: ALiBi(H),
    "buckets": lambda: Buckets(H, buckets=8, furthest=20, causal=True),
}


def heads(scheme: str = "xl", **options) -> MultiHead:
    made = MultiHead(D, H, position=SCHEMES[scheme](), **options).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.5)
    return made


def stream(seed: int = 1, batch: int = B, length: int = L) -> torch.Tensor:
    return torch.randn(batch, length, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def read(layer: nn.Module, x: torch.Tensor, cut: list[int], state=None, pattern=causal) -> torch.Tensor:
    state = layer.start(len(x), pattern) if state is None else state
    return torch.cat([layer(part, pattern=pattern, state=state) for part in x.split(cut, 1)], 1)


class TestRecurrence:
    @pytest.mark.parametrize("cut", CUTS, ids=str)
    @pytest.mark.parametrize("scheme", SCHEMES)
    def test_segments_are_one_pass_when_all_is_remembered(self, scheme, cut):
        layer, x = SegmentRecurrence(heads(scheme), L), stream()
        close(read(layer, x, cut), layer.heads(x, pattern=causal))

    @pytest.mark.parametrize("placement", ["pre", "post"])
    @pytest.mark.parametrize("cut", CUTS[1:], ids=str)
    def test_a_stack_too(self, cut, placement):
        blocks = [Block(D, SegmentRecurrence(heads(), L), FeedForward(D, 17), placement=placement).double() for _ in range(3)]
        x, states = stream(), [block.start(B) for block in blocks]
        parts = []
        for part in x.split(cut, 1):
            for block, state in zip(blocks, states, strict=True):
                part = block(part, causal, state=state)
            parts.append(part)
        for block in blocks:
            x = block(x, causal)
        close(torch.cat(parts, 1), x)
        assert all(state.length == L for state in states)

    @pytest.mark.parametrize("scheme", SCHEMES)
    @pytest.mark.parametrize("size", [0, 1, 4, 10])
    @pytest.mark.parametrize("cut", CUTS, ids=str)
    def test_a_short_memory_is_cut_where_it_should_be(self, cut, size, scheme):
        """A segment that begins at s sees from s − M on; in one pass, a mask that says so."""
        layer, x = SegmentRecurrence(heads(scheme), size), stream()
        begins = torch.cat([torch.full((n,), sum(cut[:at])) for at, n in enumerate(cut)])
        i, j = torch.arange(L)[:, None], torch.arange(L)
        close(read(layer, x, cut), layer.heads(x, pattern=keep((j <= i) & (j >= begins[:, None] - size))))

    @pytest.mark.parametrize("scheme", SCHEMES)
    @pytest.mark.parametrize("size", [3, L])
    def test_joined_streams_go_on_as_if_alone(self, scheme, size):
        layer, x = SegmentRecurrence(heads(scheme), size), stream(batch=3)
        one, two = layer.start(2), layer.start(1)
        read(layer, x[:2, :11], [4, 7], one)
        read(layer, x[2:, :5], [2, 3], two)
        state = one.join(two)
        assert state.position() == (11, 11, 5)
        out = read(layer, torch.cat([x[:2, 11:20], x[2:, 5:14]]), [1, 3, 5], state)
        close(out[:2], read(layer, x[:2, :20], [4, 7, 1, 3, 5])[:, 11:])
        close(out[2:], read(layer, x[2:, :14], [2, 3, 1, 3, 5])[:, 5:])

    def test_by_hand(self):
        """One head, no positions: softmax over memory and segment, in two loops."""
        layer, x = SegmentRecurrence(MultiHead(2, 1).double(), 2), stream(length=5)[..., :2]
        mine = layer.heads
        q, k, v = (x @ mine.qkv.weight.T + mine.qkv.bias).split(2, -1)
        out = read(layer, x, [3, 2])
        for b in range(B):
            for i in (3, 4):
                seen = range(1, i + 1)  # two remembered, 1 and 2, then the segment up to i
                raw = torch.stack([torch.exp(q[b, i] @ k[b, j] / 2**0.5) for j in seen])
                close(out[b, i], mine.out(sum(w * v[b, j] for w, j in zip(raw / raw.sum(), seen, strict=True))))

    def test_reach_grows_with_depth(self):
        blocks, x = [Block(D, SegmentRecurrence(heads(), 2), None).double() for _ in range(3)], stream()

        def last(x):
            states = [block.start(B) for block in blocks]
            for part in x.split(1, 1):
                for block, state in zip(blocks, states, strict=True):
                    part = block(part, causal, state=state)
            return part

        before = last(x)
        for back, seen in ((6, True), (7, False)):  # three layers, two rows each
            changed = x.clone()
            changed[:, L - 1 - back] += 1
            assert torch.equal(last(changed), before) != seen

    def test_gradients_stop_at_the_memory(self):
        layer, x = SegmentRecurrence(heads(), 6), stream().requires_grad_()
        state = layer.start(B)
        layer(x[:, :9], state=state)
        out = layer(x[:, 9:14], state=state)
        wanted = list(layer.parameters())
        given, *learned = torch.autograd.grad(out.square().sum(), [x, *wanted])
        assert (given[:, :9] == 0).all() and given[:, 9:14].abs().sum() > 0
        # the projections do learn from remembered rows, as constants
        fixed = torch.cat([x[:, 3:9].detach(), x[:, 9:14]], 1)
        expected = torch.autograd.grad(layer.heads(x[:, 9:14], fixed, causal).square().sum(), wanted)
        for one, two in zip(learned, expected, strict=True):
            close(one, two)
        assert state.rows_BMD.shape == (B, 6, D) and not state.rows_BMD.requires_grad and state.detach() is state

    def test_a_reset_row_begins_anew(self):
        layer, x = SegmentRecurrence(heads(), 8), stream(batch=3)
        state = layer.start(3)
        read(layer, x[:, :10], [4, 6], state)
        state.reset(torch.tensor([1]))
        after = read(layer, x[:, 10:], [2, 3, 8], state)
        close(after[[0, 2]], read(layer, x, [4, 6, 2, 3, 8])[[0, 2], 10:])
        close(after[1], read(layer, x[1:2, 10:], [2, 3, 8])[0])

    def test_beams(self):
        layer, x, order = SegmentRecurrence(heads(), 8), stream(), torch.tensor([1, 1, 0])
        state = layer.start(B)
        read(layer, x[:, :10], [10], state)
        state.reset(torch.tensor([False, True])).reorder(order)
        after = layer(x[order, 10:12], state=state)
        anew = layer.start(B)
        read(layer, x[:, :10], [10], anew)
        anew.reset(torch.tensor([False, True]))
        close(after, layer(x[:, 10:12], state=anew)[order])

    def test_rules_are_on_places_in_the_stream(self):
        layer, x = SegmentRecurrence(heads(), 6), stream()
        for pattern in (causal & window(3), causal & lengths([L, 9])):
            close(read(layer, x, [4, 4, 4, 11], pattern=pattern)[:, :6], layer.heads(x, pattern=pattern)[:, :6])
        state = layer.start(B, causal & window(3))
        assert state.size == 3
        close(read(layer, x, [1] * L, state, causal & window(3)), layer.heads(x, pattern=causal & window(3)))

    def test_with_adaptive_span(self):
        """A memory as long as the furthest head reaches is enough: z + R of 5 is weight up to a distance of 4."""
        span = AdaptiveSpanAttention(heads=H, longest=16, ramp=3.0)
        layer, x = SegmentRecurrence(heads("rotary", attention=span), 4), stream()
        with torch.no_grad():
            span.share_H.copy_(torch.tensor([0.0, 1.0, 2.0]) / 16)
        close(read(layer, x, CUTS[2]), layer.heads(x, pattern=causal))

    def test_maps_are_over_memory_and_segment(self):
        layer, x = SegmentRecurrence(heads(), 6), stream()
        state = layer.start(B)
        with capture(layer, dtype=torch.float64) as maps:
            read(layer, x[:, :12], [9, 3], state)
        first, second = maps.all
        assert first.weights_BHLM.shape[2:] == (9, 9) and second.weights_BHLM.shape[2:] == (3, 9)
        close(second.weights_BHLM.sum(-1), torch.ones(B, H, 3, dtype=torch.float64))

    def test_wrong_calls_are_named(self):
        with pytest.raises(ShapeError, match="-1"):
            SegmentRecurrence(heads(), -1)
        with pytest.raises(StateNotSupported, match=r"Recurrence .* Past .* Cache"):
            SegmentRecurrence(heads(), 3)(stream(), state=heads().start(B))
        layer = SegmentRecurrence(heads(), 3)
        with pytest.raises(ShapeError, match="reorder"):
            layer(stream(), state=layer.start(B + 1))


POOLS = {"mean": lambda: MeanPool(3), "max": lambda: MaxPool(3), "conv": lambda: ConvPool(D, 3).double()}


class TestCompression:
    @pytest.mark.parametrize("cut", CUTS, ids=str)
    @pytest.mark.parametrize("pool", POOLS)
    def test_what_is_held(self, pool, cut):
        """After any segments: the newest rows, and images of the runs of three before them, oldest dropped first."""
        layer, x = Compression(heads(), 5, 4, POOLS[pool]()), stream()
        state, seen = layer.start(B), 0
        for part in x.split(cut, 1):
            layer(part, state=state)
            seen += part.shape[1]
            squeezed = max(0, seen - 5) // 3 * 3
            close(state.rows_BMD, x[:, squeezed:seen])
            assert state.length == seen and not state.rows_BMD.requires_grad
            if squeezed:
                images = torch.stack([layer.pool(x[:, n : n + 3])[:, 0] for n in range(0, squeezed, 3)], 1)
                close(state.small_BCD, images[:, -4:].detach())
                assert not state.small_BCD.requires_grad

    def test_pools_by_hand(self):
        x = torch.tensor([[[1.0, 8.0], [2.0, 6.0], [6.0, 1.0], [0.0, 0.0], [3.0, 3.0], [0.0, 6.0]]])
        assert MeanPool(3)(x).tolist() == [[[3.0, 5.0], [1.0, 3.0]]] and MaxPool(3)(x).tolist() == [[[6.0, 8.0], [3.0, 6.0]]]
        conv = ConvPool(2, 3)
        theirs = nn.Conv1d(2, 2, 3, stride=3)
        with torch.no_grad():
            theirs.weight.copy_(conv.mix.weight.view(2, 3, 2).mT)
            theirs.bias.copy_(conv.mix.bias)
        torch.testing.assert_close(conv(x), theirs(x.mT).mT)

    def test_looks_at_compressed_then_remembered_then_new(self):
        layer, x = Compression(heads(), 5, 4, MeanPool(3)), stream()
        out = read(layer, x, [11, 7, 5])
        held = torch.cat([x[:, :12].unflatten(1, (4, 3)).mean(2), x[:, 12:]], 1)  # 18 rows before the last segment, 13 too old
        close(out[:, 18:], layer.heads(x[:, 18:], held, causal))

    def test_nothing_squeezed_is_recurrence(self):
        x = stream()
        close(read(Compression(heads(), L, 4, MeanPool(3)), x, CUTS[2]), read(SegmentRecurrence(heads(), L), x, CUTS[2]))

    def test_the_loss_is_the_papers_and_teaches_the_pool_alone(self):
        layer, x = Compression(heads(), 5, 4, POOLS["conv"]()), stream().requires_grad_()
        state = layer.start(B)
        layer(x[:, :11], state=state)
        assert state.loss.item() > 0
        old = x[:, :6].detach()
        mine, small = layer.heads, layer.pool(old)

        def read_by_content(memory):
            q = (x[:, :11].detach() @ mine.qkv.weight[:D].T + mine.qkv.bias[:D]).view(B, 11, H, -1).transpose(1, 2)
            k, v = ((memory @ mine.qkv.weight[n : n + D].T + mine.qkv.bias[n : n + D]).view(B, -1, H, D // H) for n in (D, 2 * D))
            return (q @ k.permute(0, 2, 3, 1) * (D // H) ** -0.5).softmax(-1) @ v.transpose(1, 2)

        close(state.loss, (read_by_content(small) - read_by_content(old)).square().mean())
        first = compression_loss(state)
        assert state.loss is None and compression_loss(state) is None
        wanted = [x, *layer.parameters()]
        grads = torch.autograd.grad(first, wanted, allow_unused=True)
        taught = {id(p) for p in layer.pool.parameters()}
        for parameter, gradient in zip(wanted, grads, strict=True):
            assert (gradient is not None and gradient.abs().sum() > 0) == (id(parameter) in taught)
        # and the loss of the task does not reach the pool
        out = layer(x[:, 11:13], state=state)
        assert all(g is None for g in torch.autograd.grad(out.sum(), list(layer.pool.parameters()), allow_unused=True))

    def test_losses_add_up_over_segments_and_layers(self):
        blocks = [Block(D, Compression(heads(), 4, 4, ConvPool(D, 2)), None).double() for _ in range(2)]
        states = [block.start(B) for block in blocks]
        parts = []
        for part in stream().split([6, 8, 9], 1):
            for block, state in zip(blocks, states, strict=True):
                part = block(part, causal, state=state)
            parts.append([state["mixer"].loss for state in states])
        close(compression_loss(*states), parts[-1][0] + parts[-1][1])
        assert (parts[-1][0] > parts[0][0]) and compression_loss(*states) is None

    def test_no_loss_without_something_to_learn(self):
        for layer in (Compression(heads(), 2, 4, MeanPool(2)), Compression(heads(), 2, 4, ConvPool(D, 2).double())):
            with torch.set_grad_enabled(isinstance(layer.pool, MeanPool)):
                state = layer.start(B)
                layer(stream(), state=state)
            assert state.loss is None

    def test_training_it_brings_the_reconstruction_near(self):
        torch.manual_seed(0)
        layer = Compression(MultiHead(D, H), 6, 6, ConvPool(D, 2))
        optimiser, seen = torch.optim.Adam(layer.pool.parameters(), lr=0.01), []
        for _ in range(80):
            state = layer.start(4)
            layer(torch.randn(4, 12, D), state=state)
            loss = compression_loss(state)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            seen.append(loss.item())
        assert sum(seen[-5:]) < 0.6 * sum(seen[:5])

    @pytest.mark.parametrize("at", [3, 6, 8, 14, 19])
    def test_a_reset_row_sees_nothing_older(self, at):
        """Whatever stood before the reset, the outputs after it are the same; a row that mixes two texts is not looked at."""
        layer, x = Compression(heads(), 4, 3, MeanPool(3)), stream(batch=3)
        other = x.clone()
        other[1, :at] = stream(seed=5)[0, :at]
        outs = []
        for given in (x, other):
            state = layer.start(3)
            layer(given[:, :at], state=state)
            state.reset(torch.tensor([1]))
            outs.append(read(layer, given[:, at:], [1, 2] + [1] * (L - at - 3), state))
        assert torch.equal(*outs) and outs[0].isfinite().all()
        close(outs[0][[0, 2]], read(layer, x, [at, 1, 2] + [1] * (L - at - 3))[[0, 2], at:])

    def test_a_reset_row_sees_all_of_its_own(self):
        """Reset where a run of three begins: from then on as a stream that begins there."""
        layer, x = Compression(heads(), 4, 3, MeanPool(3)), stream()
        state = layer.start(B)
        layer(x[:, :6], state=state)
        state.reset(torch.tensor([0, 1]))
        close(read(layer, x[:, 6:], [5, 4, 8], state), read(layer, x[:, 6:], [5, 4, 8]))

    def test_beams(self):
        layer, x, order = Compression(heads(), 4, 3, MaxPool(2)), stream(), torch.tensor([1, 0, 1])
        states = [layer.start(B) for _ in range(2)]
        for state in states:
            read(layer, x[:, :15], [9, 6], state)
        close(layer(x[order, 15:], state=states[0].reorder(order)), layer(x[:, 15:], state=states[1])[order])
