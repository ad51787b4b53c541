"""Bounds of settings and options, declared in their types (`radius: Count`, `dropout: Probability`) and checked in one place.

    convert("LocalAttention", "radius", -1, Count)      BadConfig: LocalAttention: radius=-1; expected `int` >= 0

    class SetsOptions(Bounded):                         a frozen dataclass
        batch_size: Size = 64

    SetsOptions(batch_size=0)                           BadConfig: batch_size=0, expected 1 or more

Fields of model configs, options of tasks and arguments of mechanisms' constructors (`checked`) are declared so: nothing compares numbers itself.
Constraints between two settings are still checked where they are used. `Meta(description=…)` is added to the error.
"""

from __future__ import annotations

import functools
import inspect
import numbers
from collections.abc import Callable, Iterable, Mapping
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

import msgspec
from msgspec import Meta

from .errors import BadConfig, OutOfMemory, is_out_of_memory

MOST = 2**31 - 1  # tokens, heads, features: beyond that nothing fits into memory, and indices overflow
LARGEST = 1e30  # of a real number: float32 holds it, and infinity is not it

Size = Annotated[int, Meta(ge=1, le=MOST)]
Depth = Annotated[int, Meta(ge=1, le=4096)]  # layers: each is objects of Python, which take time and memory whatever their sizes
DepthOrNone = Annotated[int, Meta(ge=0, le=4096)]
Heads = Annotated[int, Meta(ge=1, le=65_536)]
HeadCount = Annotated[int, Meta(ge=0, le=65_536)]
Count = Annotated[int, Meta(ge=0, le=MOST)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Finite = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
Positive = Annotated[float, Meta(gt=0, le=LARGEST)]
NonNegative = Annotated[float, Meta(ge=0, le=LARGEST)]
Probability = Annotated[float, Meta(ge=0, lt=1)]  # of dropping something: not everything
Fraction = Annotated[float, Meta(ge=0, le=1)]


class Bounded:
    """A dataclass whose fields are checked against the bounds of their types when it is made."""

    def __post_init__(self) -> None:
        check_bounds(self)


def check_bounds(options: object) -> None:
    """Refuse by name every field that is out of the bounds of its type.

    Args:
        options: Dataclass with `Annotated` fields.
    """
    if wrong := out_of_bounds(type(options), vars(options)):
        raise BadConfig(wrong)


def out_of_bounds(kind: Any, values: Mapping[str, Any]) -> str:
    """Fields whose values are out of the bounds of their types, in words; "" if none is.

    Args:
        kind: Dataclass with `Annotated` fields.
        values: Values by name.
    """
    wrong = []
    for name, hint in _fields(kind).items():
        try:
            if name in values:
                msgspec.convert(values[name], hint)
        except msgspec.ValidationError as error:
            choices, ranges = _choices(hint), _ranges(hint)
            expected = f"one of {', '.join(map(str, choices))}" if choices else in_words(ranges[0]) if ranges else str(error)
            wrong.append(f"{name}={values[name]!r}, expected {expected}")
    return "; ".join(wrong)


@functools.cache
def _fields(kind: Any) -> dict[str, Any]:
    """The types of a dataclass's fields that have bounds or choices, or are a switch or a text."""
    hints = {name: hint for name, hint in get_type_hints(kind, include_extras=True).items() if get_origin(hint) is not ClassVar}
    hints = {name: hint for name, hint in hints.items() if name in getattr(kind, "__dataclass_fields__", ())}
    bounded = {name: hint for name, hint in hints.items() if hint in (bool, str) or _choices(hint) or _ranges(hint)}
    return {name: hint for name, hint in bounded.items() if _readable(hint)}


def in_words(bounds: Meta) -> str:
    """Bounds as a message says them: "1 or more", "0 to 1", "above 0".

    Args:
        bounds: Range of a type.
    """
    low = f"{bounds.ge:g} or more" if bounds.ge is not None else f"above {bounds.gt:g}" if bounds.gt is not None else ""
    if bounds.le is not None and bounds.le < MOST:
        return f"{bounds.ge:g} to {bounds.le:g}" if bounds.ge is not None else f"{low}, at most {bounds.le:g}".removeprefix(", ")
    return f"{low}, below {bounds.lt:g}".removeprefix(", ") if bounds.lt is not None else low


def words_for_type(kind: Any) -> str:
    """Values of a type as a message says them: "a whole number, 1 or more".

    Args:
        kind: Type with its bounds.
    """
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    found = []
    for part in parts:
        plain = part
        while get_origin(plain) is Annotated:
            plain = get_args(plain)[0]
        if choices := _choices(part):
            found.append(f"one of {', '.join(map(str, choices))}")
        elif plain is not type(None):
            name = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}.get(
                plain, "values with commas between them"
            )
            found.append(", ".join([name, *(in_words(meta) for meta in _ranges(part)[:1])]).removesuffix(", "))
    return " or ".join(found)


def _ranges(kind: Any) -> list[Meta]:
    """The ranges in a type, also as part of a union or a tuple."""
    own = [meta for meta in getattr(kind, "__metadata__", ()) if isinstance(meta, Meta)]
    return own + [meta for part in get_args(kind) for meta in _ranges(part)]


def convert(owner: str, name: str, value: Any, kind: Any) -> Any:
    """The value as its type has it (a tuple for a list, a float for an integer), or BadConfig with what was expected.

    Args:
        owner: name of the class or function, for errors.
        name: name of the argument, for errors.
        value: value that was given.
        kind: type, with its bounds.
    """
    plain = value
    if not isinstance(value, bool) and isinstance(value, numbers.Real):  # of numpy, for one
        plain = int(value) if isinstance(value, numbers.Integral) else float(value)
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        expected = str(error).removeprefix("Expected ").replace("`$", f"`{name}")
        if (choices := _choices(kind)) and str(error).startswith("Invalid enum value"):
            expected = " or ".join(map(repr, choices))
        expected += "".join(f" ({note})" for note in _descriptions(kind)[:1])
        raise BadConfig(f"{owner}: {name}={value!r}; expected {expected}") from None


def checked(constructor: Callable[..., None]) -> Callable[..., None]:
    """A constructor whose arguments are first converted to the types in its signature, `**options: Unpack[…]` included; BadConfig if they do not fit.

    Args:
        constructor: an `__init__` with types in its signature.
    """
    signature = inspect.signature(constructor)

    @functools.wraps(constructor)
    def convert_and_construct(self: object, *args: Any, **kwargs: Any) -> None:
        try:
            given = signature.bind_partial(self, *args, **kwargs)
        except TypeError:  # an argument that it does not have: Python's own error says so
            return constructor(self, *args, **kwargs)
        for arguments in (given.arguments, given.arguments.get(_rest(signature), {})):
            for name in arguments.keys() & _kinds(constructor).keys():
                arguments[name] = convert(type(self).__name__, name, arguments[name], _kinds(constructor)[name])
        try:
            return constructor(*given.args, **given.kwargs)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error) or isinstance(error, OutOfMemory):
                raise
            said = ", ".join(f"{name}={value!r}" for name, value in {**given.arguments, **given.kwargs}.items() if isinstance(value, int))
            raise OutOfMemory(
                f"{type(self).__name__}({said}): its parameters take more memory than there is; choose smaller numbers"
            ) from error

    return convert_and_construct


@functools.cache
def _kinds(constructor: Callable[..., None]) -> dict[str, Any]:
    """The types of arguments that can be checked, by name."""
    try:
        kinds = get_type_hints(constructor, include_extras=True)
    except NameError:  # a type that only exists where the class was written, in a function
        return {}
    kinds.pop("return", None)
    options = get_args(kinds.pop(_rest(inspect.signature(constructor)), None))
    if options and is_typeddict(options[0]):
        kinds |= get_type_hints(options[0], include_extras=True)
    return {name: kind for name, kind in kinds.items() if _readable(kind)}


def _rest(signature: inspect.Signature) -> str:
    """The name of the argument that takes further keywords, as `options` in `**options`."""
    return next((parameter.name for parameter in signature.parameters.values() if parameter.kind is parameter.VAR_KEYWORD), "")


def _readable(kind: Any) -> bool:
    """True of a type that msgspec knows; not of an iterator, which reading would use up."""
    if get_origin(kind) is Iterable:
        return False
    try:
        msgspec.json.Decoder(kind, dec_hook=lambda kind, value: value)
    except TypeError:
        return False
    return True


def _descriptions(kind: Any) -> list[str]:
    """`description` of each Meta in a type."""
    own = [meta.description for meta in getattr(kind, "__metadata__", ()) if isinstance(meta, Meta) and meta.description]
    return own + [text for part in get_args(kind) for text in _descriptions(part)]


def _choices(kind: Any) -> tuple[Any, ...]:
    """The values that a `Literal` allows, also as part of a union."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    return tuple(choice for part in get_args(kind) for choice in _choices(part))
