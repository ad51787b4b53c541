"""Self-attention step by step, and queries one by one over fixed keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..attention import Cache, RecurrentState, State, StepState
from ..errors import CaptureNotSupported, ShapeError, StateNotSupported
from ..look import capture
from ..patterns import Pattern, causal, lengths, local_causal, since, tokens, window
from ._subject import B, NotApplicable, Subject, check, expect, expect_close, expect_error

Stream = tuple[Pattern, Any, list[Tensor], State]  # pattern, attention, q k v of 40 tokens, a fresh state


def start(subject: Subject, pattern: Pattern = causal) -> Stream:
    if subject.facts.state is None:
        with expect_error(StateNotSupported, subject.name, "facts.state is None, but start() gives a state"):
            subject.build().start(B)
        raise NotApplicable("facts.state is None: it cannot stream, and says so")
    if subject.facts.state is StepState:
        raise NotApplicable("facts.state is StepState: its keys are fixed")
    attention = subject.build()
    return pattern, attention, [x.detach() for x in subject.tensors(40, 40)], attention.start(B, pattern)


def streams(subject: Subject, padded: bool = False) -> Iterator[Stream]:
    """One per pattern; `padded`: also patterns under which some rows end before the others, or begin later."""
    patterns = [causal, causal & window(4), local_causal(3) | causal & tokens(0, 1)]
    patterns = patterns if subject.facts.patterns == "any" else patterns[:1]
    rules = {"lengths": lengths([40, 25, 7]), "since": since(torch.tensor([0, 10, 30]))} if padded else {}
    for pattern in patterns + [causal & rule for name, rule in rules.items() if subject.supports(name)]:
        yield start(subject, pattern)


def expect_stream(subject: Subject, actual: Tensor, expected: Tensor, what: str) -> None:
    kind = subject.facts.state.__name__ if subject.facts.state else None
    wrong = f"{what} differ from one pass, but facts.state is {kind}: take positions and masks from `call`, or set state=None"
    expect_close(actual, expected, wrong, atol=1e-9, rtol=1e-9)


def of(inputs: list[Tensor], rows: Any, positions: slice) -> list[Tensor]:
    return [x[rows, positions] for x in inputs]


ALL = slice(None)


@check("stream-steps")
def steps_equal_one_pass(subject: Subject) -> None:
    for step in (1, 3, 40):
        for pattern, attention, qkv, state in streams(subject, padded=True):
            parts = [attention(*of(qkv, ALL, slice(t, t + step)), pattern, state=state) for t in range(0, 40, step)]
            expect_stream(subject, torch.cat(parts, 1), attention(*qkv, pattern), f"steps of {step} tokens under `{pattern}`")
            expect(state.length == 40, f"after 40 tokens state.length is {state.length}: call state.move after each pass")


@check("stream-more-keys")
def a_step_may_bring_more_keys_than_queries(subject: Subject) -> None:
    """The queries are at the end of the new keys, as without a state: a past that someone else kept comes in at once."""
    for pattern, attention, (q, k, v), state in streams(subject, padded=True):
        whole = attention(q, k, v, pattern)
        first = attention(q[:, 27:30], k[:, :30], v[:, :30], pattern, state=state)
        after = attention(q[:, 38:], k[:, 30:], v[:, 30:], pattern, state=state)
        expect_stream(subject, torch.cat([first, after], 1), whole[:, [27, 28, 29, 38, 39]], "steps with more keys than queries")


def _capture(subject: Subject, attention: Any, **options: Any) -> Any:
    return capture(attention, layers="inner" if subject.gates else subject.name, **options)


@check("stream-capture")
def steps_show_the_weights_of_the_whole(subject: Subject) -> None:
    """What capture sees of a stream, with rows of beams exchanged and one reset on the way."""
    for pattern, attention, (q, k, v), state in streams(subject):
        state.keep_keys()
        if not isinstance(state, Cache | RecurrentState):  # it holds something else than keys, and says so
            with (
                _capture(subject, attention),
                expect_error(CaptureNotSupported, "does not keep its keys one by one", "a state without keys was captured"),
            ):
                attention(q[:, :3], k[:, :3], v[:, :3], pattern, state=state)
            return
        order = torch.tensor([2, 0, 1])
        with _capture(subject, attention, dtype=torch.float64) as maps:
            for t in range(0, 30, 3):
                attention(*of([q, k, v], ALL, slice(t, t + 3)), pattern, state=state)
            expect(len(maps.all) == 10, f"10 steps were captured {len(maps.all)} times")
            whole = attention.weights(q[:, :30], k[:, :30], pattern)
            for t, seen in zip(range(0, 30, 3), maps.all, strict=True):
                expect_stream(subject, seen.weights_BHLM, whole[:, :, t : t + 3][..., list(seen.columns)], "captured weights of steps")
            state.reorder(order).reset(torch.tensor([1]))
            attention(*of([q, k, v], order, slice(30, 33)), pattern, state=state)
        after = maps.all[-1]
        whole = attention.weights(q[:, :33], k[:, :33], pattern)[order][:, :, 30:33][..., list(after.columns)]
        expect_stream(subject, after.weights_BHLM[[0, 2]], whole[[0, 2]], "captured weights after reorder")
        old = torch.tensor(after.columns) < 30
        expect((after.weights_BHLM[1, ..., old] == 0).all(), "a row that was reset still attends to what it forgot")
        if not subject.facts.positional:  # those count positions from the beginning of the stream here
            expect((after.weights_BHLM[1, ..., ~old] != 0).any(), "a row that was reset attends to nothing")


@check("stream-no-keys")
def a_state_without_keys_is_not_captured(subject: Subject) -> None:
    _, attention, qkv, state = start(subject)
    attention(*of(qkv, ALL, slice(3)), causal, state=state)
    if not isinstance(state, RecurrentState):
        raise NotApplicable("its state keeps the keys")
    wrong = "a state that has dropped its keys was captured"
    with _capture(subject, attention), expect_error(CaptureNotSupported, r"3 tokens.*create another.*keep_keys", wrong):
        attention(*of(qkv, ALL, slice(3, 5)), causal, state=state)
    expect(state.length == 3, "a refused step moved the state")


@check("stream-fixed-size")
def a_recurrent_state_does_not_grow(subject: Subject) -> None:
    _, attention, qkv, state = start(subject)
    if not isinstance(state, RecurrentState):
        raise NotApplicable("its state keeps the keys")
    sizes = []
    for t in range(5):
        attention(*of(qkv, ALL, slice(t, t + 1)), causal, state=state)
        sizes.append({name: x.shape for name, x in state.sums.items()})
    expect(sizes == sizes[:1] * 5 and state.kept is None, "facts.state is RecurrentState, but its sums grow with each step")
    low = subject.build(dtype=torch.bfloat16)
    state = low.start(B)
    low(*(x[:, :1].bfloat16() for x in qkv), causal, state=state)
    expect(all(x.dtype == torch.float32 for x in state.sums.values()), "sums of a state must be float32 or wider in bfloat16 too")


@check("stream-reorder")
def beams_reorder(subject: Subject) -> None:
    for order in ([2, 0, 2, 1, 1], [0, 0, 2], [0, 1, 2]):
        for pattern, attention, qkv, state in streams(subject):
            before = [x.clone() for x in qkv]
            attention(*of(qkv, ALL, slice(30)), pattern, state=state)
            state.reorder(torch.tensor(order))
            after = attention(*of(qkv, order, slice(30, 31)), pattern, state=state)
            expect(all(x.equal(y) for x, y in zip(qkv, before, strict=True)), "state.reorder changed tensors of the caller")
            expect_stream(subject, after, attention(*of(qkv, ALL, slice(31)), pattern)[order, 30:31], "steps after state.reorder")


@check("stream-reset")
def a_reset_row_forgets(subject: Subject) -> None:
    for pattern in (causal,) if subject.facts.patterns != "any" else (causal, causal & window(6)):
        _, attention, qkv, state = start(subject, pattern)
        for t in range(18):  # whole blocks of the mechanism that has blocks
            attention(*of(qkv, ALL, slice(t, t + 1)), pattern, state=state)
        state.reset(torch.tensor([1]))
        after = torch.cat([attention(*of(qkv, ALL, slice(t, t + 1)), pattern, state=state) for t in range(18, 30)], 1)
        whole = attention(*of(qkv, ALL, slice(30)), pattern)[:, 18:]
        expect_stream(subject, after[[0, 2]], whole[[0, 2]], "rows beside one that was reset")
        expect(state.position() == (30, 12, 30), f"after a reset state.position() is {state.position()}, expected (30, 12, 30)")
        expect_stream(subject, after[1], attention(*of(qkv, ALL, slice(18, 30)), pattern)[1], "steps after state.reset")


@check("stream-join")
def joined_rows_continue_as_if_alone(subject: Subject) -> None:
    """Two streams of different lengths, put together and taken apart again."""
    # the lengths are whole blocks of the mechanism that has blocks
    for rows, read in ((([0, 1], [2]), (18, 6)), (([2], [0, 1]), (6, 18))):
        for step in (1, 4):
            for pattern, attention, qkv, _ in streams(subject):
                states = []
                for some, n in zip(rows, read, strict=True):
                    states.append(attention.start(len(some), pattern))
                    attention(*of(qkv, some, slice(n)), pattern, state=states[-1])
                state = states[0].join(states[1])
                order, behind = rows[0] + rows[1], [n for some, n in zip(rows, read, strict=True) for _ in some]
                right = state.batch == 3 and state.length == 18 and state.position() == tuple(behind)
                expect(right, f"joined rows are at {state.position()}, expected {tuple(behind)}")
                for t in range(0, 12, step):
                    now = [torch.stack([x[row, n + t : n + t + step] for row, n in zip(order, behind, strict=True)]) for x in qkv]
                    out = attention(*now, pattern, state=state)
                    for b, (row, n) in enumerate(zip(order, behind, strict=True)):
                        alone = attention(*of(qkv, [row], slice(n + t + step)), pattern)[0, n + t :]
                        expect_stream(subject, out[b], alone, "rows joined by state.join")
                state.reorder(torch.tensor([order.index(2)]))
                out = attention(*of(qkv, [2], slice(18, 22)), pattern, state=state)
                expect_stream(subject, out, attention(*of(qkv, [2], slice(22)), pattern)[:, 18:], "rows taken apart after state.join")
                expect(state.position() == 22 == state.length, f"a row of 22 tokens is at {state.position()}")


@check("stream-join-new")
def a_new_row_joins_others(subject: Subject) -> None:
    _, attention, qkv, state = start(subject)
    attention(*of(qkv, slice(2), slice(12)), causal, state=state.reorder(torch.tensor([0, 1])))
    state.join(attention.start(1, causal))
    expect(state.position() == (12, 12, 0), f"a fresh row joined at {state.position()}, expected (12, 12, 0)")
    out = attention(*(torch.cat([x[:2, 12:15], x[2:, :3]]) for x in qkv), causal, state=state)
    expect_stream(subject, out[2:], attention(*of(qkv, slice(2, 3), slice(3)), causal), "steps of a fresh row that joined others")
    expect_stream(subject, out[:2], attention(*of(qkv, slice(2), slice(15)), causal)[:, 12:], "steps of rows that a fresh one joined")
    with expect_error(StateNotSupported, "same layer", "a state of another kind was joined"):
        state.join(_OtherState(1))


class _OtherState(State):
    """Of no mechanism."""


@check("stream-detach")
def gradients_flow_until_detached(subject: Subject) -> None:
    _, attention, (q, k, v), state = start(subject)
    v.requires_grad_()
    attention(q[:, :9], k[:, :9], v[:, :9], causal, state=state)  # more than a row of the grids there are
    out = attention(q[:, 9:10], k[:, 9:10], v[:, 9:10], causal, state=state)
    gradient = torch.autograd.grad(out.sum(), v)[0]
    expect(gradient[:, :9].abs().sum() > 0, "no gradient reaches the values of earlier steps: keep the state in the graph")
    state.detach()
    out = attention(q[:, 10:11], k[:, 10:11], v[:, 10:11], causal, state=state)
    expect((torch.autograd.grad(out.sum(), v)[0][:, :10] == 0).all(), "gradients reach the values before state.detach()")


@check("stream-batch")
def a_wrong_batch_is_named(subject: Subject) -> None:
    _, attention, qkv, state = start(subject)
    attention(*of(qkv, ALL, slice(1)), causal, state=state)
    with expect_error(ShapeError, "reorder", "a batch that does not fit the state was accepted"):
        attention(*of(qkv, slice(1), slice(1, 2)), causal, state=state)


@check("stream-fixed-keys")
def queries_one_by_one_over_fixed_keys(subject: Subject) -> None:
    """With a StepState, and without a state where rows are independent: the pattern is the same for all queries."""
    attention, (q, k, v), facts = subject.build(), [x.detach() for x in subject.tensors()], subject.facts
    if not facts.cross or not subject.supports("full"):
        raise NotApplicable("facts.cross is False, or `full` is not in facts.patterns")
    inner = attention.inner if subject.gates else attention
    if facts.rows != "independent" and facts.state is not StepState:
        with expect_error(StateNotSupported, subject.name, f"facts.rows is {facts.rows!r}, but start_cross() gives no error"):
            inner.start_cross(B)
        return
    state = inner.start_cross(B)
    if state is None and facts.cross == "last":
        raise NotApplicable("facts.cross is 'last': queries have positions among the keys")
    parts = [attention(q[:, t : t + 2], k, v, subject.widest, state=state) for t in range(0, q.shape[1], 2)]
    wrong = f"queries one by one over fixed keys differ from one pass, but facts.rows is {facts.rows!r} and facts.state "
    wrong += f"{getattr(facts.state, '__name__', None)}: move the StepState, set rows, or cross='last' if queries are the last of the keys"
    expect_close(torch.cat(parts, 1), attention(q, k, v, subject.widest), wrong, atol=1e-9, rtol=1e-9)
