"""Base class of patterns, and their combination."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from .._extras import extra
from ..bounds import out_of_bounds
from ..errors import BadConfig, BadPattern, ShapeError

AT_ONCE = 2**20  # rectangles whose bounds are computed together


class Span(NamedTuple):
    """Intervals of positions, both ends included."""

    first: Tensor  # first position of each interval
    last: Tensor  # last position of each interval


class Bounds(NamedTuple):
    """Certain facts about rectangles of pairs, without visiting the pairs."""

    some: Tensor  # False only if no pair is allowed
    every: Tensor  # True only if all pairs are allowed


class Pairs(NamedTuple):
    """Allowed pairs one by one, each once; all of the same length."""

    b: Tensor  # batch rows; zeros if the rule is the same for all
    h: Tensor  # heads; zeros if the rule is the same for all
    i: Tensor  # positions of queries
    j: Tensor  # positions of keys


class Pattern:
    """Rule that says which queries may attend to which keys. Combine with `&`, `|`, `~`; print it to see the rule, `draw(n)` to see the picture."""

    def __post_init__(self) -> None:
        if wrong := out_of_bounds(type(self), vars(self)):
            raise BadConfig(f"{type(self).__name__}: {wrong}")

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """True where query i of head h in batch row b may attend to key j. All four broadcast.

        Args:
            b: batch rows.
            h: heads.
            i: positions of queries.
            j: positions of keys.
        """
        raise NotImplementedError

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        """Bound the rule on rectangles of pairs. The default is certain of nothing, which is always sound.

        Args:
            b: batch rows.
            h: heads.
            i: intervals of query positions.
            j: intervals of key positions.
        """
        shape = torch.broadcast_shapes(b.shape, h.shape, i.first.shape, j.first.shape)
        some = torch.ones(shape, dtype=torch.bool, device=i.first.device)
        return Bounds(some, ~some)

    def fit(self, queries: int, keys: int) -> Pattern:
        """Resolve everything that depends on the two lengths."""
        return self

    def reach(self) -> tuple[int, int] | None:
        """(w, s) if a query attends to no earlier keys but the last w and the first s; None if unbounded.

        A streaming cache may drop the rest.
        """
        return None

    def listed(self, queries: int, keys: int) -> Pairs | None:
        """All allowed pairs, if the rule is a list of them, as of the edges of a graph; None: it has to be asked.

        Args:
            queries: number of queries L.
            keys: number of keys M.
        """
        return None

    @property
    def batch(self) -> int:
        """The number of batch rows that the rule distinguishes: 1 if it is the same for all."""
        return 1

    @property
    def heads(self) -> int:
        """The number of heads that the rule distinguishes: 1 if it is the same for all."""
        return 1

    @property
    def _static(self) -> bool:
        """See `is_static`."""
        return True

    # -- combining ---------------------------------------------------------------------------------------------

    def __and__(self, other: Pattern | str) -> Pattern:
        other = as_pattern(other)
        if isinstance(self, Full) or isinstance(other, Full):
            return other if isinstance(self, Full) else self
        return Both(self, other)

    def __or__(self, other: Pattern | str) -> Pattern:
        other = as_pattern(other)
        return full if isinstance(self, Full) or isinstance(other, Full) else Either(self, other)

    def __rand__(self, other: str) -> Pattern:  # reached only by what is not a pattern
        return as_pattern(other) & self

    def __ror__(self, other: str) -> Pattern:
        return as_pattern(other) | self

    def __invert__(self) -> Pattern:
        return self.rule if isinstance(self, Not) else Not(self)

    # -- showing ------------------------------------------------------------------------------------------------

    def mask(self, queries: int, keys: int, device: torch.device | str | None = None) -> Tensor:
        """The whole rule as booleans `mask_BHLM`; B and H are 1 where the rule is the same for all.

        Args:
            queries: number of queries L.
            keys: number of keys M.
            device: device of the result.
        """
        if min(queries, keys) < 0:
            raise ShapeError(f"a mask of {queries} queries and {keys} keys; expected 0 or more of each")
        pattern = self.fit(queries, keys)
        b, h, i, j = indices(pattern, queries, keys, device)
        return pattern.allows(b, h, i, j).expand(pattern.batch, pattern.heads, queries, keys)

    def draw(self, size: int, keys: int | None = None) -> str:
        """The picture in characters: one line per query, ■ where it may attend. The first batch row; heads below each other."""
        mask_HLM = self.mask(size, keys or size)[0]
        pictures = ["\n".join("".join("■" if cell else "·" for cell in row) for row in head) for head in mask_HLM.tolist()]
        return "\n\n".join(pictures)

    def save_png(self, path: str | Path, size: int = 64, keys: int | None = None) -> Path:
        """The picture as a PNG file: dark where a query (row) may attend to a key (column).

        Args:
            path: file to write.
            size: number of queries.
            keys: number of keys; `size` if not given.
        """
        with extra("look"):
            from matplotlib.figure import Figure  # only when a picture is asked for

        mask_HLM = self.mask(size, keys or size)[0]
        figure = Figure(figsize=(3.4 * len(mask_HLM), 3.7), layout="constrained")
        for h, axis in enumerate(figure.subplots(1, len(mask_HLM), squeeze=False)[0]):
            axis.imshow(mask_HLM[h].numpy(), cmap="Blues", vmin=0, vmax=1.3, interpolation="nearest")
            axis.set_title(f"head {h}" if len(mask_HLM) > 1 else str(self), fontsize=9, wrap=True)
            axis.set_xlabel("key")
            axis.set_ylabel("query")
        if len(mask_HLM) > 1:
            figure.suptitle(str(self), fontsize=9, wrap=True)
        figure.savefig(path, dpi=150)
        return Path(path)

    def _repr_html_(self) -> str:
        return f"<b>{self}</b><pre style='line-height:1.0'>{self.draw(32)}</pre>"

    def __repr__(self) -> str:
        shown: list[str] = [_short(getattr(self, f.name)) for f in fields(self) if f.repr] if is_dataclass(self) else []
        return f"{type(self).__name__}({', '.join(shown)})"


def _short(value: Any) -> str:
    return f"<{'×'.join(map(str, value.shape))}>" if isinstance(value, Tensor) else repr(value)


def indices(pattern: Pattern, queries: int, keys: int, device: torch.device | str | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Index tensors (b, h, i, j) over the whole rule, shaped to broadcast to BHLM."""
    b = torch.arange(pattern.batch, device=device)[:, None, None, None]
    h = torch.arange(pattern.heads, device=device)[:, None, None]
    return b, h, torch.arange(keys - queries, keys, device=device)[:, None], torch.arange(keys, device=device)


def is_static(pattern: Pattern) -> bool:
    """Return whether the rule holds only numbers, no tensors: equal patterns are then interchangeable, and plans may be cached.

    Args:
        pattern: pattern to ask about.
    """
    return pattern._static


def block_summary(pattern: Pattern, queries: int, keys: int, size: int, key_size: int | None = None) -> Tensor:
    """The pattern in blocks of `size` queries × `key_size` keys, (B, H, query blocks, key blocks): 0 empty, 1 partial, 2 full.

    Args:
        pattern: pattern to summarise.
        queries: number of queries.
        keys: number of keys.
        size: queries per block.
        key_size: keys per block; `size` if not given.
    """
    pattern, key_size = pattern.fit(queries, keys), key_size or size
    b, h, _, _ = indices(pattern, 1, 1, None)
    i, j = spans(queries, size, keys - queries), spans(keys, key_size)
    shape = (pattern.batch, pattern.heads, len(i.first), len(j.first))
    if not queries or not keys:
        return torch.zeros(shape, dtype=torch.int8)
    return torch.cat(
        [
            (some.to(torch.int8) + (some & every).to(torch.int8)).expand(*shape[:2], -1, -1)
            for some, every in row_bounds(pattern, b, h, i, j)
        ],
        2,
    )


def row_bounds(pattern: Pattern, b: Tensor, h: Tensor, i: Span, j: Span) -> Iterator[Bounds]:
    """The bounds of runs of rows × blocks of keys, some runs at a time: for 65,536 tokens they take 16 MB per 64-bit number.

    Args:
        pattern: pattern, fitted to the lengths.
        b: batch rows.
        h: heads.
        i: intervals of query positions.
        j: intervals of key positions.

    Shape: b, h and the ends of i and j broadcast with each other.
    """
    size = max(1, AT_ONCE // max(1, len(j.first) * b.numel() * h.numel()))
    for first, last in zip(i.first.split(size), i.last.split(size), strict=True):
        some, every = pattern.bounds(b, h, Span(first[:, None], last[:, None]), j)
        shape = (b.numel(), h.numel(), len(first), len(j.first))
        yield Bounds(some.expand(shape), every.expand(shape))


def spans(length: int, size: int, start: int = 0) -> Span:
    """`length` positions from `start` on, cut into blocks of `size`, the last one perhaps shorter.

    Args:
        length: number of positions.
        size: positions per block.
        start: first position.
    """
    first = torch.arange(0, length, size)
    return Span(first + start, (first + size).clamp(max=length) - 1 + start)


# -- algebra -------------------------------------------------------------------------------------------------------


PatternLike: TypeAlias = "Pattern | str"  # what takes a pattern also takes its text: "causal & window(64)"


def as_pattern(value: Any, who: str = "") -> Pattern:
    """The pattern itself, or the one that a text describes; of anything else, an error that says how to make a pattern of it.

    Args:
        value: pattern, or its text as `parse` reads it.
        who: what takes the pattern, for the error.
    """
    if isinstance(value, Pattern):
        return value
    if isinstance(value, str):
        return _parsed(value)
    raise BadPattern(f"{who and f'{who}: '}expected a pattern, got {type(value).__name__}; {_advice(value)}")


@lru_cache(maxsize=256)
def _parsed(text: str) -> Pattern:
    from ._parse import parse  # it knows all patterns, and so is above this module

    return parse(text)


def _advice(value: Any) -> str:
    if isinstance(value, bool):
        return "for is_causal=True pass causal, for False full"
    if value is None:
        return "pass full, or leave it out, if all keys may be attended to"
    if isinstance(value, Tensor) and value.dtype.is_floating_point:
        return "a float mask is a bias, which is added to the scores: pass bias=mask"
    if not hasattr(value, "shape"):
        return 'write causal & window(64), or its text "causal & window(64)"; wrap a boolean mask (True = may attend) as keep(mask)'
    mask = "mask" if isinstance(value, Tensor) else "torch.as_tensor(mask)"
    if len(value.shape) == 2 and value.shape[0] != value.shape[1]:
        return (
            f"wrap a boolean mask (queries, keys), True = may attend, as keep({mask}), and one that marks real tokens (batch, keys) as "
            f"keep({mask}[:, None, None, :])"
        )
    return f"wrap a boolean mask (True = may attend) as keep({mask})"


def join(sizes: tuple[int, int], what: str, pattern: Pattern) -> int:
    different = {*sizes} - {1}
    if len(different) > 1:
        raise ShapeError(f"`{pattern}` combines rules for {sizes[0]} and {sizes[1]} {what}; expected the same number, or 1")
    return different.pop() if different else 1


def broadcast(index: Tensor, size: int) -> Tensor:
    """Batch rows or heads as an index into something of this size: 1 is the same for all."""
    return index * 0 if size == 1 else index


@dataclass(frozen=True, repr=False)
class _Pair(Pattern):
    left: Pattern
    right: Pattern

    def __post_init__(self) -> None:
        _ = self.batch, self.heads  # raises where the two do not match

    def fit(self, queries: int, keys: int) -> Pattern:
        return type(self)(self.left.fit(queries, keys), self.right.fit(queries, keys))

    @property
    def batch(self) -> int:
        return join((self.left.batch, self.right.batch), "batch rows", self)

    @property
    def heads(self) -> int:
        return join((self.left.heads, self.right.heads), "heads", self)

    @property
    def _static(self) -> bool:
        return self.left._static and self.right._static


class Both(_Pair):
    """Allowed by both.

    Args:
        left: one rule.
        right: the other rule.
    """

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.left.allows(b, h, i, j) & self.right.allows(b, h, i, j)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        left, right = self.left.bounds(b, h, i, j), self.right.bounds(b, h, i, j)
        return Bounds(left.some & right.some, left.every & right.every)

    def reach(self) -> tuple[int, int] | None:
        known = [r for r in (self.left.reach(), self.right.reach()) if r is not None]
        return min(known) if known else None

    def listed(self, queries: int, keys: int) -> Pairs | None:
        """The pairs of one rule that the other allows."""
        for one, other in ((self.left, self.right), (self.right, self.left)):
            if (pairs := one.listed(queries, keys)) is not None:
                pairs = _spread(pairs, one, self.batch, self.heads)
                return _chosen(pairs, other.allows(*pairs))
        return None

    def __repr__(self) -> str:
        right = f"({self.right})" if isinstance(self.right, _Pair) else repr(self.right)  # & groups from the left when parsed
        return f"({self.left}) & {right}" if isinstance(self.left, Either) else f"{self.left} & {right}"


class Either(_Pair):
    """Allowed by one or the other.

    Args:
        left: one rule.
        right: the other rule.
    """

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.left.allows(b, h, i, j) | self.right.allows(b, h, i, j)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        left, right = self.left.bounds(b, h, i, j), self.right.bounds(b, h, i, j)
        return Bounds(left.some | right.some, left.every | right.every)

    def reach(self) -> tuple[int, int] | None:
        left, right = self.left.reach(), self.right.reach()
        return None if left is None or right is None else (max(left[0], right[0]), max(left[1], right[1]))

    def listed(self, queries: int, keys: int) -> Pairs | None:
        """The pairs of both rules, where both are lists."""
        left, right = self.left.listed(queries, keys), self.right.listed(queries, keys)
        if left is None or right is None:
            return None
        left, right = (_spread(pairs, rule, self.batch, self.heads) for pairs, rule in ((left, self.left), (right, self.right)))
        right = _chosen(right, ~self.left.allows(*right))
        return Pairs(*(torch.cat([one, two.to(one.device)]) for one, two in zip(left, right, strict=True)))

    def __repr__(self) -> str:
        return f"{self.left} | ({self.right})" if isinstance(self.right, Either) else f"{self.left} | {self.right}"


def _spread(pairs: Pairs, rule: Pattern, batch: int, heads: int) -> Pairs:
    """The pairs of a rule, once for each batch row and each head if the rule does not distinguish them."""
    if batch > rule.batch:
        b = torch.arange(batch, device=pairs.i.device).repeat_interleave(len(pairs.i))
        pairs = Pairs(b, *(x.repeat(batch) for x in pairs[1:]))
    if heads > rule.heads:
        h = torch.arange(heads, device=pairs.i.device).repeat_interleave(len(pairs.i))
        b, _, i, j = (x.repeat(heads) for x in pairs)
        pairs = Pairs(b, h, i, j)
    return pairs


def _chosen(pairs: Pairs, chosen_E: Tensor) -> Pairs:
    return Pairs(*(x[chosen_E.expand(x.shape)] for x in pairs))


class Derived(Pattern):
    """Made of another rule: for as many batch rows and heads, and static if that is."""

    rule: Pattern

    @property
    def batch(self) -> int:
        return self.rule.batch

    @property
    def heads(self) -> int:
        return self.rule.heads

    @property
    def _static(self) -> bool:
        return self.rule._static


@dataclass(frozen=True, repr=False)
class Not(Derived):
    """Allowed where the other rule is not.

    Args:
        rule: the rule to negate.
    """

    rule: Pattern

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return ~self.rule.allows(b, h, i, j)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        some, every = self.rule.bounds(b, h, i, j)
        return Bounds(~every, ~some)

    def fit(self, queries: int, keys: int) -> Pattern:
        return Not(self.rule.fit(queries, keys))

    def __repr__(self) -> str:
        return f"~({self.rule})" if isinstance(self.rule, _Pair) else f"~{self.rule}"


@dataclass(frozen=True, repr=False)
class Full(Pattern):
    """All queries may attend to all keys."""

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        shape = torch.broadcast_shapes(b.shape, h.shape, i.shape, j.shape)
        return torch.ones(shape, dtype=torch.bool, device=i.device)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        every = self.allows(b, h, i.first, j.first)
        return Bounds(every, every)

    def __repr__(self) -> str:
        return "full"


full = Full()


@dataclass(frozen=True, repr=False, init=False)
class per_head(Pattern):
    """Head h follows the h-th rule.

    Args:
        rules: one pattern per head; heads in order.
    """

    rules: tuple[Pattern, ...]

    def __init__(self, *rules: PatternLike):
        patterns = tuple(map(as_pattern, rules))
        if not patterns or any(rule.heads != 1 for rule in patterns):
            raise ShapeError(
                f"per_head got {len(rules)} rules for {[rule.heads for rule in patterns]} heads; expected one or more rules, each for a single head"
            )
        object.__setattr__(self, "rules", patterns)

    @property
    def heads(self) -> int:
        return len(self.rules)

    @property
    def batch(self) -> int:
        return reduce(lambda size, rule: join((size, rule.batch), "batch rows", self), self.rules, 1)

    @property
    def _static(self) -> bool:
        return all(rule._static for rule in self.rules)

    def fit(self, queries: int, keys: int) -> Pattern:
        return per_head(*(rule.fit(queries, keys) for rule in self.rules))

    def listed(self, queries: int, keys: int) -> Pairs | None:
        """The pairs of all heads, where each rule is a list."""
        parts: list[Pairs] = []
        for head, rule in enumerate(self.rules):
            if (pairs := rule.listed(queries, keys)) is None:
                return None
            b, _, i, j = _spread(pairs, rule, self.batch, 1)
            parts.append(Pairs(b, torch.full_like(i, head), i, j))
        return Pairs(*(torch.cat(each) for each in zip(*parts, strict=True)))

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        h = broadcast(h, self.heads)
        mine = ((h == n) & self.rules[n].allows(b, h, i, j) for n in self._heads_in(h))
        return reduce(torch.Tensor.bitwise_or, mine, self._nothing(b, h, i, j))

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        h = broadcast(h, self.heads)
        each = [((h == n), self.rules[n].bounds(b, h, i, j)) for n in self._heads_in(h)]
        nothing = self._nothing(b, h, i.first, j.first)
        some, every = (reduce(torch.Tensor.bitwise_or, ((mine & known[x]) for mine, known in each), nothing) for x in (0, 1))
        return Bounds(some, every)

    def _nothing(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.zeros(torch.broadcast_shapes(b.shape, h.shape, i.shape, j.shape), dtype=torch.bool, device=i.device)

    def _heads_in(self, h: Tensor) -> Sequence[int]:
        """The heads in `h`: a plan asks for one group at a time; the scalar of a GPU kernel cannot be read."""
        return range(self.heads) if h.dim() == 0 else torch.unique(h).tolist()

    def reach(self) -> tuple[int, int] | None:
        all_known = [rule.reach() for rule in self.rules]
        return None if None in all_known else tuple(max(pair) for pair in zip(*all_known, strict=True))

    def __repr__(self) -> str:
        return f"per_head({', '.join(map(repr, self.rules))})"


def floor(x: Tensor, size: int) -> Tensor:
    return x.div(size, rounding_mode="floor")


def rectangles(mask_BHLM: Tensor, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
    """Exact bounds of a boolean table, by counting: one pass of cumulative sums, then four look-ups per count."""
    corner = torch.nn.functional.pad(mask_BHLM.cpu().to(torch.int32), (1, 0, 1, 0)).cumsum(-1).cumsum(-2)
    top, bottom, left, right = i.first, i.last + 1, j.first, j.last + 1
    count = corner[b, h, bottom, right] - corner[b, h, top, right] - corner[b, h, bottom, left] + corner[b, h, top, left]
    return Bounds(count > 0, count == (bottom - top) * (right - left))
