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
from ._subject import B, GatesAsColumns, NotApplicable, Subject, check, expect, expect_close, expect_error

ALL = slice(None)


class Stream:
    """q, k and v of 40 tokens, to read step by step with a state, or in one pass without."""

    def __init__(self, subject: Subject, pattern: Pattern = causal):
        self.subject, self.pattern, self.attention = subject, pattern, subject.build()
        if subject.facts.state is None:
            expect_error(
                StateNotSupported,
                subject.name,
                "facts.state is None, but start() gives a state: set facts.state to its class",
                self.attention.start,
                B,
            )
            raise NotApplicable("facts.state is None: it cannot stream, and says so")
        if subject.facts.state is StepState:
            raise NotApplicable("facts.state is StepState: its keys are fixed")
        self.qkv = subject.tensors(40, 40, grad=False)
        self.state: Any = self.attention.start(B, pattern)

    def part(self, begin: int, end: int, rows: Any = ALL) -> list[Tensor]:
        return [x[rows, begin:end] for x in self.qkv]

    def step(self, begin: int, end: int, rows: Any = ALL) -> Tensor:
        return self.attention(*self.part(begin, end, rows), self.pattern, state=self.state)

    def whole(self, end: int = 40, rows: Any = ALL) -> Tensor:
        return self.attention(*self.part(0, end, rows), self.pattern)

    def capture(self, **options: Any) -> Any:
        inner = isinstance(self.attention, GatesAsColumns)
        return capture(self.attention, layers="inner" if inner else self.subject.name, **options)

    def expect_close(self, actual: Tensor, expected: Tensor, what: str) -> None:
        kind = self.subject.facts.state.__name__ if self.subject.facts.state else None
        wrong = f"{what} differ from one pass, but facts.state is {kind}: take positions and masks from `call`, or set state=None"
        expect_close(actual, expected, wrong, atol=1e-9, rtol=1e-9)


def streams(subject: Subject, padded: bool = False) -> Iterator[Stream]:
    """One per pattern; `padded`: also patterns under which some rows end before the others, or begin later."""
    patterns = [causal, causal & window(4), local_causal(3) | causal & tokens(0, 1)]
    patterns = patterns if subject.facts.patterns == "any" else patterns[:1]
    rules = {"lengths": lengths([40, 25, 7]), "since": since(torch.tensor([0, 10, 30]))} if padded else {}
    for pattern in patterns + [causal & rule for name, rule in rules.items() if subject.supports(name)]:
        yield Stream(subject, pattern)


@check("stream-steps")
def steps_equal_one_pass(subject: Subject) -> None:
    for step in (1, 3, 40):
        for stream in streams(subject, padded=True):
            parts = [stream.step(t, t + step) for t in range(0, 40, step)]
            stream.expect_close(torch.cat(parts, 1), stream.whole(), f"steps of {step} tokens under `{stream.pattern}`")
            length = stream.state.length
            expect(length == 40, f"after 40 tokens state.length is {length}: call state.move after each pass")


@check("stream-more-keys")
def a_step_may_bring_more_keys_than_queries(subject: Subject) -> None:
    """The queries are at the end of the new keys, as without a state: a past that someone else kept comes in at once."""
    for stream in streams(subject, padded=True):
        q, k, v = stream.qkv
        first = stream.attention(q[:, 27:30], k[:, :30], v[:, :30], stream.pattern, state=stream.state)
        after = stream.attention(q[:, 38:], k[:, 30:], v[:, 30:], stream.pattern, state=stream.state)
        expected = stream.whole()[:, [27, 28, 29, 38, 39]]
        stream.expect_close(torch.cat([first, after], 1), expected, "steps with more keys than queries")


@check("stream-capture")
def steps_show_the_weights_of_the_whole(subject: Subject) -> None:
    """Captured weights of steps are those rows of one pass."""
    for stream in streams(subject):
        q, k, _ = stream.qkv
        stream.state.keep_keys()
        if not isinstance(stream.state, Cache | RecurrentState):  # it holds something else than keys, and says so
            with stream.capture():
                words = "does not keep its keys one by one"
                return expect_error(
                    CaptureNotSupported,
                    words,
                    "a state without keys was captured: only a Cache and a RecurrentState keep them",
                    stream.step,
                    0,
                    3,
                )
        with stream.capture(dtype=torch.float64) as maps:
            for t in range(0, 30, 3):
                stream.step(t, t + 3)
        expect(len(maps.all) == 10, f"10 steps were captured {len(maps.all)} times: call _forward once per call")
        whole = stream.attention.weights(q[:, :30], k[:, :30], stream.pattern)
        for t, seen in zip(range(0, 30, 3), maps.all, strict=True):
            stream.expect_close(seen.weights_BHLM, whole[:, :, t : t + 3][..., list(seen.columns)], "captured weights of steps")


@check("stream-capture-rows")
def captured_rows_are_as_if_alone(subject: Subject) -> None:
    """Captured weights of rows that were reset, joined or exchanged: those of each row alone, over what it has not forgotten."""
    for stream in streams(subject):
        stream.state.keep_keys()
        if not isinstance(stream.state, Cache | RecurrentState):
            raise NotApplicable("its state does not keep keys one by one")
        stream.step(0, 18)
        stream.state.reset(torch.tensor([1]))
        rows = [(0, 0), (1, 18), (2, 0)]  # of q, k and v, and where each began
        _expect_captured(stream, rows, [18, 18, 18], "after state.reset")
        stream.state.reorder(torch.tensor([1, 2, 1]))
        _expect_captured(stream, [rows[1], rows[2], rows[1]], [22, 22, 22], "after state.reset and state.reorder")
        for some, read in ((([0, 1], [2]), (18, 6)), (([2], [0, 1]), (6, 18))):
            states, ends = [], []
            for batch, end in zip(some, read, strict=True):
                stream.state = stream.attention.start(len(batch), stream.pattern)
                stream.state.keep_keys()
                stream.step(0, end, batch)
                states.append(stream.state)
                ends += [end] * len(batch)
            stream.state = states[0].join(states[1])
            _expect_captured(stream, [(row, 0) for row in some[0] + some[1]], ends, "after state.join")


def _expect_captured(stream: Stream, rows: list[tuple[int, int]], read: list[int], when: str) -> None:
    """Read 4 tokens in 2 steps. Row b of the state is a row of q, k and v from a first token on, and has come to token `read[b]`."""
    q, k, _ = stream.qkv
    with stream.capture(dtype=torch.float64) as maps:
        for step in (0, 2):
            now = [torch.stack([x[row, n + step : n + step + 2] for (row, _), n in zip(rows, read, strict=True)]) for x in stream.qkv]
            stream.attention(*now, stream.pattern, state=stream.state)
    for step, seen in zip((2, 4), maps.all, strict=True):
        for b, ((row, first), n) in enumerate(zip(rows, read, strict=True)):
            part = slice(row, row + 1), slice(first, n + step)
            alone_HLM = stream.attention.weights(q[part], k[part], stream.pattern)[0, :, -2:]
            at = torch.tensor(seen.columns) - seen.columns[-1] + alone_HLM.shape[-1] - 1  # columns end with the newest key of every row
            expected_HLM = torch.where(at >= 0, alone_HLM[..., at.clamp(min=0)], 0)
            stream.expect_close(seen.weights_BHLM[b], expected_HLM, f"captured weights {when}")


def recurrent(subject: Subject) -> Stream:
    stream = Stream(subject)
    if not isinstance(stream.state, RecurrentState):
        raise NotApplicable("its state keeps the keys")
    return stream


@check("stream-no-keys")
def a_state_without_keys_is_not_captured(subject: Subject) -> None:
    stream = recurrent(subject)
    stream.step(0, 3)
    with stream.capture():
        words = r"3 tokens.*create another.*keep_keys"
        expect_error(
            CaptureNotSupported, words, "a state that has dropped its keys was captured: do not override keep_keys", stream.step, 3, 5
        )
    expect(stream.state.length == 3, "a refused step moved the state: refuse it before state.move")


@check("stream-fixed-size")
def a_recurrent_state_does_not_grow(subject: Subject) -> None:
    stream, sizes = recurrent(subject), []
    for t in range(5):
        stream.step(t, t + 1)
        sizes.append({name: x.shape for name, x in stream.state.sums.items()})
    same = sizes == sizes[:1] * 5 and stream.state.kept is None
    expect(same, "facts.state is RecurrentState, but its sums grow with each step: keep sums of fixed size, or set state=Cache")
    low = subject.build(dtype=torch.bfloat16)
    state = low.start(B)
    low(*(x.bfloat16() for x in stream.part(0, 1)), causal, state=state)
    expect(
        all(x.dtype == torch.float32 for x in state.sums.values()),
        "sums of a state are rounded in bfloat16: make them with state.sum(…), which is float32 or wider",
    )


@check("stream-reorder")
def beams_reorder(subject: Subject) -> None:
    for order in ([2, 0, 2, 1, 1], [0, 0, 2], [0, 1, 2]):
        for stream in streams(subject):
            before = [x.clone() for x in stream.qkv]
            stream.step(0, 30)
            stream.state.reorder(torch.tensor(order))
            after = stream.step(30, 31, order)
            expect(
                all(x.equal(y) for x, y in zip(stream.qkv, before, strict=True)),
                "state.reorder changed tensors of the caller: copy k and v before writing into them",
            )
            stream.expect_close(after, stream.whole(31)[order, 30:], "steps after state.reorder")


@check("stream-reset")
def a_reset_row_forgets(subject: Subject) -> None:
    for pattern in (causal,) if subject.facts.patterns != "any" else (causal, causal & window(6)):
        stream = Stream(subject, pattern)
        for t in range(18):  # whole blocks of the mechanism that has blocks
            stream.step(t, t + 1)
        stream.state.reset(torch.tensor([1]))
        after = torch.cat([stream.step(t, t + 1) for t in range(18, 30)], 1)
        stream.expect_close(after[[0, 2]], stream.whole(30)[[0, 2], 18:], "rows beside one that was reset")
        position = stream.state.position()
        expect(
            position == (30, 12, 30),
            f"after a reset state.position() is {position}, expected (30, 12, 30): call State.reset of the base class",
        )
        stream.expect_close(after[1], stream.attention(*stream.part(18, 30), pattern)[1], "steps after state.reset")


@check("stream-join")
def joined_rows_continue_as_if_alone(subject: Subject) -> None:
    """Two streams of different lengths, put together and taken apart again."""
    # the lengths are whole blocks of the mechanism that has blocks
    for rows, read in ((([0, 1], [2]), (18, 6)), (([2], [0, 1]), (6, 18))):
        order, behind = rows[0] + rows[1], [n for some, n in zip(rows, read, strict=True) for _ in some]
        for step in (1, 4):
            for stream in streams(subject):
                states = []
                for some, n in zip(rows, read, strict=True):
                    stream.state = stream.attention.start(len(some), stream.pattern)
                    stream.step(0, n, some)
                    states.append(stream.state)
                state = stream.state = states[0].join(states[1])
                right = state.batch == 3 and state.length == 18 and state.position() == tuple(behind)
                expect(right, f"joined rows are at {state.position()}, expected {tuple(behind)}: call State.join of the base class")
                for t in range(0, 12, step):
                    now = [torch.stack([x[row, n + t : n + t + step] for row, n in zip(order, behind, strict=True)]) for x in stream.qkv]
                    out = stream.attention(*now, stream.pattern, state=state)
                    for b, (row, n) in enumerate(zip(order, behind, strict=True)):
                        stream.expect_close(out[b], stream.whole(n + t + step, [row])[0, n + t :], "rows joined by state.join")
                state.reorder(torch.tensor([order.index(2)]))
                stream.expect_close(stream.step(18, 22, [2]), stream.whole(22, [2])[:, 18:], "rows taken apart after state.join")
                expect(
                    state.position() == 22 == state.length,
                    f"a row of 22 tokens is at {state.position()}: call State.reorder of the base class",
                )


@check("stream-join-new")
def a_new_row_joins_others(subject: Subject) -> None:
    stream, two = Stream(subject), slice(2)
    stream.state.reorder(torch.tensor([0, 1]))
    stream.step(0, 12, two)
    position = stream.state.join(stream.attention.start(1, causal)).position()
    expect(position == (12, 12, 0), f"a fresh row joined at {position}, expected (12, 12, 0): call State.join of the base class")
    now = (torch.cat([x[:2, 12:15], x[2:, :3]]) for x in stream.qkv)
    out = stream.attention(*now, causal, state=stream.state)
    stream.expect_close(out[2:], stream.whole(3, slice(2, 3)), "steps of a fresh row that joined others")
    stream.expect_close(out[:2], stream.whole(15, two)[:, 12:], "steps of rows that a fresh one joined")
    expect_error(
        StateNotSupported,
        "same layer",
        "a state of another kind was joined: call State._check_join of the base class",
        stream.state.join,
        _OtherState(1),
    )


class _OtherState(State):
    """State of no mechanism."""


@check("stream-detach")
def gradients_flow_until_detached(subject: Subject) -> None:
    stream = Stream(subject)
    v = stream.qkv[2].requires_grad_()
    stream.step(0, 9)  # more than a row of the grids there are
    gradient = torch.autograd.grad(stream.step(9, 10).sum(), v)[0]
    expect(gradient[:, :9].abs().sum() > 0, "no gradient reaches the values of earlier steps: keep the state in the graph")
    stream.state.detach()
    gradient = torch.autograd.grad(stream.step(10, 11).sum(), v)[0]
    expect((gradient[:, :10] == 0).all(), "gradients reach the values before state.detach(): detach everything that the state holds")


@check("stream-batch")
def a_wrong_batch_is_named(subject: Subject) -> None:
    stream = Stream(subject)
    stream.step(0, 1)
    expect_error(
        ShapeError, "reorder", "a batch that does not fit the state was accepted: do not override forward", stream.step, 1, 2, slice(1)
    )


@check("stream-fixed-keys")
def queries_one_by_one_over_fixed_keys(subject: Subject) -> None:
    """With a StepState, and without a state where rows are independent: the pattern is the same for all queries."""
    attention, (q, k, v), facts = subject.build(), subject.tensors(grad=False), subject.facts
    if not facts.cross or not subject.supports("full"):
        raise NotApplicable("facts.cross is False, or `full` is not in facts.patterns")
    if facts.rows != "independent" and facts.state is not StepState:
        wrong = f"facts.rows is {facts.rows!r}, but start_cross() gives no error: do not override it"
        return expect_error(StateNotSupported, subject.name, wrong, attention.start_cross, B)
    state = attention.start_cross(B)
    if state is None and facts.cross == "last":
        raise NotApplicable("facts.cross is 'last': queries have positions among the keys")
    parts = [attention(q[:, t : t + 2], k, v, subject.widest, state=state) for t in range(0, q.shape[1], 2)]
    wrong = f"queries one by one over fixed keys differ from one pass, but facts.rows is {facts.rows!r} and facts.state "
    wrong += f"{getattr(facts.state, '__name__', None)}: move the StepState, set rows, or cross='last' if queries are the last of the keys"
    expect_close(torch.cat(parts, 1), attention(q, k, v, subject.widest), wrong, atol=1e-9, rtol=1e-9)
