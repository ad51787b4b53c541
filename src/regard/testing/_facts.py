"""Statements of a mechanism about itself: facts, docstring, settings, memory; and the calls it refuses."""

from __future__ import annotations

import ast
import inspect
import operator
import re
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..attention.helpers import force_row_chunks
from ..errors import BadPattern, DtypeError, PatternNotSupported, RegardError, ShapeError
from ..patterns import Pattern, causal, keep, lengths
from ._subject import B, ContractError, H, K, M, NotApplicable, Subject, V, check, expect, expect_error, gates_as_columns, run


@check("facts")
def facts_and_docstring_are_complete(subject: Subject) -> None:
    facts, text = subject.facts, inspect.getdoc(subject.mechanism) or ""
    expect(facts.name.isidentifier(), f"facts.name is {facts.name!r}: expected an identifier, such as 'linear'")
    expect(2010 < facts.paper.year < 2030, f"facts.paper.year is {facts.paper.year}: expected 2011 to 2029")
    if not subject.mechanism.__module__.startswith("regard."):
        return  # outside the package any docstring will do
    for part in ("$$", "Cost:", "Use it:", "Avoid it:", "Limits:", "Paper:", str(facts.paper.year)):
        expect(part in text, f"the docstring does not say {part!r}: see SoftmaxAttention's for the form")


@check("settings")
def settings_build_one_like_it(subject: Subject) -> None:
    attention, name = subject.sized(), subject.name
    rule = "constructor arguments are keyword arguments with plain values, stored under their own names"
    arguments = [p.name for p in inspect.signature(subject.mechanism.__init__).parameters.values() if p.kind is p.KEYWORD_ONLY]
    missing = [argument for argument in arguments if not hasattr(attention, argument)]
    expect(not missing, f"{name} has no attribute {', '.join(missing)}: {rule}")
    like = type(attention)(**attention.settings)
    shapes = [{key: x.shape for key, x in each.state_dict().items()} for each in (attention, like)]
    expect(shapes[0] == shapes[1], f"{name}(**attention.settings) has parameters of other shapes: store every constructor argument")
    wrong = f"{name}(**attention.settings) is {like!r}, expected {attention!r}: store every constructor argument"
    expect(repr(attention) == repr(like), wrong)
    for fixed, value in (("heads", H), ("head_dim", K)):
        declared = getattr(attention, fixed)
        expect(declared in (None, value), f"{name}.sized({fixed}={value}) declares {fixed}={declared}: pass it on in `sized`")
    room = attention.max_length
    expect(room is None or room >= M, f"{name}.sized(length={M}) declares max_length={room}: make it at least `length`")


@check("deterministic")
def draws_only_when_sampling(subject: Subject) -> None:
    attention, qkv, outputs = subject.build(), subject.tensors(grad=False), []
    for seed in (0, 1):
        torch.manual_seed(seed)
        outputs.append(attention(*qkv, subject.widest))
    switch = "it draws again at each call: add a boolean attribute `sample` that turns this off"
    switch = "sample=False still draws" if subject.samples else switch
    expect(outputs[0].equal(outputs[1]), f"two seeds give two outputs: {switch}, or draw once in the constructor")


STACK = 48 << 20  # bytes that the tiles of one call of the exact kernel take, however long the sequence


@check("memory")
def memory_grows_as_declared(subject: Subject) -> None:
    """Peak of live tensor bytes, forward and backward, against `facts.memory`: one mechanism at two lengths, with row chunks made small
    enough to show, and many heads: as many pairs as one head has at 2,900 tokens."""
    attention = subject.build(1024, torch.float32)
    with force_row_chunks(2**20):
        peaks = {n: _peak(attention, subject.tensors(n, n, batch=2, dtype=torch.float32), subject.widest) for n in (256, 1024)}
    _expect_growth(subject, peaks)


@check("memory-long")
def memory_of_long_sequences_grows_as_declared(subject: Subject) -> None:
    """Memory of one as `sized` builds it for each length, one head: sizes that follow the length count too. To 65,536 tokens, if its time is
    linear."""
    short, long = 8192, 65_536
    if _growth(subject.facts.time, short, long) > long / short:
        short, long = 2048, 8192
    if _growth(subject.facts.time, short, long) > 2 * long / short:
        raise NotApplicable(f"facts.time is {subject.facts.time!r}, which takes too long at {long:,} tokens; see `memory`")
    peaks = {}
    for n in (short, long):
        attention = subject.sized(heads=1, length=n)
        heads = attention.heads or 1  # settings may fix it
        inputs = [x[:, :, :heads].detach().requires_grad_() for x in subject.tensors(n, n, batch=1, dtype=torch.float32)]
        peaks[n] = _peak(gates_as_columns(attention), inputs, subject.widest)
    if subject.facts.rows == "joint" or peaks[long] > STACK:
        _expect_growth(subject, peaks)


def _peak(attention: nn.Module, inputs: Sequence[Tensor], pattern: Pattern) -> int:
    with PeakBytes() as peak:
        run(attention, *inputs, pattern).sum().backward()
    return peak.peak


def _expect_growth(subject: Subject, peaks: dict[int, int]) -> None:
    (short, long), memory = peaks, subject.facts.memory
    declared = {n: memory_numbers(memory, n) + 2 * n * (K + V) for n in peaks}  # with the outputs and the gradients of q, k and v
    grew, allowed = peaks[long] / peaks[short], 1.6 * declared[long] / declared[short]
    wrong = f"memory grows {grew:.1f}-fold from {short} to {long} tokens, but facts.memory is {memory!r} (at most {allowed:.1f}-fold)"
    expect(grew <= allowed, f"{wrong}: declare what it takes, or compute in chunks of rows (helpers.by_rows)")


def _growth(formula: str, short: int, long: int) -> float:
    """Ratio by which it is larger at the longer length; infinite if it cannot be read."""
    try:
        return memory_numbers(formula, long) / memory_numbers(formula, short)
    except ContractError:
        return float("inf")


def memory_numbers(formula: str, length: int) -> float:
    """`facts.memory` as a number: L and M are `length`, K and V those of the checks, C is 64, and any other letter a constant."""
    text = formula.replace("·", "*").replace("²", "**2").replace("^", "**")
    text = re.sub(r"√(\w+)", r"\1**0.5", text)
    text = re.sub(r"log\s+(\w+)", r"\1**0.1", text)
    try:
        return _evaluate(ast.parse(text, mode="eval").body, {"L": length, "M": length, "K": K, "V": V, "C": 64})
    except (SyntaxError, KeyError) as error:
        raise ContractError(f"facts.memory is {formula!r}: expected a formula in letters, such as 'L·K' or 'L·c + (L/c)²'") from error


OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def _evaluate(node: ast.expr, letters: dict[str, int]) -> float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.Name(id=letter):
            return letters.get(letter, 16)
        case ast.BinOp(left=left, op=op, right=right):
            return OPERATORS[type(op)](_evaluate(left, letters), _evaluate(right, letters))
    raise SyntaxError(ast.dump(node))


class PeakBytes(TorchDispatchMode):
    """While it is on: the bytes of tensors created since then that are still referenced, and their `peak`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> Any:
        inputs = {id(x.untyped_storage()) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, Tensor) and id(x.untyped_storage()) not in inputs and id(x.untyped_storage()) not in self._sizes:
                self._track(x.untyped_storage())
        return out

    def _track(self, storage: torch.UntypedStorage) -> None:
        self._sizes[id(storage)] = storage.nbytes()
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, id(storage)).atexit = False

    def _free(self, key: int) -> None:
        self.live -= self._sizes.pop(key)


@check("wrong-calls")
def wrong_calls_are_named(subject: Subject) -> None:
    """One typed error that says what was given, what was expected and what to do."""
    attention, (q, k, v), widest, name = subject.build(), subject.tensors(), subject.widest, subject.name
    mask = torch.ones(q.shape[1], M, dtype=torch.bool)
    misfits = [widest & lengths([1, 2]), keep(torch.ones(B, H + 1, q.shape[1], M, dtype=torch.bool))]
    calls: list[tuple[tuple[Any, ...], type[RegardError], str]] = [
        ((q[0], k, v, widest), ShapeError, "unflatten"),
        ((q, k[..., :3], v, widest), ShapeError, "key size"),
        ((q, k, v[:, :5], widest), ShapeError, "k and v share"),
        ((q[:1], k, v, widest), ShapeError, "batch"),
        ((q, k[:, :, :3], v[:, :, :3], widest), ShapeError, "3 key heads"),
        ((q.float(), k, v, widest), DtypeError, "float32"),
        ((q.long(), k.long(), v.long(), widest), DtypeError, "floating-point"),
        ((q, k, v, mask), BadPattern, "keep"),
        *(((q, k, v, pattern), ShapeError, "batch rows and") for pattern in misfits),
    ]
    if subject.facts.bias:
        calls += [
            ((q, k, v, widest, torch.zeros(q.shape[1] + 1, M)), ShapeError, "broadcast"),
            ((q, k, v, widest, torch.ones(1, M, dtype=torch.bool)), DtypeError, "keep"),
        ]
    if subject.facts.patterns == "any":
        calls.append(((q, k, v, keep(torch.ones(2, 3, dtype=torch.bool))), ShapeError, "too small"))
    elif widest is causal:
        calls.append(((q, k, v), PatternNotSupported, f"{name} supports `causal`.*not `full`"))
    for arguments, error, words in calls:
        expect_error(error, words, "a wrong call is not refused by Attention._check; do not override forward", attention, *arguments)
        if words != "too small":  # of a pattern, which knows no mechanism
            expect_error(error, name, "a wrong call does not name the mechanism", attention, *arguments)
    if not subject.facts.cross:
        wrong, words = "facts.cross is False, but fewer queries than keys are accepted", f"{name} attends within one sequence"
        expect_error(ShapeError, words, wrong, attention, q[:, 1:], k, v, widest)
        expect_error(ShapeError, words, wrong, attention.weights, q[:, 1:], k, widest)


@check("gates")
def gates_are_asked_for_by_name(subject: Subject) -> None:
    attention, (q, k, v), pattern = subject.alone(), subject.tensors(), subject.widest
    q, k = q[..., :K], k[..., :K]
    right = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in attention.gate_shapes(q, k).items()}
    for name, count, like in (("gates_BMHE", subject.gates, k), ("query_gates_BLHE", subject.query_gates, q)):
        words, reason = f"{subject.name}.*{name}", f"{name[:-5]} is {count}, but wrong gates are accepted: do not override forward"
        wrongs: list[tuple[Tensor | None, type[RegardError]]] = [(like, ShapeError)]
        if count:
            gates = right[name]
            wrongs = [(None, ShapeError), (gates[:, :-1], ShapeError), (gates[..., 1:], ShapeError), (gates.float(), DtypeError)]
        for wrong, error in wrongs:
            given = right | {name: wrong}
            for rows in (None, torch.tensor([0])):
                expect_error(error, words, reason, attention.weights, q, k, pattern, rows=rows, **given)
            expect_error(error, words, reason, attention, q, k, v, pattern, **given)
