"""The law, forward(q, k, v) == weights(q, k) @ v; what holds of the weights; what has no influence; extreme inputs; low precision."""

from __future__ import annotations

import torch
from torch import Tensor

from ..attention import RecurrentState, StepState
from ..attention.helpers import average, force_row_chunks
from ..errors import BiasNotSupported, PatternNotSupported
from ..patterns import causal, full, keep, lengths, window
from ._subject import (
    B,
    G,
    H,
    K,
    L,
    M,
    NotApplicable,
    Subject,
    assert_law,
    check,
    expect,
    expect_close,
    expect_error,
    gradients,
    reseed,
    run,
)

PATHS = (None, "tiles", "edges")  # small inputs go to a dense kernel; all paths must hold


@check("cross")
def queries_of_another_sequence(subject: Subject) -> None:
    attention, (q, k, v) = subject.build(), subject.tensors()
    try:
        run(attention, q, k, v, subject.widest)
    except RuntimeError as error:
        if not subject.facts.cross:
            raise
        run(attention, *subject.tensors(M, M), subject.widest)
        why = str(error).partition("\n")[0]
        expect(False, f"facts.cross is {subject.facts.cross!r}, but {L} queries over {M} keys fail: set cross=False ({why})")


@check("law", paths=PATHS, sampling=True)
def law(subject: Subject) -> None:
    for pattern in subject.patterns():
        assert_law(subject.build(), subject.tensors(), pattern)


@check("law-lengths", paths=PATHS, sampling=True)
def law_at_every_length(subject: Subject) -> None:
    for length in (1, 5, 63, 64, 65):
        for pattern in subject.patterns(length, length)[:2]:
            assert_law(subject.build(), subject.tensors(length, length), pattern)


@check("law-long", paths=(None, "tiles", "plain"), sampling=True)
def law_above_the_thresholds(subject: Subject) -> None:
    """300 × 300 pairs: above those of the dense kernel, and several chunks of query rows."""
    patterns = (causal & window(50), window(20)) if subject.facts.patterns == "any" else (subject.widest,)
    for pattern in patterns:
        with force_row_chunks(2**16):
            assert_law(subject.build(300), subject.tensors(300, 300, batch=1), pattern)


@check("law-key-heads", paths=PATHS, sampling=True)
def law_with_fewer_key_heads(subject: Subject) -> None:
    for pattern in subject.patterns():
        assert_law(subject.build(), subject.tensors(kv_heads=G), pattern)


@check("law-bias", paths=PATHS, sampling=True)
def law_with_a_learned_bias(subject: Subject) -> None:
    attention, (q, k, v), widest = subject.build(), subject.tensors(), subject.widest
    for shape in ((B, H, q.shape[1], M), (H, q.shape[1], M), (B, 1, 1, M)):
        bias = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        if not subject.facts.bias:
            return expect_error(
                BiasNotSupported,
                subject.name,
                "facts.bias is False, but a bias is accepted: do not override forward",
                attention,
                q,
                k,
                v,
                widest,
                bias,
            )
        for pattern in subject.patterns()[:3]:
            assert_law(subject.build(), [q, k, v], pattern, bias)
    same = run(attention, q, k, v, widest).allclose(run(attention, q, k, v, widest, 3 * bias))
    expect(not same, "facts.bias is True, but a bias changes nothing: add call.scores_bias() to the scores, or set bias=False")


@check("layouts", paths=PATHS, sampling=True)
def any_memory_layout(subject: Subject) -> None:
    """With values as wide as keys, which is what PyTorch's own kernels ask for."""
    for length in (M, 64):
        attention, (q, k, v) = subject.build(length), subject.tensors(length, length)
        cotangent = torch.randn(*q.shape[:3], K, dtype=q.dtype)
        results = []
        for order in ((0, 1, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2), (1, 0, 2, 3), (3, 2, 1, 0)):
            back = sorted(range(4), key=order.__getitem__)
            *inputs, weigh = (x.detach().permute(order).contiguous().permute(back) for x in (q, k, v[..., :K], cotangent))
            inputs = [x.requires_grad_() for x in inputs]
            out = run(attention, *inputs, subject.widest)
            results.append(torch.cat([x.flatten() for x in (out, *gradients(out, inputs, weigh))]))
        for result in results[1:]:
            expect_close(result, results[0], "the memory layout of q, k and v changes the result: something assumes contiguous inputs")


@check("weights", sampling=True)
def forbidden_is_zero_and_rows_sum_to_one(subject: Subject) -> None:
    q, k, _ = subject.tensors()
    attention, queries = subject.build(), q.shape[1]
    for pattern in subject.patterns():
        reseed(attention)
        weights = attention.weights(q, k, pattern)
        expect(
            weights.shape == (B, H, queries, M),
            f"weights are {tuple(weights.shape)}, expected {(B, H, queries, M)}: return weights_BHLM from _weights",
        )
        mask = attention._within(pattern, M).mask(queries, M).expand_as(weights)
        expect(not (mask & ~pattern.mask(queries, M)).any(), f"_within allows pairs that `{pattern}` forbids: return pattern & own")
        expect((weights[~mask] == 0).all(), f"weights are not zero where `{pattern}` forbids: apply call.mask(), or narrow facts.patterns")
        if subject.facts.normalised:
            sums, some = weights.sum(-1), mask.any(-1)
            wrong = f"rows sum to {sums[some].min():.2g}–{sums[some].max():.2g}" if some.any() else "rows without a key are not zeros"
            wrong += " but facts.normalised is True: set normalised=False, or divide by the sum"
            expect_close(sums, some.to(weights.dtype), wrong)


@check("weights-rows")
def some_rows_are_those_rows(subject: Subject) -> None:
    q, k, _ = subject.tensors()
    attention, rows = subject.build(), torch.tensor([4, 0, 12])
    for pattern in subject.patterns():
        expected = attention.weights(q, k, pattern)[:, :, rows]
        wrong = f"facts.rows is {subject.facts.rows!r}, but weights(rows=…) differ from those rows of all under `{pattern}`: use "
        wrong += "call.query_index() for positions; if they depend on other queries, set rows='sequential' or 'joint'"
        expect_close(attention.weights(q, k, pattern, rows=rows), expected, wrong)


@check("order-of-keys")
def order_of_keys(subject: Subject) -> None:
    q, k, v = subject.tensors()
    attention, order, pattern = subject.build(), torch.randperm(M), subject.widest
    rows = slice(None) if pattern is full else slice(-1, None)  # under causal only the last query attends to the same keys
    before, after = (run(attention, q, *keys, pattern)[:, rows] for keys in ((k, v), (k[:, order], v[:, order])))
    found, declared = not torch.allclose(before, after, atol=1e-10), subject.facts.positional
    matters = "matters" if found else "does not matter"
    expect(found == declared, f"the order of keys {matters} but facts.positional is {declared}: set positional={found}")


@check("rows")
def rows_depend_on_queries_as_declared(subject: Subject) -> None:
    """Weights of one query after all queries before it, or all after it, have changed."""
    length, at = 64, 31
    q, k, _ = subject.tensors(length, length, grad=False)
    attention, declared = subject.build(length), subject.facts.rows
    pattern = causal if declared == "sequential" and subject.supports("causal") else subject.widest
    before = attention.weights(q, k, pattern)[:, :, at]

    def influence(changed: slice) -> bool:
        other = q.clone()
        other[:, changed] = torch.randn_like(other[:, changed])
        return not torch.allclose(attention.weights(other, k, pattern)[:, :, at], before, atol=1e-10)

    earlier, later = influence(slice(at)), influence(slice(at + 1, None))
    found = "joint" if later else "sequential" if earlier else "independent"
    if declared == "joint" and found == "sequential":
        found = "joint" if not subject.supports("causal") else found  # earlier queries only, and no direction to check it in
    influences = {"joint": "later queries change", "sequential": "only earlier queries change", "independent": "no other query changes"}
    expect(found == declared, f"{influences[found]} a query's weights but facts.rows is {declared!r}: set rows={found!r}")


@check("future", sampling=True)
def the_future_has_no_influence(subject: Subject) -> None:
    """Strict: change everything after t, and all up to t stays the same to the bit."""
    attention, (q, k, v) = subject.build(), subject.tensors(M, M, grad=False)
    if subject.facts.causal == "none":
        wrong = "facts.patterns does not name 'causal', but it is accepted: do not override supports"
        return expect_error(PatternNotSupported, subject.name, wrong, attention, q, k, v, causal)
    if subject.facts.causal == "mask-only":
        raise NotApplicable("facts.rows is 'joint': statistics of the future leak in")
    before = run(attention, q, k, v, causal)
    for t in (0, 7, M - 2):
        changed = [x.clone() for x in (q, k, v)]
        for x in changed:
            x[:, t + 1 :] = torch.randn_like(x[:, t + 1 :]) * 100
        wrong = f"tokens after {t} change outputs up to {t} under `causal`, but facts.rows is {subject.facts.rows!r}: mask before "
        wrong += "normalising, set rows='joint' if that is meant, or leave 'causal' out of facts.patterns"
        expect(run(attention, *changed, causal)[:, : t + 1].equal(before[:, : t + 1]), wrong)


@check("padding")
def padding_has_no_influence(subject: Subject) -> None:
    """A padded batch gives what each row gives alone, whatever is in the padding."""
    attention, pattern, cross = subject.build(), subject.widest, subject.facts.cross
    if not subject.supports("lengths"):
        wrong = "facts.patterns does not name 'lengths', but it is accepted: do not override supports"
        return expect_error(PatternNotSupported, subject.name, wrong, attention, *subject.tensors(), pattern & lengths([M] * B))
    paired = not cross or pattern is not full  # each query is at the position of its key, and ends with it
    (q, k, v), sizes = subject.tensors(M if paired else L, grad=False), [M, 9, 1]
    padded = run(attention, q, k, v, pattern & lengths(sizes))
    k2, v2 = k.clone(), v.clone()
    for b, size in enumerate(sizes):
        k2[b, size:], v2[b, size:] = 1e3, -1e3
    wrong = "keys in the padding change the output under `lengths`: apply call.mask() before normalising, or leave 'lengths' out of facts.patterns"
    expect_close(run(attention, q, k2, v2, pattern & lengths(sizes)), padded, wrong, rtol=0, atol=0)
    longer, shorter = (attention._within(full, n).mask(n, n)[..., :9, :9] for n in (M, 9))
    if not longer.equal(shorter):
        return  # its own pattern depends on the number of keys: not what is in the padding, but how much there is of it
    other = (
        "queries are aligned to the last keys, set cross='last'" if cross is True else "they are not the last of the keys, set cross=True"
    )
    wrong = f"padding changes the output, but facts.cross is {cross!r}: do not count from the number of keys; if {other}; "
    wrong += "or leave 'lengths' out of facts.patterns"
    for b, size in enumerate(sizes):
        # queries that are the last of the keys end with them: those in the padding have no counterpart
        queries = slice(max(0, size + q.shape[1] - M)) if cross == "last" else slice(size) if paired else slice(None)
        alone = run(attention, q[b : b + 1, queries], k[b : b + 1, :size], v[b : b + 1, :size], pattern)
        expect_close(padded[b : b + 1, queries], alone, wrong)


@check("no-allowed-keys", paths=PATHS, sampling=True)
def rows_without_an_allowed_key(subject: Subject) -> None:
    """Zeros, and gradients that are finite everywhere."""
    if subject.facts.patterns != "any":
        raise NotApplicable("facts.patterns allows no such pattern")
    q, k, v = subject.tensors()
    mask = torch.rand(B, H, q.shape[1], M) < 0.5
    mask[0], mask[1, 2], mask[2, :, 3] = False, False, False
    attention = subject.build()
    reseed(attention)
    slow = average(attention.weights(q, k, keep(mask)), v)
    for name, out in (("forward", run(attention, q, k, v, keep(mask))), ("weights", slow)):
        zero = (out[0] == 0).all() and (out[1, :, 2] == 0).all() and (out[2, 3] == 0).all()
        expect(zero, f"{name}: a query that may attend to no key must give zeros; softmax_where does, or narrow facts.patterns")
        wrong = f"{name}: a query that may attend to no key gives gradients that are not finite; softmax_where avoids it"
        expect(_finite(gradients(out.square(), [q, k, v, *attention.parameters()])), wrong)


def _finite(tensors: tuple[Tensor, ...]) -> bool:
    return all(bool(x.isfinite().all()) for x in tensors)


@check("huge-scores", paths=PATHS, sampling=True)
def huge_scores(subject: Subject) -> None:
    """±10⁴ as logits, forward and backward: no NaN, no infinity."""
    for dtype in (torch.float32, torch.float64):
        for sign in (1, -1):
            attention = subject.build(dtype=dtype)
            q, k, v = subject.tensors(dtype=dtype)
            q, k = ((x / x.detach().norm(dim=-1, keepdim=True) * 1e2 * K**0.25).detach() for x in (q, k))
            q, k = (q * sign).requires_grad_(), k.requires_grad_()
            for pattern in subject.patterns():
                out = run(attention, q, k, v, pattern)
                wrong = f"scores of ±10⁴ in {dtype} overflow under `{pattern}`: subtract the largest score before exp"
                expect(_finite((out, *gradients(out, [q, k, v, *attention.parameters()]))), wrong)


@check("bfloat16", paths=PATHS)
def bfloat16_is_near(subject: Subject) -> None:
    attention, rounded = (subject.build(dtype=torch.float32) for _ in range(2))
    rounded.to(torch.bfloat16)
    attention.load_state_dict(rounded.state_dict())  # the same rounded parameters
    inputs = [x.bfloat16() for x in subject.tensors(dtype=torch.float32, grad=False)]
    for pattern in subject.patterns():
        exact = run(attention, *(x.float() for x in inputs), pattern)
        low = run(rounded, *inputs, pattern)
        expect(low.dtype == torch.bfloat16, f"bfloat16 inputs give {low.dtype}: convert the output back with .to(v.dtype)")
        expect_close(low.float(), exact, f"bfloat16 is far from float32 under `{pattern}`: sum in float32_or_wider", atol=0.1, rtol=0.1)


@check("autocast")
def autocast_is_near_and_sums_are_not_rounded(subject: Subject) -> None:
    """Under autocast q, k and v come in bfloat16, as linear layers give them."""
    attention = subject.build(dtype=torch.float32)
    inputs = [x.bfloat16() for x in subject.tensors(M, M, dtype=torch.float32, grad=False)]
    for pattern in subject.patterns(M, M)[:2]:
        exact = run(attention, *(x.float() for x in inputs), pattern)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            mixed = run(attention, *inputs, pattern)
        wrong = f"autocast is far from float32 under `{pattern}`: decorate what sums with no_autocast"
        expect_close(mixed.float(), exact, wrong, atol=0.1, rtol=0.1)
    if subject.facts.state in (None, StepState):
        return
    state, whole = attention.start(B), attention.start(B)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        attention(*inputs, causal, state=state)
    if isinstance(state, RecurrentState):
        attention(*(x.float() for x in inputs), causal, state=whole)
        for name, x in state.sums.items():
            expect_close(x, whole.sums[name], "autocast rounds the sums of the state: use no_autocast", atol=1e-4, rtol=1e-4)
