"""What must have no influence, extreme inputs, and low precision."""

from __future__ import annotations

import torch
from torch import Tensor

from ..attention import RecurrentState, StepState
from ..attention.helpers import average
from ..errors import PatternNotSupported
from ..patterns import causal, full, keep, lengths
from ._law import PATHS
from ._subject import B, H, K, L, M, NotApplicable, Subject, check, expect, expect_close, expect_error, reseed, run


@check("future", sampling=True)
def the_future_has_no_influence(subject: Subject) -> None:
    """Strict: change everything after t, and all up to t stays the same to the bit."""
    if subject.facts.causal == "none":
        with expect_error(PatternNotSupported, subject.name, "facts.patterns does not name 'causal', but it is accepted"):
            subject.build()(*subject.tensors(M, M), causal)
        return
    if subject.facts.causal == "mask-only":
        raise NotApplicable("facts.rows is 'joint': statistics of the future leak in")
    attention, (q, k, v) = subject.build(), [x.detach() for x in subject.tensors(M, M)]
    before = run(attention, q, k, v, causal)
    for t in (0, 7, M - 2):
        changed = [x.clone() for x in (q, k, v)]
        for x in changed:
            x[:, t + 1 :] = torch.randn_like(x[:, t + 1 :]) * 100
        same = run(attention, *changed, causal)[:, : t + 1].equal(before[:, : t + 1])
        wrong = (
            f"tokens after {t} change outputs up to {t} under `causal`, but facts.rows is {subject.facts.rows!r}: mask before normalising, "
        )
        expect(same, wrong + "set rows='joint' if that is meant, or leave 'causal' out of facts.patterns")


@check("padding")
def padding_has_no_influence(subject: Subject) -> None:
    """A padded batch gives what each row gives alone, whatever is in the padding."""
    if not subject.supports("lengths"):
        with expect_error(PatternNotSupported, subject.name, "facts.patterns does not name 'lengths', but it is accepted"):
            subject.build()(*subject.tensors(), subject.widest & lengths([M] * B))
        return
    pattern, cross = subject.widest, subject.facts.cross
    paired = not cross or pattern is not full  # each query is at the position of its key, and ends with it
    attention, (q, k, v) = subject.build(), [x.detach() for x in subject.tensors(M if paired else L)]
    sizes = [M, 9, 1]
    padded = run(attention, q, k, v, pattern & lengths(sizes))
    k2, v2 = k.clone(), v.clone()
    for b, size in enumerate(sizes):
        k2[b, size:], v2[b, size:] = 1e3, -1e3
    wrong = "keys in the padding change the output under `lengths`: apply call.mask() before normalising, or leave 'lengths' out of facts.patterns"
    expect_close(run(attention, q, k2, v2, pattern & lengths(sizes)), padded, wrong, rtol=0, atol=0)
    longer, shorter = (attention._within(full, n).mask(n, n)[..., :9, :9] for n in (M, 9))
    if not longer.equal(shorter):
        return  # its own pattern depends on the number of keys: not what is in the padding, but how much there is of it

    def compare_alone(last: bool, wrong: str) -> None:
        for b, size in enumerate(sizes):
            # queries that are the last of the keys end with them: those in the padding have no counterpart
            queries = slice(0, max(0, size + q.shape[1] - M)) if last else slice(0, size) if paired else slice(None)
            alone = run(attention, q[b : b + 1, queries], k[b : b + 1, :size], v[b : b + 1, :size], pattern)
            expect_close(padded[b : b + 1, queries], alone, wrong)

    wrong = f"padding changes the output, but facts.cross is {cross!r}: "
    other = (
        "if queries are aligned to the last keys, set cross='last'"
        if cross is True
        else "if they are not the last of the keys, set cross=True"
    )
    compare_alone(cross == "last", wrong + f"do not count from the number of keys; {other}; or leave 'lengths' out of facts.patterns")


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
        gradients = torch.autograd.grad(out.square().sum(), [q, k, v, *attention.parameters()], allow_unused=True)
        expect(
            _finite(gradients), f"{name}: a query that may attend to no key gives gradients that are not finite; softmax_where avoids it"
        )


def _finite(tensors: tuple[Tensor | None, ...]) -> bool:
    return all(x is None or bool(x.isfinite().all()) for x in tensors)


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
                gradients = torch.autograd.grad(out.sum(), [q, k, v, *attention.parameters()], allow_unused=True)
                wrong = f"scores of ±10⁴ in {dtype} overflow under `{pattern}`: subtract the largest score before exp"
                expect(_finite((out, *gradients)), wrong)


@check("bfloat16", paths=PATHS)
def bfloat16_is_near(subject: Subject) -> None:
    attention, rounded = (subject.build(dtype=torch.float32) for _ in range(2))
    rounded.to(torch.bfloat16)
    attention.load_state_dict(rounded.state_dict())  # the same rounded parameters
    inputs = [x.detach().bfloat16() for x in subject.tensors(dtype=torch.float32)]
    for pattern in subject.patterns():
        exact = run(attention, *(x.float() for x in inputs), pattern)
        low = run(rounded, *inputs, pattern)
        expect(low.dtype == torch.bfloat16, f"bfloat16 inputs give {low.dtype}: convert the output back with .to(v.dtype)")
        expect_close(low.float(), exact, f"bfloat16 is far from float32 under `{pattern}`: sum in float32_or_wider", atol=0.1, rtol=0.1)


@check("autocast")
def autocast_is_near_and_sums_are_not_rounded(subject: Subject) -> None:
    """Under autocast q, k and v come in bfloat16, as linear layers give them."""
    attention = subject.build(dtype=torch.float32)
    inputs = [x.detach().bfloat16() for x in subject.tensors(M, M, dtype=torch.float32)]
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
