"""Rules that depend on the input: padding, packed documents, masks, graphs, positions other than 0, 1, 2 …"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import DtypeError, ShapeError
from ._base import Both, Bounds, Derived, Pairs, Pattern, Span, as_pattern, broadcast, full, join, rectangles


@dataclass(frozen=True, repr=False, eq=False)
class _Data(Pattern):
    @property
    def _static(self) -> bool:
        return False


@dataclass(frozen=True, repr=False, eq=False)
class lengths(_Data):
    """Padding: batch row b has `keys[b]` real keys; the rest is excluded.

    Args:
        keys: number of real keys of each batch row.

    Shape: keys (B,).
    """

    keys: Tensor

    def __init__(self, keys: Tensor | Sequence[int]):
        object.__setattr__(self, "keys", _integers("lengths", keys, (1,), "one integer per batch row; for a boolean mask use keep(mask)"))

    @property
    def batch(self) -> int:
        return len(self.keys)

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j < self.keys.to(j.device)[broadcast(b, self.batch)]) & (i == i)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        keys = self.keys.to(j.first.device)[broadcast(b, self.batch)]
        return Bounds(j.first < keys, j.last < keys)


@dataclass(frozen=True, repr=False, eq=False)
class since(_Data):
    """Batch row b attends to nothing before position `first[b]`: a stream that restarted there, or padding on the left.

    Args:
        first: first position that each batch row attends to.

    Shape: first (B,).
    """

    first: Tensor

    def __init__(self, first: Tensor | Sequence[int]):
        object.__setattr__(self, "first", _integers("since", first, (1,), "one integer per batch row"))

    @property
    def batch(self) -> int:
        return len(self.first)

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j >= self.first.to(j.device)[broadcast(b, self.batch)]) & (i == i)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        first = self.first.to(j.first.device)[broadcast(b, self.batch)]
        return Bounds(j.last >= first, j.first >= first)


class Padding(NamedTuple):
    """A rule within a range of keys per batch row, first ≤ key < stop."""

    rule: Pattern
    first_B: Tensor
    stop_B: Tensor


def padding_of(pattern: Pattern, keys: int) -> Padding | None:
    """Take a conjunction such as `causal & lengths(n)` apart into a rule and a range of keys per batch row; None if it has no range.

    Args:
        pattern: pattern to take apart.
        keys: number of keys.
    """
    parts, rules, ends = [pattern], list[Pattern](), list[tuple[Tensor | int, Tensor | int]]()
    while parts:
        part = parts.pop()
        if isinstance(part, Both):
            parts += [part.right, part.left]
        elif isinstance(part, lengths):
            ends.append((0, part.keys.cpu()))
        elif isinstance(part, since):
            ends.append((part.first.cpu(), keys))
        else:
            rules.append(part)
    if not ends:
        return None
    firsts, stops = (torch.stack(torch.broadcast_tensors(*map(torch.as_tensor, each))) for each in zip(*ends, strict=True))
    first_B, stop_B = torch.broadcast_tensors(firsts.amax(0).clamp(min=0), stops.amin(0).clamp(max=keys))
    return Padding(reduce(and_, rules, full), first_B, stop_B)


@dataclass(frozen=True, repr=False)
class from_row_start(Derived):
    """Batch row b starts at position `first[b]`: keys before it are excluded, and the rule counts from there.

    Args:
        rule: rule by position, counted from the first position of a row.
        first: first position of each batch row.

    Shape: first (B,).
    """

    rule: Pattern
    first: tuple[int, ...]

    @property
    def batch(self) -> int:
        return join((self.rule.batch, len(self.first)), "batch rows", self)

    def fit(self, queries: int, keys: int) -> Pattern:
        return from_row_start(self.rule.fit(queries, keys), self.first)

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        first = torch.tensor(self.first, dtype=torch.long, device=j.device)[broadcast(b, len(self.first))]
        i, j = i - first, j - first
        # clamp to 0: rules backed by a table must not be indexed before the row's start
        return self.rule.allows(b, h, i.clamp(min=0), j.clamp(min=0)) & (i >= 0) & (j >= 0)

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        first = torch.tensor(self.first, dtype=torch.long, device=j.first.device)[broadcast(b, len(self.first))]
        i, j = Span(i.first - first, i.last - first), Span(j.first - first, j.last - first)
        # rules backed by a table may not handle rectangles that differ by batch row
        known = self.rule.bounds if self._static else super().bounds
        some, every = known(b, h, *(Span(*(end.clamp(min=0) for end in x)) for x in (i, j)))
        return Bounds(some & (i.last >= 0) & (j.last >= 0), every & (i.first >= 0) & (j.first >= 0))

    def reach(self) -> tuple[int, int] | None:
        reach = self.rule.reach()
        return None if reach is None or reach[1] else reach  # the first keys of a row are not the first keys of the batch

    def __repr__(self) -> str:
        return repr(self.rule)


@dataclass(frozen=True, repr=False, eq=False)
class segments(_Data):
    """Documents packed in one row: only pairs with the same id attend to each other. `ids` is (M,) or (B, M).

    Queries from another sequence than the keys have ids of their own, `query_ids`. Without them, a query before the first key is in no
    document.

    Args:
        ids: document of each key.
        query_ids: document of each query, where queries are another sequence; None: they are the last of the keys.

    Shape: ids (M,) or (B, M); query_ids (L,) or (B, L).
    """

    ids: Tensor
    query_ids: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("ids", "query_ids"):
            if (ids := getattr(self, name)) is not None:
                object.__setattr__(self, name, _integers("segments", ids, (1, 2), "integers (M,) or (B, M)"))
        _ = self.batch  # raises where the two do not match

    @property
    def _queries(self) -> Tensor:
        return self.ids if self.query_ids is None else self.query_ids

    @property
    def batch(self) -> int:
        keys, queries = (1 if x.dim() == 1 else len(x) for x in (self.ids, self._queries))
        return join((keys, queries), "batch rows", self)

    def fit(self, queries: int, keys: int) -> Pattern:
        if keys > self.ids.shape[-1] or (self.query_ids is not None and queries > self.query_ids.shape[-1]):
            raise ShapeError(f"{self} is too small for {queries} queries and {keys} keys; expected an id for each")
        return self

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        i = i + self._shift
        return (_pick(self._queries, b, i.clamp(min=0)) == _pick(self.ids, b, j)) & (i >= 0)

    @property
    def _shift(self) -> int:  # from the position of a query to its index in query_ids
        return self._queries.shape[-1] - self.ids.shape[-1]

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        (i_low, i_high), (j_low, j_high) = _extremes(self._queries, b, i, self._shift), _extremes(self.ids, b, j, 0)
        every = (i_low == i_high) & (j_low == j_high) & (i_low == j_low) & (i.first + self._shift >= 0)
        return Bounds((i_low <= j_high) & (j_low <= i_high), every)


@dataclass(frozen=True, repr=False, eq=False)
class keep(_Data):
    """Any boolean mask, True = may attend: (L, M), or (B, H, L, M) with 1 where it is the same for all.

    Args:
        allowed: boolean mask, True where a query may attend.

    Shape: allowed (L, M), or (B, H, L, M) with 1 where it is the same for all.
    """

    allowed: Tensor
    keys: int | None = field(default=None, repr=False)  # their number, set by `fit`

    def __post_init__(self) -> None:
        object.__setattr__(self, "allowed", _tensor("keep", self.allowed))
        if self.allowed.dtype != torch.bool:
            raise DtypeError(
                f"keep got {self.allowed.dtype}; expected booleans, True = may attend; a float mask is a bias: attention(..., bias=mask)"
            )
        if self.allowed.dim() not in (2, 4):
            raise ShapeError(
                f"keep got shape {tuple(self.allowed.shape)}; expected (L, M) or (B, H, L, M); for padding use lengths(n), or mask[:, None, None, :]"
            )

    @property
    def batch(self) -> int:
        return self.allowed.shape[0] if self.allowed.dim() == 4 else 1

    @property
    def heads(self) -> int:
        return self.allowed.shape[1] if self.allowed.dim() == 4 else 1

    @property
    def _mask_BHLM(self) -> Tensor:
        return self.allowed if self.allowed.dim() == 4 else self.allowed[None, None]

    def fit(self, queries: int, keys: int) -> Pattern:
        L, M = self.allowed.shape[-2:]
        first = 0 if L == 1 else keys - queries + L - (keys if M == 1 else M)  # row of the first query
        if (M != 1 and keys > M) or first < 0:
            padding = "; a mask that marks real tokens, (batch, keys), is keep(mask[:, None, None, :])" if self.allowed.dim() == 2 else ""
            raise ShapeError(
                f"keep<{L}×{M}> is too small for {queries} queries and {keys} keys; expected a mask (queries, keys), or "
                f"(batch, heads, queries, keys){padding}"
            )
        return keep(self.allowed, keys) if M == 1 else self

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        mask = self._mask_BHLM.to(i.device)
        B, H, L, M = mask.shape
        if M == 1:
            i = i + 1 - (L if self.keys is None else self.keys)  # its column is the last key's
        return mask[broadcast(b, B), broadcast(h, H), broadcast(i + L - M, L), broadcast(j, M)]

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        B, H, L, M = self._mask_BHLM.shape
        if L == 1 or M == 1:
            return super().bounds(b, h, i, j)
        i = Span(i.first + L - M, i.last + L - M)
        return rectangles(self._mask_BHLM, broadcast(b, B), broadcast(h, H), i, j)


@dataclass(frozen=True, repr=False, eq=False)
class edges(_Data):
    """A graph: node i may attend to node j if (i, j) is among the `pairs`, a (2, E) tensor of query and key nodes.

    Args:
        pairs: query and key node of each edge.

    Shape: pairs (2, E).
    """

    pairs: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "pairs", _integers("edges", self.pairs, (2,), "integers (2, E)"))
        if self.pairs.shape[0] != 2 or (self.pairs < 0).any():
            raise ShapeError(
                f"edges got shape {tuple(self.pairs.shape)} from {self.pairs.min() if self.pairs.numel() else 0}; "
                "expected integers (2, E), from 0"
            )

    def _known(self, device: torch.device) -> Tensor:
        """One number per edge, i·2³² + j, sorted, each once."""
        i, j = self.pairs.to(device, torch.long)
        return torch.unique((i << 32) + j)

    def listed(self, queries: int, keys: int) -> Pairs:
        """The edges between nodes that are there."""
        known = self._known(self.pairs.device)
        i, j = known >> 32, known & 0xFFFFFFFF
        there = (i >= keys - queries) & (i < keys) & (j < keys)
        i, j = i[there], j[there]
        return Pairs(torch.zeros_like(i), torch.zeros_like(i), i, j)

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        wanted, known = (i << 32) + j, self._known(i.device)
        if not len(known):
            return torch.zeros_like(wanted, dtype=torch.bool)
        return known[torch.searchsorted(known, wanted).clamp(max=len(known) - 1)] == wanted

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        pairs = torch.unique(self.pairs.cpu(), dim=1)
        rows, columns = (x.first.flatten() for x in (i, j))
        row, column = (torch.searchsorted(first, x.contiguous(), right=True) - 1 for first, x in zip((rows, columns), pairs, strict=True))
        inside = (row >= 0) & (column >= 0)
        inside &= (pairs[0] <= i.last.flatten()[row]) & (pairs[1] <= j.last.flatten()[column])
        count = torch.bincount((row * len(columns) + column)[inside], minlength=len(rows) * len(columns))
        count = count.view(len(rows), len(columns))
        return Bounds(count > 0, count == (i.last - i.first + 1) * (j.last - j.first + 1))


@dataclass(frozen=True, repr=False, eq=False)
class at_positions(_Data, Derived):
    """A rule by position, for queries and keys at the positions `queries` and `keys` (both increasing), not 0, 1, 2 …

    Args:
        rule: rule by position.
        queries: position of each query, increasing.
        keys: position of each key, increasing.

    Shape: queries (L,), keys (M,).
    """

    rule: Pattern
    queries: Tensor
    keys: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "rule", as_pattern(self.rule))

    @property
    def _shift(self) -> int:
        return len(self.queries) - len(self.keys)

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.rule.allows(b, h, self.queries.to(i.device)[i + self._shift], self.keys.to(j.device)[j])

    def bounds(self, b: Tensor, h: Tensor, i: Span, j: Span) -> Bounds:
        queries, keys = self.queries.to(i.first.device), self.keys.to(j.first.device)
        return self.rule.bounds(b, h, Span(*(queries[x + self._shift] for x in i)), Span(*(keys[x] for x in j)))

    def __repr__(self) -> str:
        return repr(self.rule)


def _tensor(rule: str, values: Any) -> Tensor:
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DtypeError(f"{rule} got {type(values).__name__}; expected a tensor") from error


def _integers(rule: str, values: Any, dims: tuple[int, ...], expected: str) -> Tensor:
    x = _tensor(rule, values)
    if not x.numel() and not isinstance(values, Tensor):
        x = x.long()  # PyTorch makes floats of an empty list
    if x.dim() not in dims or x.dtype.is_floating_point or x.dtype.is_complex or x.dtype == torch.bool:
        raise ShapeError(f"{rule} got {x.dtype} of shape {tuple(x.shape)}; expected {expected}")
    return x


def _pick(ids: Tensor, b: Tensor, x: Tensor) -> Tensor:
    if not ids.shape[-1]:
        ids = ids.new_zeros(*ids.shape[:-1], 1)  # there is nothing to pick from, and no position asks for it
    ids = ids.to(x.device)
    return ids[x] if ids.dim() == 1 else ids[broadcast(b, len(ids)), x]


def _extremes(ids: Tensor, b: Tensor, x: Span, shift: int) -> tuple[Tensor, Tensor]:
    """Smallest and largest id inside each interval; there are few intervals, so each is visited. Of one outside: none, so that low > high."""
    ids, most = ids.cpu(), torch.iinfo(ids.dtype)
    ends = zip((x.first.flatten() + shift).clamp(min=0).tolist(), (x.last.flatten() + shift + 1).clamp(min=0).tolist(), strict=True)
    low, high = (ids.new_full((*ids.shape[:-1], x.first.numel()), none) for none in (most.max, most.min))
    for n, (first, last) in enumerate(ends):
        if first < last:
            low[..., n], high[..., n] = ids[..., first:last].amin(-1), ids[..., first:last].amax(-1)
    if ids.dim() == 1:
        return low.view(x.first.shape), high.view(x.first.shape)
    b = broadcast(b, len(ids)).cpu().flatten()
    shape = (len(b), 1, *([1] * (2 - x.first.dim())), *x.first.shape)
    return low[b].view(shape), high[b].view(shape)
