"""The law, forward(q, k, v) == weights(q, k) @ v, and what holds of the weights themselves."""

from __future__ import annotations

import torch

from ..attention.helpers import force_row_chunks
from ..errors import BiasNotSupported
from ..patterns import causal, full, window
from ._subject import B, G, H, K, L, M, Subject, assert_law, check, expect, expect_close, expect_error, reseed, run

PATHS = (None, "tiles")  # small inputs go to a dense kernel; both paths must hold


@check("cross")
def queries_of_another_sequence(subject: Subject) -> None:
    attention, (q, k, v) = subject.build(), subject.tensors()
    try:
        run(attention, q, k, v, subject.widest)
    except RuntimeError as error:
        if not subject.facts.cross:
            raise
        run(attention, *subject.tensors(M, M), subject.widest)
        expect(False, f"facts.cross is {subject.facts.cross!r}, but {L} queries over {M} keys fail: set cross=False ({_line(error)})")


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0]


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
    q, k, v = subject.tensors()
    for shape in ((B, H, q.shape[1], M), (H, q.shape[1], M), (B, 1, 1, M)):
        bias = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        if not subject.facts.bias:
            with expect_error(BiasNotSupported, subject.name, "facts.bias is False, but a bias is accepted"):
                subject.build()(q, k, v, subject.widest, bias)
            return
        for pattern in subject.patterns()[:3]:
            assert_law(subject.build(), [q, k, v], pattern, bias)
    attention = subject.build()
    before, after = (run(attention, q, k, v, subject.widest, bias) for bias in (None, 3 * bias))
    expect(
        not before.allclose(after),
        "facts.bias is True, but a bias changes nothing: add call.scores_bias() to the scores, or set bias=False",
    )


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
            results.append([out, *torch.autograd.grad(out, inputs, weigh, allow_unused=True, materialize_grads=True)])
        for result in results[1:]:
            for one, two in zip(result, results[0], strict=True):
                expect_close(one, two, "the memory layout of q, k and v changes the result: something assumes contiguous inputs")


@check("weights", sampling=True)
def forbidden_is_zero_and_rows_sum_to_one(subject: Subject) -> None:
    q, k, _ = subject.tensors()
    attention, queries = subject.build(), q.shape[1]
    for pattern in subject.patterns():
        reseed(attention)
        weights = attention.weights(q, k, pattern)
        expect(weights.shape == (B, H, queries, M), f"weights are {tuple(weights.shape)}, expected BHLM = {(B, H, queries, M)}")
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
    if torch.allclose(before, after, atol=1e-10):
        expect(not subject.facts.positional, "the order of keys does not matter but facts.positional is True: set positional=False")
    else:
        expect(subject.facts.positional, "the order of keys matters but facts.positional is False: set positional=True")


@check("rows")
def rows_depend_on_queries_as_declared(subject: Subject) -> None:
    """Weights of one query after all queries before it, or all after it, have changed."""
    length, at = 64, 31
    q, k, _ = (x.detach() for x in subject.tensors(length, length))
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
