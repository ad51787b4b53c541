"""Biases added to the scores, computed tile by tile so that it need never exist as a whole."""

from __future__ import annotations

import torch
from torch import Tensor


class Bias:
    """A bias b(i, j) computed from a few tensors, such as a slope or a table of buckets per head.

    `tile` must depend on `self.tensors` only through its last arguments: the backward pass calls it again, tile by tile,
    and so a learned bias costs the memory of its parameters, not of the L × M matrix.
    """

    tensors: tuple[Tensor, ...] = ()
    by_distance: bool = False  # it depends on i − j alone: one tile then serves all tiles with the same distances

    def tile(self, i: Tensor, j: Tensor, *tensors: Tensor) -> Tensor:
        """The bias b(i, j) of query positions i and key positions j: (H, len(i), len(j)), or the same with a batch dimension.

        Args:
            i: positions of queries.
            j: positions of keys.
            *tensors: parameters, as `tensors` gives them.
        """
        raise NotImplementedError

    def of(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, *tensors: Tensor) -> Tensor | None:
        """The bias of single pairs: batch row b, head h, query position i, key position j, which broadcast; None: it is known by tiles only.

        Args:
            b: batch rows.
            h: heads.
            i: positions of queries.
            j: positions of keys.
            *tensors: parameters, as `tensors` gives them.
        """
        return None

    def whole(self, queries: int, keys: int, device: torch.device) -> Tensor:
        """All of it, (1 or B, 1 or H, L, M): for definitions and pictures.

        Args:
            queries: number of queries L.
            keys: number of keys M.
            device: device of the result.
        """
        i, j = torch.arange(keys - queries, keys, device=device), torch.arange(keys, device=device)
        return to_4d(self.tile(i, j, *self.tensors))


class Matrix(Bias):
    """A bias given as a tensor, (…, L, M), broadcast to (B, H, L, M)."""

    def __init__(self, matrix: Tensor, queries: int, keys: int):
        self.tensors = (matrix,)
        self.start = keys - queries

    def tile(self, i: Tensor, j: Tensor, *tensors: Tensor) -> Tensor:
        (matrix,) = tensors
        if matrix.shape[-2] > 1:
            matrix = _select(matrix, -2, i - self.start)
        return _select(matrix, -1, j) if matrix.shape[-1] > 1 else matrix.expand(*matrix.shape[:-1], len(j))

    def of(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, *tensors: Tensor) -> Tensor:
        matrix = to_4d(tensors[0])
        at = (index if size > 1 else index * 0 for index, size in zip((b, h, i - self.start, j), matrix.shape, strict=True))
        return matrix[tuple(at)]


class BiasAtPositions(Bias):
    """A bias by position, for queries and keys at the positions `queries` and `keys`, not 0, 1, 2 …

    Args:
        bias: bias by position.
        queries: positions of the queries.
        keys: positions of the keys.
    """

    def __init__(self, bias: Bias, queries: Tensor, keys: Tensor):
        self.bias, self.queries, self.keys, self.tensors = bias, queries, keys, bias.tensors

    def tile(self, i: Tensor, j: Tensor, *tensors: Tensor) -> Tensor:
        row = i + (len(self.queries) - len(self.keys))
        return self.bias.tile(self.queries.to(i.device)[row], self.keys.to(j.device)[j], *tensors)

    def of(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, *tensors: Tensor) -> Tensor | None:
        row = i + (len(self.queries) - len(self.keys))
        return self.bias.of(b, h, self.queries.to(i.device)[row], self.keys.to(j.device)[j], *tensors)


class EdgeBias(Bias):
    """A bias that is given for each edge of a graph, and 0 for all other pairs: what edge features become.

    Args:
        pairs: query and key of each edge, as `edges` takes them; of an edge that is listed twice the first counts.
        values_EH: bias of each edge, per head.

    Shape: pairs (2, E), values_EH.
    """

    def __init__(self, pairs: Tensor, values_EH: Tensor):
        code_E, order_E = torch.sort((pairs[0].long() << 32) + pairs[1], stable=True)
        self.code_E, self.tensors = code_E, (values_EH[order_E],)

    def tile(self, i: Tensor, j: Tensor, *tensors: Tensor) -> Tensor:
        h = torch.arange(tensors[0].shape[1], device=i.device)[:, None, None]
        return self._look_up(h, i[:, None], j, tensors[0])

    def of(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, *tensors: Tensor) -> Tensor:
        return self._look_up(h, i, j, tensors[0])

    def _look_up(self, h: Tensor, i: Tensor, j: Tensor, values_EH: Tensor) -> Tensor:
        wanted, known = (i << 32) + j, self.code_E.to(i.device)
        if not len(known):
            return values_EH.new_zeros(torch.broadcast_shapes(wanted.shape, h.shape))
        at = torch.searchsorted(known, wanted).clamp(max=len(known) - 1)
        return values_EH[at, h] * (known[at] == wanted)


class Sum(Bias):
    """The sum of two biases."""

    def __init__(self, one: Bias, two: Bias):
        self.one, self.two, self.tensors = one, two, (*one.tensors, *two.tensors)
        self.by_distance = one.by_distance and two.by_distance

    def tile(self, i: Tensor, j: Tensor, *tensors: Tensor) -> Tensor:
        first = len(self.one.tensors)
        return to_4d(self.one.tile(i, j, *tensors[:first])) + to_4d(self.two.tile(i, j, *tensors[first:]))

    def of(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor, *tensors: Tensor) -> Tensor | None:
        first = len(self.one.tensors)
        one, two = self.one.of(b, h, i, j, *tensors[:first]), self.two.of(b, h, i, j, *tensors[first:])
        return None if one is None or two is None else one + two


def add_bias(one: Tensor | Bias | None, two: Tensor | Bias | None, queries: int, keys: int) -> Tensor | Bias | None:
    """The sum of both as one bias, for this many queries and keys; either may be None.

    Args:
        one: a bias, or None.
        two: another bias, or None.
        queries: number of queries L.
        keys: number of keys M.

    Shape: tensors broadcast to (B, H, L, M).
    """
    if one is None or two is None:
        return two if one is None else one
    return Sum(*(Matrix(x, queries, keys) if isinstance(x, Tensor) else x for x in (one, two)))


def _select(x: Tensor, axis: int, index: Tensor) -> Tensor:
    if len(index) and int(index[-1] - index[0]) + 1 == len(index):
        return x.narrow(axis, int(index[0]), len(index))
    return x.index_select(axis, index)


def to_4d(bias: Tensor) -> Tensor:
    """Add leading dimensions of size 1 up to (B, H, L, M)."""
    return bias[(None,) * (4 - bias.dim())]
