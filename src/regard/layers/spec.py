"""Mechanisms as text: how configs, options and `MultiHead(…, attention="local(radius=64)")` name them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple, get_args, get_type_hints, is_typeddict

from ..attention import Attention, find_mechanism
from ..errors import BadConfig, UnknownName
from ..patterns import Full, Pattern, full, parse

EXPECTED = "does not name a mechanism; write local, local(radius=64), or softmax under window(64) | tokens(0)"


class Spec(NamedTuple):
    """A mechanism, its settings and its pattern, as one line of a config:

    local                                               sized for the model
    local(radius=64)                                    with these settings
    softmax(dropout=0.1) under window(64) | tokens(0)   restricted to a pattern
    """

    kind: type[Attention]
    settings: dict[str, Any] | None = None  # None: sized for the model
    pattern: Pattern = full

    @classmethod
    def read(cls, text: str) -> Spec:
        """Parse a line; it is never run as code."""
        call, _, under = text.partition(" under ")
        pattern = parse(under) if under else full
        name, settings = split_call(call)
        if not name.isidentifier():
            raise BadConfig(f"{text!r} {EXPECTED}")
        return cls(find_mechanism(name), settings, pattern)

    def build(self, *, heads: int, head_dim: int, length: int, columns: int | None = None) -> Attention:
        """The mechanism for `heads` heads of size `head_dim` and up to `length` keys; on a grid, of `columns` keys per row."""
        if self.settings is None:
            grid = {"columns": columns} if columns and "columns" in inspect.signature(self.kind.sized).parameters else {}
            return self.kind.sized(heads=heads, head_dim=head_dim, length=length, **grid)
        check_known(self.kind, self.settings)
        try:
            return self.kind(**self.settings)
        except TypeError as wrong:
            raise BadConfig(f"{self.kind.__name__} does not take the settings {self.settings}: {wrong}") from wrong

    def __str__(self) -> str:
        given = "" if self.settings is None else f"({', '.join(f'{name}={value!r}' for name, value in self.settings.items())})"
        return self.kind.facts.name + given + ("" if isinstance(self.pattern, Full) else f" under {self.pattern}")


def split_call(text: str) -> tuple[str, dict[str, Any] | None]:
    """`name` and None; `name(radius=64)` and its settings. It is never run as code, and anything may stand for the name."""
    name, opened, rest = text.strip().partition("(")
    if not opened:
        return name, None
    try:
        match ast.parse(f"_({rest}", mode="eval").body:
            case ast.Call(func=ast.Name(id="_"), args=[], keywords=given) if all(option.arg for option in given):
                return name.strip(), {str(option.arg): ast.literal_eval(option.value) for option in given}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    raise BadConfig(f"{text!r} {EXPECTED}")


def check_known(kind: type[Attention], settings: Mapping[str, Any]) -> None:
    """Refuse settings that the constructor does not take, by the nearest name."""
    known = _known_settings(kind)
    for name in settings:
        if known is not None and name not in known:
            raise UnknownName(f"setting of {kind.facts.name}", name, known)


def _known_settings(kind: type[Attention]) -> list[str] | None:
    """The constructor's arguments, those of `**options: Unpack[SoftmaxOptions]` by their own names; None: any, the constructor decides."""
    parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]
    names = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    if len(names) == len(parameters):
        return names
    options = get_args(get_type_hints(kind.__init__).get(parameters[-1].name))
    return [*names, *options[0].__annotations__] if options and is_typeddict(options[0]) else None


def split_names(text: str) -> list[str]:
    """Mechanisms with commas between them, cut at the commas outside of parentheses."""
    names, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            names.append("")
        else:
            names[-1] += letter
    return [name.strip() for name in names]
