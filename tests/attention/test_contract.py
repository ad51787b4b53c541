"""What every mechanism must hold. A new one is tested by being imported: it is in the list."""

import pytest
import torch
from torch import Tensor

from regard.attention import MECHANISMS, Attention
from regard.attention._base import average
from regard.errors import BiasNotSupported, DtypeError, PatternNotSupported, RegardError, ShapeError, StateNotSupported
from regard.kernels import exact
from regard.patterns import Pattern, block, causal, full, keep, lengths, local_causal, per_head, random_blocks, segments, tokens, window

B, L, M, H, G, K, V = 3, 13, 17, 4, 2, 7, 11  # all different: a swapped axis cannot pass by luck
ids = {"ids": lambda m: m.facts.name}


def build(mechanism: type[Attention], length: int = 80, dtype: torch.dtype = torch.float64) -> Attention:
    """A mechanism of the right size, its parameters no longer at symmetric starting points."""
    attention = mechanism.sized(heads=H, width=K, length=length).to(dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=dtype)
    return attention


def tensors(
    mechanism: type[Attention], queries: int = L, keys: int = M, heads: int = H, batch: int = B, dtype=torch.float64
) -> list[Tensor]:
    """q, k, v; as many queries as keys where the mechanism looks within one sequence only."""
    queries = queries if mechanism.facts.cross else keys
    shapes = (batch, queries, H, K), (batch, keys, heads, K), (batch, keys, heads, V)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


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
    }
    known = mechanism.facts.patterns
    if known == "any":
        return list(every.values())
    return [every[name] for name in known if name in every] + ([every["both"]] if {"causal", "lengths"} <= set(known) else [])


def reseed(attention: Attention) -> None:
    """Random mechanisms take a generator that the caller can set."""
    for value in vars(attention).values():
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
                build(mechanism)(*tensors(mechanism, heads=G))
            return
        for pattern in patterns(mechanism):
            compare(build(mechanism), tensors(mechanism, heads=G), pattern)

    def test_with_a_learned_bias(self, mechanism, path):
        q, k, v = tensors(mechanism)
        for shape in ((B, H, q.shape[1], M), (H, q.shape[1], M), (B, 1, 1, M)):
            bias = torch.randn(shape, dtype=torch.float64, requires_grad=True)
            if not mechanism.facts.bias:
                with pytest.raises(BiasNotSupported, match=mechanism.__name__):
                    build(mechanism)(q, k, v, full, bias)
                return
            for pattern in patterns(mechanism)[:3]:
                compare(build(mechanism), [q, k, v], pattern, bias)

    def test_empty_batch_and_no_keys(self, mechanism, path):
        attention = build(mechanism)
        assert run(attention, *tensors(mechanism, batch=0)).shape == (0, *tensors(mechanism)[0].shape[1:3], V)
        if mechanism.facts.cross:
            out = run(attention, *tensors(mechanism, queries=L, keys=0))
            assert out.shape == (B, L, H, V) and (out == 0).all()


@pytest.mark.parametrize("mechanism", MECHANISMS, **ids)
class TestWeights:
    def test_forbidden_is_zero_and_rows_sum_to_one(self, mechanism):
        q, k, _ = tensors(mechanism)
        attention = build(mechanism)
        for pattern in patterns(mechanism):
            reseed(attention)
            weights = attention.weights(q, k, pattern)
            mask = pattern.mask(q.shape[1], M).expand_as(weights)
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
        attention, order = build(mechanism), torch.randperm(M)
        if mechanism.facts.random:
            pytest.skip("another order is another draw")
        same = torch.allclose(run(attention, q, k, v), run(attention, q, k[:, order], v[:, order]), atol=1e-10)
        assert same != mechanism.facts.positional


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
                build(mechanism)(*tensors(mechanism), lengths([M] * B))
            return
        if mechanism.facts.random:
            pytest.skip("rows are drawn anew")
        attention, (q, k, v) = build(mechanism), [x.detach() for x in tensors(mechanism)]
        sizes = [M, 9, 1]
        padded = run(attention, q, k, v, lengths(sizes))
        k2, v2 = k.clone(), v.clone()
        for b, size in enumerate(sizes):
            k2[b, size:], v2[b, size:] = 1e3, -1e3
        torch.testing.assert_close(run(attention, q, k2, v2, lengths(sizes)), padded, rtol=0, atol=0)
        for b, size in enumerate(sizes):
            # within one sequence the queries stand at the keys, the last at the last: those in the padding have no counterpart
            queries = slice(None) if mechanism.facts.cross is True else slice(0, max(0, size + q.shape[1] - M))
            alone = run(attention, q[b : b + 1, queries], k[b : b + 1, :size], v[b : b + 1, :size])
            torch.testing.assert_close(padded[b : b + 1, queries], alone)

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


def streams(mechanism: type[Attention]) -> list[Pattern]:
    own = [causal, causal & window(4), local_causal(3) | causal & tokens(0, 1)]
    return own if mechanism.facts.patterns == "any" else own[:1]


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
        for pattern in streams(mechanism):
            attention, (q, k, v), state = self.started(mechanism, pattern)
            if mechanism.facts.random:
                pytest.skip("steps are drawn anew")
            whole = attention(q, k, v, pattern)
            parts = [attention(*(x[:, t : t + step] for x in (q, k, v)), pattern, state=state) for t in range(0, 40, step)]
            torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-9, rtol=1e-9)
            assert state.length == 40

    def test_beams_reorder(self, mechanism):
        for pattern in streams(mechanism):
            attention, (q, k, v), state = self.started(mechanism, pattern)
            if mechanism.facts.random:
                pytest.skip("steps are drawn anew")
            order = torch.tensor([2, 0, 2, 1, 1])
            attention(q[:, :30], k[:, :30], v[:, :30], pattern, state=state)
            state.reorder(order)
            after = attention(*(x[order, 30:31] for x in (q, k, v)), pattern, state=state)
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
            if not mechanism.facts.positional:
                torch.testing.assert_close(after[1], anew[1], atol=1e-9, rtol=1e-9)

    def test_gradients_flow_through_steps_until_detached(self, mechanism):
        attention, (q, k, v), state = self.started(mechanism)
        v.requires_grad_()
        attention(q[:, :5], k[:, :5], v[:, :5], causal, state=state)
        out = attention(q[:, 5:6], k[:, 5:6], v[:, 5:6], causal, state=state)
        gradient = torch.autograd.grad(out.sum(), v)[0]
        assert (gradient[:, :6].abs().sum() > 0) and (mechanism.facts.random or (gradient[:, :5].abs().sum() > 0))
        state.detach()
        out = attention(q[:, 6:7], k[:, 6:7], v[:, 6:7], causal, state=state)
        assert (torch.autograd.grad(out.sum(), v)[0][:, :6] == 0).all()

    def test_wrong_batch_is_named(self, mechanism):
        attention, (q, k, v), state = self.started(mechanism)
        attention(q[:, :1], k[:, :1], v[:, :1], causal, state=state)
        with pytest.raises(ShapeError, match="reorder"):
            attention(q[:1, 1:2], k[:1, 1:2], v[:1, 1:2], causal, state=state)


@pytest.mark.parametrize("mechanism", MECHANISMS, **ids)
def test_wrong_calls_are_named(mechanism):
    """One typed error that says what was given, what was expected and what to do."""
    attention, (q, k, v) = build(mechanism), tensors(mechanism)
    unequal = [lengths([1, 2]), keep(torch.ones(B, H + 1, q.shape[1], M, dtype=torch.bool))]
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
            ((q, k, v, full, torch.zeros(M, M)), ShapeError, "broadcast"),
            ((q, k, v, full, torch.ones(1, M, dtype=torch.bool)), DtypeError, "keep"),
        ]
    for arguments, error, words in calls:
        with pytest.raises(error, match=words) as caught:
            attention(*arguments)
        assert mechanism.__name__ in str(caught.value) and isinstance(caught.value, RegardError)
    if mechanism.facts.patterns == "any":
        with pytest.raises(ShapeError, match="too small"):
            attention(q, k, v, keep(torch.ones(2, 3, dtype=torch.bool)))


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
