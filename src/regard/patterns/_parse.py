"""Text to pattern: what a pattern prints can be parsed. Read as a syntax tree, never run as code."""

from __future__ import annotations

import ast
import warnings
from typing import Any

from ..errors import BadPattern, UnknownName
from ._base import Pattern, full, per_head
from .blocks import block, block_memory, block_window, grid_memory, grid_window, random_blocks, same_column, same_row, token_blocks
from .distance import causal, dilated, local_causal, stride, window
from .global_tokens import behind, from_tokens, summary, to_tokens, tokens

VALUES: dict[str, Pattern] = {"full": full, "causal": causal}
RULES: dict[str, Any] = {
    rule.__name__: rule
    for rule in (
        *(window, local_causal, stride, dilated),
        *(block, block_window, block_memory, grid_window, grid_memory, same_row, same_column, random_blocks, token_blocks),
        *(tokens, to_tokens, from_tokens, summary),
        *(per_head, behind),
    )
}
LONGEST = 2000  # characters
LONGEST_RUN = 100_000  # positions are stored one by one
LARGEST = 10**9  # positions are 64-bit numbers, and sums of them must be too


def parse(text: str) -> Pattern:
    """The pattern that `text` describes: names, calls with integers, & | ~ and parentheses.

    >>> parse("causal & (window(3) | tokens(0, -1))")
    causal & (window(3) | tokens(-1, 0))

    Args:
        text: pattern as it prints, of at most 2,000 characters.
    """
    if len(text) > LONGEST:
        raise BadPattern(f"the pattern has {len(text)} characters; expected at most {LONGEST}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's parser warns of odd numbers and escapes; they are refused below
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadPattern(f"{text!r} is not a pattern; write for example: causal & (window(3) | tokens(0))") from error
    try:
        return _pattern(tree, text)
    except RecursionError as error:
        raise BadPattern(f"the pattern of {len(text)} characters is nested too deeply; expected about a hundred levels at most") from error


def _pattern(node: ast.expr, text: str) -> Pattern:
    match node:
        case ast.Name(id=name) if name in VALUES:
            return VALUES[name]
        case ast.Name(id=name) if name in RULES:
            raise BadPattern(f"{name} needs arguments, as in {name}(3): {RULES[name].__doc__.splitlines()[0]}")
        case ast.Name(id=name):
            raise UnknownName("pattern", name, [*VALUES, *RULES])
        case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
            return _pattern(left, text) & _pattern(right, text)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _pattern(left, text) | _pattern(right, text)
        case ast.UnaryOp(op=ast.Invert(), operand=inner):
            return ~_pattern(inner, text)
        case ast.Call(func=ast.Name(id=name)) if name in VALUES:
            raise BadPattern(f"{name} takes no arguments; write {name}")
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=named):
            if name not in RULES:
                raise UnknownName("pattern", name, [*VALUES, *RULES])
            given = [value for argument in arguments for value in _arguments(argument, name, text)]
            options = {str(option.arg): _argument(option.value, name, text) for option in named}
            try:
                made: Pattern = RULES[name](*given, **options)
            except (TypeError, AttributeError) as error:  # a wrong number of arguments, or an integer in place of a pattern
                raise BadPattern(f"`{ast.unparse(node)}` is not how {name} is called: {RULES[name].__doc__.splitlines()[0]}") from error
            return made
    raise BadPattern(f"`{ast.unparse(node)}` in {text!r} is not part of a pattern; expected names, integers, & | ~ and ( )")


def _arguments(node: ast.expr, name: str, text: str) -> list[Any]:
    """One argument, or all of a range of positions: tokens prints them as tokens(*range(0, 64))."""
    match node:
        case ast.Starred(value=ast.Call(func=ast.Name(id="range"), args=[_, _] as ends, keywords=[])) if name != "per_head":
            first, last = (_argument(end, name, text) for end in ends)
            if first is None or last is None or last - first > LONGEST_RUN:
                raise BadPattern(f"`{ast.unparse(node)}` in {text!r}: a range has two ends, and at most {LONGEST_RUN} positions")
            return list(range(first, last))
    return [_argument(node, name, text)]


def _argument(node: ast.expr, name: str, text: str) -> Any:
    if name == "per_head" or (name == "behind" and not isinstance(node, ast.Constant)):
        return _pattern(node, text)
    match node:
        case ast.Constant(value=None):
            return None
        case ast.Constant(value=int(number)) if not isinstance(number, bool) and number <= LARGEST:
            return number
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(number))) if not isinstance(number, bool) and number <= LARGEST:
            return -number
    raise BadPattern(f"`{ast.unparse(node)}` in {text!r}: {name} takes integers up to {LARGEST}")
