"""Results that are kept for patterns made from tensors: layers of a batch, and its forward and backward pass, ask for the same plan.

A pattern without tensors is a value, and equal ones share their plans. One with tensors, such as `causal & lengths(n_B)`, is another object in every
layer; its contents are a value, too. `causal & window(128) & lengths(n)`, 4,096 tokens, 2 heads of 32, forward + backward, one thread (Zen 4): 51 ms when
each call made its plan, 13 ms with new lengths at each call, 14 ms without lengths; `window(128) & segments(ids)`, a new batch each call: 79, 48 ms.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, Generic, TypeVar

from torch import Tensor
from torch._subclasses import FakeTensor

from ...patterns import Pattern

ResultT = TypeVar("ResultT")
SMALL = (
    1 << 20
)  # bytes of a tensor that are compared, which takes a millisecond at most; larger ones are told apart by identity and version


def contents(pattern: Pattern) -> Hashable | None:
    """The rule as a value: equal contents are equal rules. None if that is not known, as of tensors that are being traced."""
    names: dict[str, object] | None = getattr(type(pattern), "__dataclass_fields__", None)
    if names is None:
        return None
    parts: list[Any] = [type(pattern)]
    for name in names:
        value = getattr(pattern, name)
        rules = value if isinstance(value, tuple) and any(isinstance(rule, Pattern) for rule in value) else (value,)
        for rule in rules:
            part = contents(rule) if isinstance(rule, Pattern) else _value(rule) if isinstance(rule, Tensor) else rule
            if part is None and rule is not None:
                return None
            parts.append(part)
    return tuple(parts)


def _value(x: Tensor) -> Hashable | None:
    if isinstance(x, FakeTensor) or x.is_meta:
        return None
    if x.is_cpu and x.nbytes <= SMALL:
        return x.dtype, tuple(x.shape), x.detach().numpy().tobytes()
    return None if x.is_inference() else (id(x), x._version)


class Kept(Generic[ResultT]):
    """The last few results, by contents of a pattern and further arguments. A result is kept with its pattern, so that no identity is used twice.

    Args:
        size: number of results.
    """

    def __init__(self, size: int):
        self.size = size
        self._found: OrderedDict[Hashable, tuple[Pattern, ResultT]] = OrderedDict()
        self._lock = Lock()

    def get(self, pattern: Pattern, arguments: Hashable, make: Callable[[], ResultT]) -> ResultT:
        """The result for a pattern and arguments; made where it is not known.

        Args:
            pattern: pattern, whose contents count.
            arguments: all else that the result depends on.
            make: function that makes it.
        """
        known = contents(pattern)
        try:
            key = None if known is None else (known, arguments)
            hash(key)
        except TypeError:  # a field of the pattern cannot be compared
            key = None
        if key is None:
            return make()
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
                return self._found[key][1]
        result = make()
        with self._lock:
            self._found[key] = pattern, result
            while len(self._found) > self.size:
                self._found.popitem(last=False)
        return result
