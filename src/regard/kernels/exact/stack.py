"""Stacks: several tiles of one shape in one kernel call.

Tiles that follow each other at even distances, as those of a window do, are views into the same memory: stacked along the batch
dimension they cost no copy, and one call instead of many. causal & window(128), 8 heads of 64, AVX2, two threads: forward pass of 8,192
tokens 65 ms tile by tile (64 rows), 48 ms in runs (32 rows); forward + backward of 4,096 tokens 79 and 66 ms.

A kernel call is efficient from about eight (batch, head) pairs on. Where a group has fewer (one head of a pattern that differs by head,
one row of a padded batch), other tiles of equal shape are copied together. BigBird with different random blocks in each of 8 heads of
64, 4,096 tokens, forward + backward, AVX2, two threads: 640 ms one tile at a time, 392 with 16 pairs per call, 295 with the rows of each
head contiguous, 272 when blocks that all heads attend to are computed at once and keys are copied by the block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .bias import Bias, to_4d
from .plan import Group, Plan, Tile, follows, shape, width

RUN = 1536  # keys per call, over all its tiles, where they are views: their gradients are buffers that should stay in cache
LONG = 10240  # the same where there are no gradients
ENOUGH = 8  # (batch, head) pairs from which a call is efficient without copying tiles together
PAIRS = 16  # pairs per call where tiles are copied together
KEYS = 8192  # or as many as have this many keys in all
BLOCK = 64  # positions that are copied as one where they are contiguous


@dataclass(frozen=True, slots=True)
class Steps:
    """`count` runs of `size` positions, each `step` after the one before; they may overlap."""

    first: int
    step: int
    size: int
    count: int

    def view(self, x: Tensor) -> Tensor:
        """(1, length, …) → (count, size, …), without a copy."""
        along, rest = x.stride()[1], x.stride()[2:]
        shape, strides = (self.count, self.size, *x.shape[2:]), (self.step * along, along, *rest)
        return x.as_strided(shape, strides, x.storage_offset() + self.first * along)

    def add(self, whole: Tensor, part: Tensor) -> None:
        """Add (count, size, …) to the positions of the runs; overlapping runs take turns."""
        turns = -(-self.size // self.step)
        for turn in range(min(turns, self.count)):
            mine = Steps(self.first + turn * self.step, turns * self.step, self.size, -(-(self.count - turn) // turns))
            mine.view(whole).add_(part[turn::turns])


@dataclass(frozen=True, slots=True)
class Blocks:
    """Whole blocks of BLOCK positions, by number: copied block by block, not row by row."""

    numbers: Tensor

    def take(self, x: Tensor) -> Tensor:
        if not x.is_contiguous() and x.transpose(1, 2).is_contiguous():  # head-major; index_select would copy all of it first
            x = x.transpose(1, 2).unflatten(2, (-1, BLOCK)).index_select(2, self.numbers.to(x.device))
            return x.flatten(2, 3).transpose(1, 2)
        return x.unflatten(1, (-1, BLOCK)).index_select(1, self.numbers.to(x.device)).flatten(1, 2)

    def put(self, whole: Tensor, part: Tensor) -> None:
        whole.unflatten(1, (-1, BLOCK)).index_copy_(1, self.numbers.to(whole.device), part.unflatten(1, (-1, BLOCK)).to(whole.dtype))

    def add(self, whole: Tensor, part: Tensor) -> None:
        whole.unflatten(1, (-1, BLOCK)).index_add_(1, self.numbers.to(whole.device), part.unflatten(1, (-1, BLOCK)).to(whole.dtype))


Index = slice | Tensor | Steps | Blocks


@dataclass(eq=False, slots=True)
class Stack:
    """One tile, or several of the same shape without a common row."""

    tiles: list[Tile]
    rows: Index
    columns: Index
    kept: Tensor | None = None  # the mask, where the plan has room for it
    full_rows: bool = False  # the kept mask leaves something to each row

    def take_rows(self, x: Tensor) -> Tensor:
        """(B, L, H, …) → (B · tiles, H, rows of a tile, …)."""
        return _fold(x, self.rows, len(self.tiles))

    def take_columns(self, x: Tensor, heads: int) -> Tensor:
        """Take the columns of keys and values; shared heads are repeated."""
        x = _fold(x, self.columns, len(self.tiles))
        return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)

    def put_rows(self, whole: Tensor, part: Tensor) -> None:
        """The inverse of `take_rows`."""
        if isinstance(self.rows, Steps):
            self.rows.view(whole).copy_(part.transpose(1, 2))
            return
        part = _unfold(part, len(self.tiles))
        if isinstance(self.rows, slice):
            whole[:, self.rows] = part
        elif isinstance(self.rows, Blocks):
            self.rows.put(whole, part)
        else:
            whole.index_copy_(1, self.rows.to(whole.device), part.to(whole.dtype))

    def add_rows(self, whole: Tensor, part: Tensor) -> None:
        _add(whole, self.rows, part, len(self.tiles))

    def add_columns(self, whole: Tensor, part: Tensor) -> None:
        """Accumulate gradients of keys and values; shared heads sum over all query heads that read them."""
        if part.shape[1] != whole.shape[2]:
            part = part.view(len(part), whole.shape[2], -1, *part.shape[2:]).sum(2)
        _add(whole, self.columns, part, len(self.tiles))

    def mask(self, plan: Plan, group: Group, dtype: torch.dtype, device: torch.device, batch: int) -> Tensor | None:
        """The additive mask, (1 or B · tiles, 1 or H, rows, columns)."""
        if self.kept is not None and (self.kept.dtype, self.kept.device) == (dtype, device):
            return self.kept
        masks = [plan.mask(group, tile, dtype, device) for tile in self.tiles]
        mask = masks[0] if all(mask is masks[0] for mask in masks) else self.join([m for m in masks if m is not None], batch)
        if mask is not None and mask.nbytes <= plan.room:
            plan.room -= mask.nbytes
            self.kept, self.full_rows = mask, bool((mask == 0).any(-1).all())
        return mask

    def has_empty_rows(self, biased: bool) -> bool:
        """True if some row may attend to nothing."""
        return (not self.full_rows and any(tile.partial and tile.has_empty_rows for tile in self.tiles)) or biased

    def join(self, parts: list[Tensor], batch: int) -> Tensor:
        """Tensors of single tiles, (1 or B, 1 or H, rows, columns) each, joined in the order of `take_rows`."""
        if len(parts) == 1:
            return parts[0]
        return torch.stack([part.expand(batch, *part.shape[1:]) for part in parts], 1).flatten(0, 1)

    def part(self, x: Tensor, n: int) -> Tensor:
        """The part of the n-th tile of something shaped like scores."""
        return x.view(-1, len(self.tiles), *x.shape[1:])[:, n]


def group_stacks(group: Group, q_BLHK: Tensor, k_BMHK: Tensor, run: int = RUN) -> list[Stack]:
    """The tiles of a group in as few calls as pay off; cached, since stacking them takes as long as a call."""
    (B, L, H), M = q_BLHK.shape[:3], k_BMHK.shape[1]
    key = (B, L, H, M, run, torch.get_num_threads())
    if key not in group.calls:
        group.calls[key] = list(_stacks(group, B, L, H, M, run))
    return group.calls[key]


def _stacks(group: Group, batch: int, queries: int, heads: int, keys: int, run: int) -> Iterator[Stack]:
    runs, left = _runs(group.tiles, run) if batch == 1 else ([], group.tiles)
    yield from runs
    pairs, shapes = batch * heads, dict[tuple[object, ...], list[Tile]]()
    for n, tile in enumerate(left):
        shapes.setdefault((*shape(tile), n) if tile.split or pairs >= ENOUGH else shape(tile), []).append(tile)
    for tiles in shapes.values():
        at_once = -(-max(PAIRS, 2 * torch.get_num_threads(), KEYS // width(tiles[0])) // max(pairs, 1))
        for first in range(0, len(tiles), at_once):
            some = tiles[first : first + at_once]
            yield Stack(some, _joined([t.rows for t in some], queries), _joined([t.columns for t in some], keys))


def _joined(parts: Sequence[slice | Tensor], length: int) -> Index:
    """The positions of several tiles as one index, by whole blocks where possible."""
    if len(parts) == 1 and isinstance(parts[0], slice):
        return parts[0]
    at = torch.cat([torch.arange(part.start, part.stop) if isinstance(part, slice) else part for part in parts])
    if length % BLOCK or len(at) % BLOCK or (at[::BLOCK] % BLOCK).any() or (at.view(-1, BLOCK).diff() != 1).any():
        return at
    return Blocks(at[::BLOCK] // BLOCK)


def _runs(tiles: list[Tile], keys: int) -> tuple[list[Stack], list[Tile]]:
    """Tiles that follow each other at even distances, stacked; and the others."""
    runs: list[list[Tile]] = []
    for tile in tiles:
        if runs and follows(runs[-1][-1], tile) and (len(runs[-1]) + 1) * width(tile) <= keys:
            runs[-1].append(tile)
        else:
            runs.append([tile])
    found = []
    for run in runs:
        if len(run) > 1:
            rows, columns = run[0].rows, run[0].columns
            assert isinstance(columns, slice)
            step = rows.stop - rows.start
            found.append(Stack(run, Steps(rows.start, step, step, len(run)), Steps(columns.start, step, width(run[0]), len(run))))
    return found, [run[0] for run in runs if len(run) == 1]


def _fold(x: Tensor, index: Index, tiles: int) -> Tensor:
    if isinstance(index, Steps):
        return index.view(x).transpose(1, 2)
    x = x[:, index] if isinstance(index, slice) else index.take(x) if isinstance(index, Blocks) else x.index_select(1, index.to(x.device))
    if tiles > 1:
        x = x.view(len(x), tiles, -1, *x.shape[2:]).flatten(0, 1)
    return x.transpose(1, 2)


def _unfold(part: Tensor, tiles: int) -> Tensor:
    part = part.transpose(1, 2)
    return part if tiles == 1 else part.reshape(-1, tiles * part.shape[1], *part.shape[2:])


def _add(whole: Tensor, index: Index, part: Tensor, tiles: int) -> None:
    if isinstance(index, Steps):
        index.add(whole, part.transpose(1, 2))
    elif isinstance(index, Blocks):
        index.add(whole, _unfold(part, tiles))
    elif isinstance(index, slice):
        whole[:, index] += _unfold(part, tiles)
    else:
        whole.index_add_(1, index.to(whole.device), _unfold(part, tiles).to(whole.dtype))


# -- what the forward and the backward pass of a tiled call share ------------------------------------------------------


@dataclass(slots=True)
class Work:
    """A plan and what is added to its scores."""

    plan: Plan
    bias: Bias | None
    learned: bool  # the bias needs gradients

    def added(self, group: Group, stack: Stack, like: Tensor, batch: int, tensors: tuple[Tensor, ...]) -> Tensor | None:
        """Compute what is added to the scores of a stack: mask and bias."""
        mask = stack.mask(self.plan, group, like.dtype, like.device, batch)
        if self.bias is None:
            return mask
        bias = stack.join([self.tile_bias(group, tile, like.device, tensors).to(like.dtype) for tile in self.distinct_tiles(stack)], batch)
        return bias if mask is None else bias + mask

    def distinct_tiles(self, stack: Stack) -> list[Tile]:
        """The tiles that need a bias of their own: all tiles of a run have the same distances, and so the same bias by distance."""
        assert self.bias is not None
        return stack.tiles[:1] if self.bias.by_distance and isinstance(stack.columns, Steps) else stack.tiles

    def tile_bias(self, group: Group, tile: Tile, device: torch.device, tensors: tuple[Tensor, ...]) -> Tensor:
        """The bias of one tile for the batch rows and heads of its group."""
        assert self.bias is not None
        bias = to_4d(self.bias.tile(*self.plan.positions(tile, device), *tensors))
        if group.batch is not None and bias.shape[0] > 1:
            bias = bias[group.batch]
        if group.heads is not None and bias.shape[1] > 1:
            bias = bias[:, group.heads]
        return bias

    @property
    def by_head(self) -> bool:
        """True if heads are processed one at a time."""
        return any(group.heads is not None for group in self.plan.groups)

    def add_bias_gradients(self, group: Group, stack: Stack, ds: Tensor, tensors: list[Tensor], d_tensors: list[Tensor]) -> None:
        """Add the gradient of a stack's scores to those of the tensors that its bias is made of."""
        tiles = self.distinct_tiles(stack)
        for n, tile in enumerate(tiles):
            part = ds if len(tiles) < len(stack.tiles) else stack.part(ds, n)
            with torch.enable_grad():
                inputs = [t.detach().requires_grad_(t.is_floating_point()) for t in tensors]
                bias = self.tile_bias(group, tile, ds.device, tuple(inputs))
            wanted = [n for n, x in enumerate(inputs) if x.requires_grad]
            grads = torch.autograd.grad(bias, [inputs[n] for n in wanted], part.sum_to_size(bias.shape).to(bias.dtype))
            for n, gradient in zip(wanted, grads, strict=True):
                d_tensors[n] += gradient


def wants_gradient(bias: Bias | None) -> bool:
    return bias is not None and any(t.requires_grad for t in bias.tensors) and torch.is_grad_enabled()


def allocate(make: Callable[..., Tensor], shape: Sequence[int], dtype: torch.dtype, device: torch.device, head_major: bool) -> Tensor:
    """A tensor (B, L, H, …); in memory one head after the other if `head_major`."""
    if not head_major:
        return make(*shape, dtype=dtype, device=device)
    B, L, H, K = shape
    return make(B, H, L, K, dtype=dtype, device=device).transpose(1, 2)


def to_head_major(x: Tensor) -> Tensor:
    """Copy a tensor so that heads follow one another in memory: rows of a single head are adjacent, not a page apart."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def group_part(x: Tensor, group: Group, heads: int) -> Tensor:
    """The batch rows and heads of a group, from (B, length, heads, …), as a view; fewer heads are shared by neighbours."""
    if group.batch is not None:
        x = x[group.batch]
    if group.heads is not None:
        share = heads // x.shape[2]
        first = group.heads.start // share
        x = x[:, :, first : max(first + 1, group.heads.stop // share)]
    return x
