"""One map in pieces: pooled tiles, exact rows and columns, statistics. Nothing is computed before it is read.

A tile is 256 × 256 cells of one level. Level 0 has the weights themselves; a cell of level n is the weight of largest magnitude among 2ⁿ × 2ⁿ, so
that thin lines stay visible from afar. The bytes of a tile:

    float32 low, float32 high (little-endian), then one uint8 per cell, row by row:   weight = low + cell / 255 · (high − low)

Weights are read in bands of rows, all heads at once, because that is how a mechanism computes them; the tiles of a band are kept.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import BadPattern, UnknownName
from ..patterns import Pattern, parse
from .map import Map

TILE = 256  # cells per side
CHUNK = 2**21  # weights that are computed at once, all heads together
KEPT = 64 * 2**20  # bytes of tiles that are kept per map


class TileReader:
    """Reads one batch row of a map. Heads are counted as in `map.heads`; one more is their mean, if there are several."""

    def __init__(self, m: Map, batch: int = 0):
        self.map, self.batch = m, batch
        self.rows, self.columns = len(m.rows), len(m.columns)
        self.heads = len(m.heads) + (len(m.heads) > 1)
        self.levels = 1
        while max(self.rows, self.columns) > TILE << (self.levels - 1):
            self.levels += 1
        self._kept: OrderedDict[tuple[int, int, int, int], bytes] = OrderedDict()
        self._bytes = 0
        self._statistics: dict[str, Any] | None = None
        self._maxima_HL: Tensor | None = None

    # -- pieces --------------------------------------------------------------------------------------------------------

    def tile(self, head: int, level: int, i: int, j: int) -> bytes:
        """The tile in band i and column j of a level."""
        self._check("head", head, self.heads)
        self._check("level", level, self.levels)
        self._check("band", i, -(-self.rows // (TILE << level)))
        self._check("column of tiles", j, -(-self.columns // (TILE << level)))
        key = (head, level, i, j)
        if key not in self._kept:
            self._read_band(level, i)
        self._kept.move_to_end(key)
        return self._kept[key]

    def values(self, head: int, first: int, last: int) -> Tensor:
        """The weights of some rows, exactly, as float32."""
        self._check("head", head, self.heads)
        self._check("row", first, self.rows)
        self._check("row", last - 1, self.rows)
        return torch.cat([part_HLM[head] for _, part_HLM in self._bands(first, max(last, first + 1))])

    def column(self, head: int, j: int) -> Tensor:
        """The weights of all queries on one key, exactly, as float32."""
        self._check("head", head, self.heads)
        self._check("column", j, self.columns)
        return torch.cat([part_HLM[head, :, j] for _, part_HLM in self._bands(0, self.rows)])

    def maxima(self, head: int) -> Tensor:
        """The largest magnitude in each row."""
        self._check("head", head, self.heads)
        self.statistics()
        assert self._maxima_HL is not None
        return self._maxima_HL[head]

    def statistics(self) -> dict[str, Any]:
        """Statistics per head, the mean of heads last: largest weight, entropy (nats), mean distance (positions), share of the first key ("sink").

        Means over the rows that are not all zero, each scaled to sum to one by magnitude. Rows whose only allowed key is the first are left out
        of the share, as they have no choice.
        """
        if self._statistics is None:
            m = self.map
            position_L = torch.tensor(m.rows) + (m.keys - m.queries)
            position_M = torch.tensor(m.columns)
            sums, maxima = torch.zeros(4, self.heads, dtype=torch.float64), []
            low, high = torch.full((self.heads,), torch.inf), torch.full((self.heads,), -torch.inf)
            for first, part_HLM in self._bands(0, self.rows):
                size_HLM = part_HLM.abs()
                maxima.append(size_HLM.amax(-1))
                low, high = torch.minimum(low, part_HLM.amin((1, 2))), torch.maximum(high, part_HLM.amax((1, 2)))
                total_HL = size_HLM.sum(-1)
                nonzero_HL = total_HL > 0
                share_HLM = size_HLM / total_HL.masked_fill(~nonzero_HL, 1)[..., None]
                apart_LM = (position_L[first : first + part_HLM.shape[1], None] - position_M).abs().float()
                choice_HL = nonzero_HL & ((size_HLM > 0).sum(-1) > 1)
                sums += torch.stack(
                    [
                        nonzero_HL.sum(-1).double(),
                        (torch.special.entr(share_HLM).sum(-1) * nonzero_HL).sum(-1).double(),
                        ((share_HLM * apart_LM).sum(-1) * nonzero_HL).sum(-1).double(),
                        (share_HLM[..., 0] * choice_HL).sum(-1).double(),
                    ]
                )
            self._maxima_HL = torch.cat(maxima, 1)
            choices = ((self._maxima_HL > 0).sum(-1) - 1).clamp(min=1)
            count = sums[0].clamp(min=1)
            self._statistics = {
                "low": low.tolist(),
                "high": high.tolist(),
                "entropy": (sums[1] / count).tolist(),
                "distance": (sums[2] / count).tolist(),
                "sink": (sums[3] / choices).clamp(max=1).tolist(),
            }
        return self._statistics

    # -- what is allowed -----------------------------------------------------------------------------------------------

    def pattern(self) -> Pattern | None:
        """The pattern of the call: kept with its inputs, or parsed from its description; None if that is not possible."""
        if self.map.inputs is not None:
            return self.map.inputs.observed.pattern
        try:
            return parse(self.map.pattern)
        except (BadPattern, UnknownName):
            return None

    def allowed(self, head: int, level: int, i: int, j: int) -> bytes:
        """The tile of the pattern: 255 where some pair of the block is allowed."""
        pattern = self.pattern()
        self._check("pattern", 0, int(pattern is not None))
        assert pattern is not None
        self._check("level", level, self.levels)
        side, m = TILE << level, self.map
        rows, columns = m.rows[i * side : (i + 1) * side], m.columns[j * side : (j + 1) * side]
        self._check("band", 0, len(rows))
        self._check("column of tiles", 0, len(columns))
        fitted = pattern.fit(m.queries, m.keys)
        batch, at = min(self.batch, fitted.batch - 1), torch.tensor(columns)
        heads = torch.arange(fitted.heads) if head >= len(m.heads) else torch.tensor([m.heads[head] % fitted.heads])
        parts, step = [], max(256, 1 << level)
        for start in range(0, len(rows), step):
            position = torch.tensor(rows[start : start + step]) + (m.keys - m.queries)
            mask = fitted.allows(torch.tensor([[[[batch]]]]), heads[:, None, None], position[:, None], at)
            mask = mask.expand(1, len(heads), len(position), len(at)).any(1)[0]
            parts.append(_pool(mask.float(), level))
        return _encode(torch.cat(parts), 0.0, 1.0)

    # -- reading -------------------------------------------------------------------------------------------------------

    def _bands(self, first: int, last: int, step: int | None = None) -> Iterator[tuple[int, Tensor]]:
        """The weights, all heads and their mean, a few rows at a time: (first row, part_HLM)."""
        rows = max(1, CHUNK // max(self.heads * self.columns, 1))
        rows = rows if step is None else max(step, rows // step * step)
        for start in range(first, last, rows):
            part_HLM = self.map.read(start, min(start + rows, last), self.batch)
            yield start, part_HLM if self.heads == 1 else torch.cat([part_HLM, part_HLM.mean(0, keepdim=True)])

    def _read_band(self, level: int, i: int) -> None:
        side = TILE << level
        parts = []
        for _, part_HLM in self._bands(i * side, min((i + 1) * side, self.rows), step=1 << level):
            parts.append(torch.stack([_pool(part_LM, level) for part_LM in part_HLM]))
        band_HLM = torch.cat(parts, 1)
        for head in range(self.heads):
            for j, tile in enumerate(band_HLM[head].split(TILE, 1)):
                top, signed = float(tile.abs().max()), bool((tile < 0).any())
                self._keep((head, level, i, j), _encode(tile, -top if signed else 0.0, top))

    def _keep(self, key: tuple[int, int, int, int], tile: bytes) -> None:
        self._kept[key] = tile
        self._bytes += len(tile)
        while self._bytes > KEPT and next(iter(self._kept))[1:3] != key[1:3]:  # never those of the band that is being read
            self._bytes -= len(self._kept.popitem(last=False)[1])

    def _check(self, what: str, number: int, size: int) -> None:
        if not 0 <= number < size:
            raise UnknownName(f"{what} of {self.map.layer}", str(number), [f"0 to {size - 1}"] if size else [])


def _pool(matrix: Tensor, level: int) -> Tensor:
    """The weight of largest magnitude of each 2ⁿ × 2ⁿ block."""
    if not level:
        return matrix
    high, low = (nn.functional.max_pool2d(x[None], 1 << level, ceil_mode=True)[0] for x in (matrix, -matrix))
    return high.where(high >= low, -low)


def _encode(tile: Tensor, low: float, high: float) -> bytes:
    cells = ((tile - low) / ((high - low) or 1.0) * 255).round().clamp(0, 255).to(torch.uint8)
    return struct.pack("<ff", low, high) + cells.numpy().tobytes()
