"""What every mechanism must hold. A new one is tested by being imported: it is in the list."""

import pytest
import torch
from torch import Tensor

from regard.attention import MECHANISMS, Attention, Cache, Running, SoftmaxAttention, State
from regard.attention._base import average
from regard.attention.memory_compressed import Compressed
from regard.errors import (
    BiasNotSupported,
    CaptureNotSupported,
    DtypeError,
    PatternNotSupported,
    RegardError,
    ShapeError,
    StateNotSupported,
)
from regard.kernels import exact
from regard.kernels._plan import additive
from regard.look import capture
from regard.patterns import (
    Pattern,
    begun,
    block,
    causal,
    full,
    keep,
    lengths,
    local_causal,
    per_head,
    random_blocks,
    segments,
    since,
    tokens,
    window,
)

B, L, M, H, G, K, V = 3, 13, 17, 4, 2, 7, 11  # all different: a swapped axis cannot pass by luck
ids = {"ids": lambda m: m.facts.name}


class Joined(Attention):
    """A mechanism that wants extra numbers, given them as further columns of k: whatever a test does to keys it does to them."""

    def __init__(self, inner: Attention):
        super().__init__()
        self.inner, self.facts = inner, inner.facts

    def weights(self, q_BLHK, k_BMHK, pattern=full, bias=None):
        return self.inner.weights(q_BLHK, k_BMHK[..., :K], pattern, bias, extra_BMHE=k_BMHK[..., K:])

    def weights_of(self, rows, q_BLHK, k_BMHK, pattern=full, bias=None):
        return self.inner.weights_of(rows, q_BLHK, k_BMHK[..., :K], pattern, bias, extra_BMHE=k_BMHK[..., K:])

    def forward(self, q_BLHK, k_BMHK, v_BMHV, pattern=full, bias=None, state=None):
        return self.inner(q_BLHK, k_BMHK[..., :K], v_BMHV, pattern, bias, state, extra_BMHE=k_BMHK[..., K:])

    def start(self, batch, pattern=causal):
        return self.inner.start(batch, pattern)


def build(mechanism: type[Attention], length: int = 80, dtype: torch.dtype = torch.float64) -> Attention:
    """A mechanism of the right size, its parameters no longer at symmetric starting points."""
    attention = alone(mechanism, length, dtype)
    return Joined(attention) if attention.extra else attention


def alone(mechanism: type[Attention], length: int = 80, dtype: torch.dtype = torch.float64) -> Attention:
    attention = mechanism.sized(heads=H, width=K, length=length).to(dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=dtype)
    return attention


def tensors(
    mechanism: type[Attention], queries: int = L, keys: int = M, heads: int = H, batch: int = B, dtype=torch.float64
) -> list[Tensor]:
    """q, k, v; as many queries as keys where the mechanism looks within one sequence only. `k` ends in what it wants beside."""
    queries = queries if mechanism.facts.cross else keys
    shapes = (batch, queries, H, K), (batch, keys, heads, K + extra(mechanism)), (batch, keys, heads, V)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def extra(mechanism: type[Attention]) -> int:
    return mechanism.sized(heads=H, width=K, length=M).extra


def widest(mechanism: type[Attention]) -> Pattern:
    """The pattern under which it sees most: all keys, or all that came before where it knows nothing else."""
    return full if mechanism.facts.patterns == "any" or "full" in mechanism.facts.patterns else causal


def patterns(mechanism: type[Attention], queries: int = L, keys: int = M) -> list[Pattern]:
    """Those it says it knows."""
    queries = queries if mechanism.facts.cross else keys
    mask = torch.rand(B, H, queries, keys, generator=torch.Generator().manual_seed(2)) < 0.4
    every = {
        "full": full,
        "causal": causal,
        "lengths": lengths([keys, 3, 1]),
        "window": window(2),
        "tokens": causal & (window(1) | tokens(0)),
        "keep": keep(mask),
        "per_head": per_head(causal, full, window(3), block(4)),
        "random_blocks": random_blocks(1, 3, seed=4, per_head=H),
        "both": causal & lengths([keys, 5, 2]),
        "segments": segments(torch.arange(keys).expand(B, keys) // 3),
        "since": since(torch.tensor([0, keys // 2, keys - 1])),
    }
    known = mechanism.facts.patterns
    if known == "any":
        return list(every.values())
    always = widest(mechanism)  # what knows no `full` wants `causal` with every rule
    own = [every[name] if name == "causal" else always & every[name] for name in known if name in every]
    return own + ([every["both"]] if {"causal", "lengths"} <= set(known) else [])


def reseed(attention: Attention) -> None:
    """Random mechanisms take a generator that the caller can set."""
    for part in attention.modules():
        for value in vars(part).values():
            if isinstance(value, torch.Generator):
                value.manual_seed(5)
    torch.manual_seed(5)


def run(attention: Attention, *args, **kwargs) -> Tensor:
    reseed(attention)
    return attention(*args, **kwargs)


def compare(attention: Attention, inputs: list[Tensor], pattern: Pattern, bias: Tensor | None = None) -> None:
    """The law: outputs, and gradients of every input and parameter."""
    q, k, v = inputs
    fast = run(attention, q, k, v, pattern, bias)
    reseed(attention)
    slow = average(attention.weights(q, k, pattern, bias), v)
    assert fast.shape == slow.shape == (*q.shape[:3], v.shape[-1])
    torch.testing.assert_close(fast, slow, atol=1e-10, rtol=1e-10)
    wanted = [x for x in (q, k, v, bias, *attention.parameters()) if x is not None and x.requires_grad]
    cotangent = torch.randn_like(fast)
    grads = [torch.autograd.grad(out, wanted, cotangent, allow_unused=True) for out in (fast, slow) if out.requires_grad]
    for one, two in zip(*grads, strict=True):
        zero = torch.zeros(())
        torch.testing.assert_close(
            zero.double() if one is None else one,
            (one * 0 if one is not None else zero.double()) if two is None else two,
            atol=1e-10,
            rtol=1e-10,
        )


@pytest.fixture(params=["as it comes", "always in tiles"])
def path(request, monkeypatch):
    """Small inputs go to a dense kernel; both ways must hold."""
    if request.param == "always in tiles":
        monkeypatch.setattr(exact, "SMALL", -1)


@pytest.mark.parametrize("mechanism", MECHANISMS, **ids)
class TestLaw:
    def test_fast_is_the_definition(self, mechanism, path):
        for pattern in patterns(mechanism):
            compare(build(mechanism), tensors(mechanism), pattern)

    @pytest.mark.parametrize("length", [1, 5, 63, 64, 65])
    def test_at_every_length(self, mechanism, length, path):
        for pattern in patterns(mechanism, length, length)[:2]:
            compare(build(mechanism), tensors(mechanism, length, length), pattern)

    def test_with_fewer_key_heads(self, mechanism, path):
        if not mechanism.facts.grouped:
            with pytest.raises(ShapeError, match="key heads"):
                build(mechanism)(*tensors(mechanism, heads=G), widest(mechanism))
            return
        for pattern in patterns(mechanism):
            compare(build(mechanism), tensors(mechanism, heads=G), pattern)

    def test_with_a_learned_bias(self, mechanism, path):
        q, k, v = tensors(mechanism)
        for shape in ((B, H, q.shape[1], M), (H, q.shape[1], M), (B, 1, 1, M)):
            bias = torch.randn(shape, dtype=torch.float64, requires_grad=True)
            if not mechanism.facts.bias:
                with pytest.raises(BiasNotSupported, match=mechanism.__name__):
                    build(mechanism)(q, k, v, widest(mechanism), bias)
                return
            for pattern in patterns(mechanism)[:3]:
                compare(build(mechanism), [q, k, v], pattern, bias)

    def test_empty_batch_and_no_keys(self, mechanism, path):
        attention, pattern = build(mechanism), widest(mechanism)
        assert run(attention, *tensors(mechanism, batch=0), pattern).shape == (0, *tensors(mechanism)[0].shape[1:3], V)
        if mechanism.facts.cross:
            out = run(attention, *tensors(mechanism, queries=L, keys=0), pattern)
            assert out.shape == (B, L, H, V) and (out == 0).all()

    @pytest.mark.parametrize("length", [M, 64])
    def test_however_inputs_lie_in_memory(self, mechanism, length, path):
        """With values as wide as keys, which is what PyTorch's own kernels ask for."""
        attention, (q, k, v) = build(mechanism, length), tensors(mechanism, length, length)
        cotangent = torch.randn(*q.shape[:3], K, dtype=q.dtype)
        results = []
        for order in ((0, 1, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2), (1, 0, 2, 3), (3, 2, 1, 0)):
            back = sorted(range(4), key=order.__getitem__)
            *given, weigh = (x.detach().permute(order).contiguous().permute(back) for x in (q, k, v[..., :K], cotangent))
            given = [x.requires_grad_() for x in given]
            out = run(attention, *given, widest(mechanism))
            results.append((out, *torch.autograd.grad(out, given, weigh, allow_unused=True)))
        for apart in results[1:]:
            torch.testing.assert_close(apart, results[0])


@pytest.mark.parametrize("mechanism", MECHANISMS, **ids)
class TestWeights:
    def test_forbidden_is_zero_and_rows_sum_to_one(self, mechanism):
        q, k, _ = tensors(mechanism)
        attention = build(mechanism)
        for pattern in patterns(mechanism):
            reseed(attention)
            weights = attention.weights(q, k, pattern)
            mask = attention.within(pattern).mask(q.shape[1], M).expand_as(weights)
            assert not (mask & ~pattern.mask(q.shape[1], M)).any(), "a pattern of its own only narrows the caller's"
            assert weights.shape == (B, H, q.shape[1], M)
            assert (weights[~mask] == 0).all(), f"{pattern}"
            if mechanism.facts.normalised:
                torch.testing.assert_close(weights.sum(-1), mask.any(-1).to(weights.dtype))

    def test_some_rows_are_those_rows(self, mechanism):
        q, k, _ = tensors(mechanism)
        attention, rows = build(mechanism), torch.tensor([4, 0, 12])
        if mechanism.facts.random:
            pytest.skip("rows are drawn anew")
        for pattern in patterns(mechanism):
            torch.testing.assert_close(attention.weights_of(rows, q, k, pattern), attention.weights(q, k, pattern)[:, :, rows])

    def test_order_of_keys(self, mechanism):
        q, k, v = tensors(mechanism)
        attention, order, pattern = build(mechanism), torch.randperm(M), widest(mechanism)
        if mechanism.facts.random:
            pytest.skip("another order is another draw")
        rows = slice(None) if pattern is full else slice(-1, None)  # under causal only the last query sees the same keys
        before, after = (run(attention, q, *keys, pattern)[:, rows] for keys in ((k, v), (k[:, order], v[:, order])))
        assert torch.allclose(before, after, atol=1e-10) != mechanism.facts.positional


@pytest.mark.parametrize("mechanism", MECHANISMS, **ids)
class TestMasks:
    def test_the_future_has_no_influence(self, mechanism):
        """Strict: change everything after t, and all up to t stays the same to the bit."""
        if mechanism.facts.causal == "none":
            with pytest.raises(PatternNotSupported, match=mechanism.__name__):
                build(mechanism)(*tensors(mechanism, M, M), causal)
            return
        if mechanism.facts.causal == "mask-only":
            pytest.skip("says itself that statistics of the future leak in")
        attention, (q, k, v) = build(mechanism), [x.detach() for x in tensors(mechanism, M, M)]
        before = run(attention, q, k, v, causal)
        for t in (0, 7, M - 2):
            changed = [x.clone() for x in (q, k, v)]
            for x in changed:
                x[:, t + 1 :] = torch.randn_like(x[:, t + 1 :]) * 100
            assert run(attention, *changed, causal)[:, : t + 1].equal(before[:, : t + 1])

    def test_padding_has_no_influence(self, mechanism):
        """A padded batch gives what each row gives alone, whatever stands in the padding."""
        if mechanism.facts.patterns != "any" and "lengths" not in mechanism.facts.patterns:
            with pytest.raises(PatternNotSupported):
                build(mechanism)(*tensors(mechanism), widest(mechanism) & lengths([M] * B))
            return
        if mechanism.facts.random:
            pytest.skip("rows are drawn anew")
        pattern = widest(mechanism)
        same = not mechanism.facts.cross or pattern is not full  # a query stands where its key does, and goes with it
        attention, (q, k, v) = build(mechanism), [x.detach() for x in tensors(mechanism, M if same else L)]
        sizes = [M, 9, 1]
        padded = run(attention, q, k, v, pattern & lengths(sizes))
        k2, v2 = k.clone(), v.clone()
        for b, size in enumerate(sizes):
            k2[b, size:], v2[b, size:] = 1e3, -1e3
        torch.testing.assert_close(run(attention, q, k2, v2, pattern & lengths(sizes)), padded, rtol=0, atol=0)
        if mechanism.facts.by_length:
            return  # what stands in the padding has no influence, but how much there is of it has
        for b, size in enumerate(sizes):
            # within one sequence the queries stand at the keys, the last at the last: those in the padding have no counterpart
            last = mechanism.facts.cross == "last"
            queries = slice(0, max(0, size + q.shape[1] - M)) if last else slice(0, size) if same else slice(None)
            unpadded = run(attention, q[b : b + 1, queries], k[b : b + 1, :size], v[b : b + 1, :size], pattern)
            torch.testing.assert_close(padded[b : b + 1, queries], unpadded)

    def test_rows_that_may_look_nowhere(self, mechanism, path):
        """Zeros, and gradients that are finite everywhere."""
        if mechanism.facts.patterns != "any":
            pytest.skip("knows no such pattern")
        q, k, v = tensors(mechanism)
        mask = torch.rand(B, H, q.shape[1], M) < 0.5
        mask[0], mask[1, 2], mask[2, :, 3] = False, False, False
        attention = build(mechanism)
        for call in (lambda: run(attention, q, k, v, keep(mask)), lambda: average(attention.weights(q, k, keep(mask)), v)):
            out = call()
            assert (out[0] == 0).all() and (out[1, :, 2] == 0).all() and (out[2, 3] == 0).all()
            wanted = [x for x in (q, k, v, *attention.parameters())]
            for gradient in torch.autograd.grad(out.square().sum(), wanted, allow_unused=True):
                assert gradient is None or gradient.isfinite().all()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    @pytest.mark.parametrize("size", [1e4, -1e4])
    def test_huge_scores(self, mechanism, size, dtype, path):
        """±10⁴ as logits, forward and backward: no NaN, no infinity."""
        attention = build(mechanism, dtype=dtype)
        q, k, v = tensors(mechanism, dtype=dtype)
        q, k = ((x / x.detach().norm(dim=-1, keepdim=True) * abs(size) ** 0.5 * K**0.25).detach() for x in (q, k))
        q = (q * (1 if size > 0 else -1)).requires_grad_()
        for pattern in patterns(mechanism):
            out = run(attention, q, k.requires_grad_(), v, pattern)
            assert out.isfinite().all()
            for gradient in torch.autograd.grad(out.sum(), [q, k, v, *attention.parameters()], allow_unused=True):
                assert gradient is None or gradient.isfinite().all(), f"{pattern}"

    def test_bf16_is_near(self, mechanism, path):
        attention = build(mechanism, dtype=torch.float32)
        if mechanism.facts.random:
            pytest.skip("another rounding is another draw")
        rounded = build(mechanism, dtype=torch.float32)
        rounded.load_state_dict(attention.state_dict())
        rounded.to(torch.bfloat16)
        attention.load_state_dict(rounded.state_dict())  # the same rounded parameters
        inputs = [x.detach().bfloat16() for x in tensors(mechanism, dtype=torch.float32)]
        for pattern in patterns(mechanism):
            exact_out = run(attention, *(x.float() for x in inputs), pattern)
            low = run(rounded, *inputs, pattern)
            assert low.dtype == torch.bfloat16
            torch.testing.assert_close(low.float(), exact_out, atol=0.1, rtol=0.1)

    def test_mixed_precision_is_near_and_sums_are_not_rounded(self, mechanism):
        """Under autocast q, k and v come in bfloat16, as linear layers give them."""
        if mechanism.facts.random:
            pytest.skip("another rounding is another draw")
        attention = build(mechanism, dtype=torch.float32)
        inputs = [x.detach().bfloat16() for x in tensors(mechanism, M, M, dtype=torch.float32)]
        for pattern in patterns(mechanism, M, M)[:2]:
            exact_out = run(attention, *(x.float() for x in inputs), pattern)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                mixed = run(attention, *inputs, pattern)
            torch.testing.assert_close(mixed.float(), exact_out, atol=0.1, rtol=0.1)
        if not mechanism.facts.streaming or mechanism.facts.fixed_memory:
            return
        state = attention.start(B)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            attention(*inputs, causal, state=state)
        if isinstance(state, Running):
            whole = attention.start(B)
            attention(*(x.float() for x in inputs), causal, state=whole)
            for name, x in state.sums.items():
                torch.testing.assert_close(x, whole.sums[name], atol=1e-4, rtol=1e-4)


def streams(mechanism: type[Attention]) -> list[Pattern]:
    own = [causal, causal & window(4), local_causal(3) | causal & tokens(0, 1)]
    return own if mechanism.facts.patterns == "any" else own[:1]


def named(mechanism: type[Attention]) -> str:
    """What capture calls it; with extra numbers it is inside `Joined`."""
    return "inner" if alone(mechanism).extra else mechanism.__name__


def padded_streams(mechanism: type[Attention]) -> list[Pattern]:
    """Some rows end before the others, or begin later."""
    known = mechanism.facts.patterns
    rules = {"lengths": lengths([40, 25, 7]), "since": since(torch.tensor([0, 10, 30]))}
    return [causal & rule for name, rule in rules.items() if known == "any" or name in known]


class Other(State):
    """Of no mechanism."""


@pytest.mark.parametrize("mechanism", MECHANISMS, **ids)
class TestStreaming:
    """Self-attention step by step. Mechanisms that step over a fixed memory instead are tested in their own files."""

    def started(self, mechanism: type[Attention], pattern: Pattern = causal):
        if not mechanism.facts.streaming:
            with pytest.raises(StateNotSupported, match=mechanism.__name__):
                build(mechanism).start(B)
            pytest.skip("cannot go step by step, and says so")
        if mechanism.facts.fixed_memory:
            pytest.skip("steps over a fixed memory")
        attention = build(mechanism)
        return attention, [x.detach() for x in tensors(mechanism, 40, 40)], attention.start(B, pattern)

    @pytest.mark.parametrize("step", [1, 3, 40])
    def test_steps_equal_one_pass(self, mechanism, step):
        for pattern in streams(mechanism) + padded_streams(mechanism):
            attention, (q, k, v), state = self.started(mechanism, pattern)
            if mechanism.facts.random:
                pytest.skip("steps are drawn anew")
            whole = attention(q, k, v, pattern)
            parts = [attention(*(x[:, t : t + step] for x in (q, k, v)), pattern, state=state) for t in range(0, 40, step)]
            torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-9, rtol=1e-9)
            assert state.length == 40

    def test_a_step_may_bring_more_keys_than_queries(self, mechanism):
        """The queries stand at the end of the new keys, as they do without a state: a past that someone else kept comes in at once."""
        for pattern in streams(mechanism) + padded_streams(mechanism):
            attention, (q, k, v), state = self.started(mechanism, pattern)
            if mechanism.facts.random:
                pytest.skip("steps are drawn anew")
            whole = attention(q, k, v, pattern)
            first = attention(q[:, 27:30], k[:, :30], v[:, :30], pattern, state=state)
            after = attention(q[:, 38:], k[:, 30:], v[:, 30:], pattern, state=state)
            torch.testing.assert_close(torch.cat([first, after], 1), whole[:, [27, 28, 29, 38, 39]], atol=1e-9, rtol=1e-9)

    def test_steps_show_the_weights_of_the_whole(self, mechanism):
        """What capture sees of a stream, with rows of beams exchanged and one begun anew on the way."""
        for pattern in streams(mechanism):
            attention, (q, k, v), state = self.started(mechanism, pattern)
            if mechanism.facts.random:
                pytest.skip("steps are drawn anew")
            state.keep_keys()
            if not isinstance(state, Cache | Running):  # it holds something else than keys, and says so
                with (
                    capture(attention, layers=named(mechanism)),
                    pytest.raises(CaptureNotSupported, match="does not keep its keys one by one"),
                ):
                    attention(q[:, :3], k[:, :3], v[:, :3], pattern, state=state)
                return
            with capture(attention, layers=named(mechanism), dtype=torch.float64) as maps:
                for t in range(0, 30, 3):
                    attention(*(x[:, t : t + 3] for x in (q, k, v)), pattern, state=state)
                assert len(maps.all) == 10
                whole = attention.weights(q[:, :30], k[:, :30], pattern)
                for t, seen in zip(range(0, 30, 3), maps.all, strict=True):
                    torch.testing.assert_close(seen.weights_BHLM, whole[:, :, t : t + 3][..., list(seen.columns)], atol=1e-9, rtol=1e-9)
                order = torch.tensor([2, 0, 1])
                state.reorder(order).reset(torch.tensor([1]))
                attention(*(x[order, 30:33] for x in (q, k, v)), pattern, state=state)
            after = maps.all[-1]
            whole = attention.weights(q[:, :33], k[:, :33], pattern)[order][:, :, 30:33][..., list(after.columns)]
            torch.testing.assert_close(after.weights_BHLM[[0, 2]], whole[[0, 2]], atol=1e-9, rtol=1e-9)
            old = torch.tensor(after.columns) < 30
            assert (after.weights_BHLM[1, ..., old] == 0).all()
            if not mechanism.facts.positional:  # those count places from the beginning of the stream here
                assert (after.weights_BHLM[1, ..., ~old] != 0).any()

    def test_a_state_that_forgot_its_keys_is_not_captured(self, mechanism):
        attention, (q, k, v), state = self.started(mechanism)
        attention(q[:, :3], k[:, :3], v[:, :3], causal, state=state)
        if not isinstance(state, Running):
            pytest.skip("keeps its keys")
        with capture(attention, layers=named(mechanism)), pytest.raises(CaptureNotSupported, match=r"3 tokens.*begin anew.*keep_keys"):
            attention(q[:, 3:5], k[:, 3:5], v[:, 3:5], causal, state=state)
        assert state.length == 3, "refused before it moved"

    def test_a_sum_does_not_grow(self, mechanism):
        attention, (q, k, v), state = self.started(mechanism)
        if not isinstance(state, Running):
            pytest.skip("keeps its keys")
        sizes = []
        for t in range(5):
            attention(*(x[:, t : t + 1] for x in (q, k, v)), causal, state=state)
            sizes.append({name: x.shape for name, x in state.sums.items()})
        assert sizes == sizes[:1] * 5 and state.keys() is None
        low = build(mechanism, dtype=torch.bfloat16)
        state = low.start(B)
        low(*(x[:, :1].bfloat16() for x in (q, k, v)), causal, state=state)
        assert all(x.dtype == torch.float32 for x in state.sums.values())

    @pytest.mark.parametrize("order", [[2, 0, 2, 1, 1], [0, 0, 2], [0, 1, 2]])
    def test_beams_reorder(self, mechanism, order):
        for pattern in streams(mechanism):
            attention, (q, k, v), state = self.started(mechanism, pattern)
            if mechanism.facts.random:
                pytest.skip("steps are drawn anew")
            given = k.clone(), v.clone()
            attention(q[:, :30], k[:, :30], v[:, :30], pattern, state=state)
            state.reorder(torch.tensor(order))
            after = attention(*(x[order, 30:31] for x in (q, k, v)), pattern, state=state)
            assert k.equal(given[0]) and v.equal(given[1])  # what was given is the caller's, whatever moves inside the state
            torch.testing.assert_close(after, attention(q[:, :31], k[:, :31], v[:, :31], pattern)[order, 30:31], atol=1e-9, rtol=1e-9)

    def test_a_reset_row_forgets(self, mechanism):
        for pattern in (causal,) if mechanism.facts.patterns != "any" else (causal, causal & window(6)):
            attention, (q, k, v), state = self.started(mechanism, pattern)
            if mechanism.facts.random:
                pytest.skip("steps are drawn anew")
            for t in range(20):
                attention(*(x[:, t : t + 1] for x in (q, k, v)), pattern, state=state)
            state.reset(torch.tensor([1]))
            after = torch.cat([attention(*(x[:, t : t + 1] for x in (q, k, v)), pattern, state=state) for t in range(20, 30)], 1)
            whole = attention(q[:, :30], k[:, :30], v[:, :30], pattern)[:, 20:]
            anew = attention(q[:, 20:30], k[:, 20:30], v[:, 20:30], pattern)
            torch.testing.assert_close(after[[0, 2]], whole[[0, 2]], atol=1e-9, rtol=1e-9)
            assert state.position() == (30, 10, 30)
            if not isinstance(state, Compressed):  # its blocks are those of the stream, and says so
                torch.testing.assert_close(after[1], anew[1], atol=1e-9, rtol=1e-9)

    @pytest.mark.parametrize("step", [1, 4])
    @pytest.mark.parametrize("turned", [False, True])
    def test_joined_rows_go_on_as_if_alone(self, mechanism, step, turned):
        """Two streams of different lengths, put together and taken apart again."""
        for pattern in streams(mechanism):
            attention, (q, k, v), _ = self.started(mechanism, pattern)
            if mechanism.facts.random:
                pytest.skip("steps are drawn anew")
            # the lengths are whole blocks of the mechanism that has blocks
            rows, read = ([2], [0, 1]) if turned else ([0, 1], [2]), (6, 18) if turned else (18, 6)
            states = []
            for some, n in zip(rows, read, strict=True):
                states.append(attention.start(len(some), pattern))
                attention(*(x[some, :n] for x in (q, k, v)), pattern, state=states[-1])
            state = states[0].join(states[1])
            order, behind = rows[0] + rows[1], [n for some, n in zip(rows, read, strict=True) for _ in some]
            assert state.batch == 3 and state.length == 18 and state.position() == tuple(behind)
            for t in range(0, 12, step):
                now = [torch.stack([x[row, n + t : n + t + step] for row, n in zip(order, behind, strict=True)]) for x in (q, k, v)]
                out = attention(*now, pattern, state=state)
                for b, (row, n) in enumerate(zip(order, behind, strict=True)):
                    alone = attention(*(x[[row], : n + t + step] for x in (q, k, v)), pattern)[0, n + t :]
                    torch.testing.assert_close(out[b], alone, atol=1e-9, rtol=1e-9)
            state.reorder(torch.tensor([order.index(2)]))
            out = attention(*(x[[2], 18:22] for x in (q, k, v)), pattern, state=state)
            torch.testing.assert_close(out, attention(*(x[[2], :22] for x in (q, k, v)), pattern)[:, 18:], atol=1e-9, rtol=1e-9)
            assert state.position() == 22 == state.length

    def test_a_new_row_joins_those_that_go_on(self, mechanism):
        attention, (q, k, v), state = self.started(mechanism)
        if mechanism.facts.random:
            pytest.skip("steps are drawn anew")
        attention(*(x[:2, :12] for x in (q, k, v)), causal, state=state.reorder(torch.tensor([0, 1])))
        state.join(attention.start(1, causal))
        assert state.position() == (12, 12, 0)
        out = attention(*(torch.cat([x[:2, 12:15], x[2:, :3]]) for x in (q, k, v)), causal, state=state)
        torch.testing.assert_close(out[2:], attention(*(x[2:, :3] for x in (q, k, v)), causal), atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(out[:2], attention(*(x[:2, :15] for x in (q, k, v)), causal)[:, 12:], atol=1e-9, rtol=1e-9)

    def test_what_cannot_be_joined_is_named(self, mechanism):
        attention, _, state = self.started(mechanism)
        with pytest.raises(StateNotSupported, match="same part began"):
            state.join(Other(1))

    def test_gradients_flow_through_steps_until_detached(self, mechanism):
        attention, (q, k, v), state = self.started(mechanism)
        v.requires_grad_()
        attention(q[:, :9], k[:, :9], v[:, :9], causal, state=state)  # more than a row of the grids there are
        out = attention(q[:, 9:10], k[:, 9:10], v[:, 9:10], causal, state=state)
        gradient = torch.autograd.grad(out.sum(), v)[0]
        assert (gradient[:, :10].abs().sum() > 0) and (mechanism.facts.random or (gradient[:, :9].abs().sum() > 0))
        state.detach()
        out = attention(q[:, 10:11], k[:, 10:11], v[:, 10:11], causal, state=state)
        assert (torch.autograd.grad(out.sum(), v)[0][:, :10] == 0).all()

    def test_wrong_batch_is_named(self, mechanism):
        attention, (q, k, v), state = self.started(mechanism)
        attention(q[:, :1], k[:, :1], v[:, :1], causal, state=state)
        with pytest.raises(ShapeError, match="reorder"):
            attention(q[:1, 1:2], k[:1, 1:2], v[:1, 1:2], causal, state=state)


class TestJoined:
    """What joining costs, and what it refuses."""

    def joined(self, *lengths: int, reach=None) -> Cache:
        states = []
        for n in lengths:
            states.append(Cache(1, reach))
            for t in range(n):
                states[-1].append(*(torch.full((1, 1, H, K), float(t)) for _ in "kv"), causal)
        for other in states[1:]:
            states[0].join(other)
        return states[0]

    def test_rows_of_one_length_need_no_mask(self):
        assert self.joined(5, 5).over(causal, 1) is causal
        state = self.joined(9, 4, 4)
        assert state.over(causal, 1) == begun(causal, (0, 5, 5))
        assert state.reorder(torch.tensor([1, 2])).over(causal, 1) is causal
        assert state.keys()[0].shape == (2, 4, H, K) and state.length == 4

    def test_one_mask_serves_all_layers_of_a_step(self, monkeypatch):
        made = []
        monkeypatch.setattr(exact, "additive", lambda mask, dtype: made.append(mask.shape) or additive(mask, dtype))
        exact._kept_mask.cache_clear()
        attention, states = SoftmaxAttention(), [self.joined(9, 4) for _ in range(5)]
        for _ in range(2):
            for state in states:
                attention(*(torch.randn(2, 1, H, K) for _ in "qkv"), causal, state=state)
        assert made == [(2, 1, 1, 10), (2, 1, 1, 11)]

    def test_grouped_heads_under_a_mask(self):
        """A step of rows that began at different places, with fewer key heads: the cache is not copied a head."""
        states = [SoftmaxAttention().start(1) for _ in range(2)]
        q, k, v = torch.randn(2, 12, H, K), torch.randn(2, 12, G, K), torch.randn(2, 12, G, K)
        for b, (state, n) in enumerate(zip(states, (9, 4), strict=True)):
            SoftmaxAttention()(*(x[b : b + 1, :n] for x in (q, k, v)), causal, state=state)
        now = [torch.stack([x[0, 9:10], x[1, 4:5]]) for x in (q, k, v)]
        out = SoftmaxAttention()(*now, causal, state=states[0].join(states[1]))
        for b, n in enumerate((9, 4)):
            alone = SoftmaxAttention()(*(x[b : b + 1, : n + 1] for x in (q, k, v)), causal)[0, n:]
            torch.testing.assert_close(out[b], alone)

    def test_rolling_caches_with_sinks(self):
        same = self.joined(30, 30, reach=(3, 2))
        assert same.keys()[0].shape[0] == 2 and same.position() == 30
        with pytest.raises(StateNotSupported, match="first 2 keys"):
            self.joined(30, 7, reach=(3, 2))
        with pytest.raises(StateNotSupported, match="different patterns"):
            Cache(1, (3, 0)).join(Cache(1))

    def test_nothing_left_and_then_another(self):
        state = self.joined(9, 4).reorder(torch.tensor([], dtype=torch.long))
        assert state.batch == 0
        state.join(self.joined(3))
        assert state.position() == 3 == state.length and state.keys()[0].shape == (1, 3, H, K)


@pytest.mark.parametrize("mechanism", MECHANISMS, **ids)
def test_wrong_calls_are_named(mechanism):
    """One typed error that says what was given, what was expected and what to do."""
    attention, (q, k, v) = build(mechanism), tensors(mechanism)
    unequal = [widest(mechanism) & lengths([1, 2]), keep(torch.ones(B, H + 1, q.shape[1], M, dtype=torch.bool))]
    calls = [
        ((q[0], k, v), ShapeError, "unflatten"),
        ((q, k[..., :3], v), ShapeError, "key size"),
        ((q, k, v[:, :5]), ShapeError, "k and v share"),
        ((q[:1], k, v), ShapeError, "batch"),
        ((q, k[:, :, :3], v[:, :, :3]), ShapeError, "3 key heads"),
        ((q.float(), k, v), DtypeError, "float32"),
        ((q.long(), k.long(), v.long()), DtypeError, "floating"),
        ((q, k, v, torch.ones(q.shape[1], M, dtype=torch.bool)), PatternNotSupported, "keep"),
        *(((q, k, v, pattern), ShapeError, "batch rows and") for pattern in unequal),
    ]
    if mechanism.facts.bias:
        calls += [
            ((q, k, v, full, torch.zeros(q.shape[1] + 1, M)), ShapeError, "broadcast"),
            ((q, k, v, full, torch.ones(1, M, dtype=torch.bool)), DtypeError, "keep"),
        ]
    for arguments, error, words in calls:
        pattern = () if len(arguments) > 3 else (widest(mechanism),)
        with pytest.raises(error, match=words) as caught:
            attention(*arguments, *pattern)
        assert mechanism.__name__ in str(caught.value) and isinstance(caught.value, RegardError)
    if mechanism.facts.patterns == "any":
        with pytest.raises(ShapeError, match="too small"):
            attention(q, k, v, keep(torch.ones(2, 3, dtype=torch.bool)))
    elif widest(mechanism) is causal:
        with pytest.raises(PatternNotSupported, match=f"{mechanism.__name__} knows `causal`.*not `full`"):
            attention(q, k, v)
    if not mechanism.facts.cross:
        for call in (lambda: attention(q[:, 1:], k, v, widest(mechanism)), lambda: attention.weights(q[:, 1:], k, widest(mechanism))):
            with pytest.raises(ShapeError, match=f"{mechanism.__name__} looks within one sequence"):
                call()


@pytest.mark.parametrize("mechanism", MECHANISMS, **ids)
def test_extra_numbers_are_asked_for_by_name(mechanism):
    attention, (q, k, v), pattern = alone(mechanism), tensors(mechanism), widest(mechanism)
    k, E = k[..., :K], attention.extra
    if not E:
        for call in (attention, lambda q, k, v, *given, **named: attention.weights(q, k, *given, **named)):
            with pytest.raises(TypeError, match="extra_BMHE"):
                call(q, k, v, pattern, extra_BMHE=k)
        return
    right = torch.zeros(B, M, H, E, dtype=torch.float64)
    for wrong, error in ((None, ShapeError), (right[:, :-1], ShapeError), (right[..., 1:], ShapeError), (right.float(), DtypeError)):
        calls = (
            lambda: attention(q, k, v, pattern, extra_BMHE=wrong),  # noqa: B023
            lambda: attention.weights(q, k, pattern, extra_BMHE=wrong),  # noqa: B023
            lambda: attention.weights_of(torch.tensor([0]), q, k, pattern, extra_BMHE=wrong),  # noqa: B023
        )
        for call in calls:
            with pytest.raises(error, match="extra_BMHE") as caught:
                call()
            assert mechanism.__name__ in str(caught.value)


@pytest.mark.parametrize("mechanism", MECHANISMS, **ids)
def test_facts_and_docstring_are_complete(mechanism):
    facts, text = mechanism.facts, mechanism.__doc__ or ""
    assert facts.name.isidentifier() and 2010 < facts.year < 2030
    for part in ("$$", "Cost:", "Use it:", "Avoid it:", "Limits:", "Paper:"):
        assert part in text, f"{mechanism.__name__} does not say {part}"
    assert str(facts.year) in text


def test_names_are_unique_and_oldest_first():
    names = [m.facts.name for m in MECHANISMS]
    assert len(set(names)) == len(names)
    assert [m.facts.year for m in MECHANISMS] == sorted(m.facts.year for m in MECHANISMS)
