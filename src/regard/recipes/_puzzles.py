"""Puzzles on sequences of symbols, drawn at random: what one must look at to solve them is known.

`draw(rows)` gives ids_BL, and wanted_BL: the symbol to be said at each place, NOTHING where none is asked for.

| puzzle | asks for | so one must look |
|---|---|---|
| `Needle` | the one token that is not hay, asked at the first place | far, at one token anywhere |
| `Duplicate` | the second half of 0w0w, as in Reformer and the Linear Transformer | back by half of the length |
| `Blocks` | in each block what stands in another, always the same one | at one other block |
| `Ranked` | the blocks in the order of the numbers they begin with | at one block, which one depends on all |
| `Lag` | the token some places before | back by a constant, whatever is said |
| `Recall` | the value last written under a key | at what is said, wherever it is |
| `Shots` | the next answer of a task shown by examples | at the examples |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

NOTHING = -1


class Puzzle(Protocol):
    """Sequences of `length` tokens out of `vocab`, from PyTorch's generator."""

    @property
    def length(self) -> int: ...

    @property
    def vocab(self) -> int: ...

    def draw(self, rows: int) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True, kw_only=True)
class Needle:
    """One of `classes` tokens hidden in hay, at a place of at least `beyond`; the first token is a question mark and wants to know which."""

    length: int = 128
    classes: int = 8
    hay: int = 8
    beyond: int = 20

    @property
    def vocab(self) -> int:
        return self.classes + self.hay + 1

    def draw(self, rows: int) -> tuple[Tensor, Tensor]:
        ids_BL = self.classes + torch.randint(self.hay, (rows, self.length))
        needle_B, at_B = torch.randint(self.classes, (rows,)), torch.randint(self.beyond, self.length, (rows,))
        ids_BL[:, 0] = self.vocab - 1
        ids_BL[torch.arange(rows), at_B] = needle_B
        wanted_BL = torch.full_like(ids_BL, NOTHING)
        wanted_BL[:, 0] = needle_B
        return ids_BL, wanted_BL


@dataclass(frozen=True, kw_only=True)
class Duplicate:
    """0w0w: in the second half each token wants to know the next."""

    length: int = 64
    symbols: int = 16

    @property
    def vocab(self) -> int:
        return self.symbols + 1

    def draw(self, rows: int) -> tuple[Tensor, Tensor]:
        half = self.length // 2
        word_BL = 1 + torch.randint(self.symbols, (rows, half - 1))
        ids_BL = torch.cat([torch.zeros(rows, 1, dtype=torch.long), word_BL], 1).repeat(1, 2)
        wanted_BL = torch.full_like(ids_BL, NOTHING)
        wanted_BL[:, half:-1] = word_BL
        return ids_BL, wanted_BL


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Eight blocks; block u wants to know block 3u + 1 mod 8: none its own, and no two the same."""

    block: int = 8
    symbols: int = 16

    @property
    def length(self) -> int:
        return 8 * self.block

    @property
    def vocab(self) -> int:
        return self.symbols

    def draw(self, rows: int) -> tuple[Tensor, Tensor]:
        ids_BUC = torch.randint(self.symbols, (rows, 8, self.block))
        return ids_BUC.flatten(1), ids_BUC[:, (3 * torch.arange(8) + 1) % 8].flatten(1)


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """Blocks that begin with a number each, no two the same; the u-th block wants to know the one with the u-th smallest number.

    No block can find its own by itself: which one it is depends on the numbers of all.
    """

    blocks: int = 8
    block: int = 4
    numbers: int = 16
    symbols: int = 16

    @property
    def length(self) -> int:
        return self.blocks * self.block

    @property
    def vocab(self) -> int:
        return self.symbols + self.numbers

    def draw(self, rows: int) -> tuple[Tensor, Tensor]:
        ids_BUC = torch.randint(self.symbols, (rows, self.blocks, self.block))
        ids_BUC[..., 0] = self.symbols + torch.rand(rows, self.numbers).argsort(-1)[:, : self.blocks]
        sorted_BUC = ids_BUC.take_along_dim(ids_BUC[..., :1].argsort(1), 1)
        return ids_BUC.flatten(1), sorted_BUC.flatten(1)


@dataclass(frozen=True, kw_only=True)
class Lag:
    """Each token wants to know the one `lag` places before it; `around` the end for the first ones, which else ask nothing."""

    length: int = 64
    lag: int = 20
    symbols: int = 16
    around: bool = False

    @property
    def vocab(self) -> int:
        return self.symbols

    def draw(self, rows: int) -> tuple[Tensor, Tensor]:
        ids_BL = torch.randint(self.symbols, (rows, self.length))
        wanted_BL = ids_BL.roll(self.lag, 1)
        if not self.around:
            wanted_BL[:, : self.lag] = NOTHING
        return ids_BL, wanted_BL


@dataclass(frozen=True, kw_only=True)
class Recall:
    """key value key value …, then keys that want to know their values. Each key is written `times`, and the last value counts."""

    pairs: int = 16
    times: int = 1
    keys: int = 32
    values: int = 16

    @property
    def length(self) -> int:
        return self.pairs * (2 * self.times + 1)

    @property
    def vocab(self) -> int:
        return self.keys + self.values

    def draw(self, rows: int) -> tuple[Tensor, Tensor]:
        key_BN = torch.rand(rows, self.keys).argsort(-1)[:, : self.pairs]
        which_BT = torch.rand(rows, self.pairs * self.times).argsort(-1) % self.pairs  # the order of writing, by number of the key
        value_BT = torch.randint(self.values, which_BT.shape)
        last_BN = torch.zeros_like(key_BN)
        for which_B, value_B in zip(which_BT.T, value_BT.T, strict=True):
            last_BN.scatter_(1, which_B[:, None], value_B[:, None])
        asked_BN = torch.rand(rows, self.pairs).argsort(-1)
        written_BL = torch.stack([key_BN.gather(1, which_BT), self.keys + value_BT], -1).flatten(1)
        ids_BL = torch.cat([written_BL, key_BN.gather(1, asked_BN)], 1)
        wanted_BL = torch.full_like(ids_BL, NOTHING)
        wanted_BL[:, -self.pairs :] = self.keys + last_BN.gather(1, asked_BN)
        return ids_BL, wanted_BL


@dataclass(frozen=True, kw_only=True)
class Shots:
    """question answer question answer …: each row has a mapping of its own, and every question wants to know its answer.

    So the n-th question is a prompt with n examples. Unless they are `telling`, the answers shown are drawn at random, and say nothing.
    """

    shots: int = 16
    questions: int = 4
    answers: int = 8
    telling: bool = True

    @property
    def length(self) -> int:
        return 2 * (self.shots + 1)

    @property
    def vocab(self) -> int:
        return self.questions + self.answers

    def draw(self, rows: int) -> tuple[Tensor, Tensor]:
        mapping_BN = self.questions + torch.randint(self.answers, (rows, self.questions))
        question_BS = torch.randint(self.questions, (rows, self.shots + 1))
        right_BS = mapping_BN.gather(1, question_BS)
        shown_BS = right_BS if self.telling else self.questions + torch.randint(self.answers, right_BS.shape)
        ids_BL = torch.stack([question_BS, shown_BS], -1).flatten(1)
        wanted_BL = torch.full_like(ids_BL, NOTHING)
        wanted_BL[:, ::2] = right_BS
        return ids_BL, wanted_BL
