"""Puzzles on sequences of symbols, drawn at random, for which one knows what a model must attend to.

`draw(rows, generator)` returns ids_BL, and target_BL: the symbol to predict at each position, IGNORE_INDEX where there is none.

| puzzle | target | a model must attend to |
|---|---|---|
| `Needle` | the one token that is not hay, at the first position | one token anywhere |
| `Spread` | the one token that is not hay, at all positions, or those far from it | one token anywhere |
| `SpreadLater` | the same, at later positions, for causal models | one earlier token |
| `Marked` | the digit after a mark, among other digits, at the first position | one token anywhere, by the token before it |
| `Duplicate` | the second half of 0w0w, as in Reformer and the Linear Transformer | the token half of the length before |
| `Blocks` | in each block the tokens of another, always the same one | one other block |
| `Ranked` | the blocks in the order of the numbers they begin with | one block, and which one depends on all |
| `Lag` | the token a constant number of positions before | a constant distance, whatever the tokens |
| `Recall` | the value last written under a key | the tokens themselves, wherever they are |
| `Chapters` | the value of a key, in several chapters with other keys each | the tokens of one chapter, and none of those before |
| `Shots` | the next answer of a task shown by examples | the examples |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

IGNORE_INDEX = -1


class Puzzle(Protocol):
    """Sequences of `length` tokens out of `vocab_size`, from PyTorch's generator."""

    @property
    def length(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    def draw(self, rows: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]: ...


def _targets_at(ids_BL: Tensor, positions: slice, target_BT: Tensor) -> Tensor:
    """target_BL with targets at some positions only."""
    target_BL = torch.full_like(ids_BL, IGNORE_INDEX)
    target_BL[:, positions] = target_BT
    return target_BL


@dataclass(frozen=True, kw_only=True)
class Needle:
    """One of `classes` tokens hidden in hay, from position `beyond` on; it is the target of the first token, a question mark."""

    length: int = 128
    classes: int = 8
    hay: int = 8
    beyond: int = 20

    @property
    def vocab_size(self) -> int:
        return self.classes + self.hay + 1

    def draw(self, rows: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        ids_BL = self.classes + torch.randint(self.hay, (rows, self.length), generator=generator)
        needle_B, at_B = (
            torch.randint(self.classes, (rows,), generator=generator),
            torch.randint(self.beyond, self.length, (rows,), generator=generator),
        )
        ids_BL[:, 0] = self.vocab_size - 1
        ids_BL[torch.arange(rows), at_B] = needle_B
        return ids_BL, _targets_at(ids_BL, slice(0, 1), needle_B[:, None])


@dataclass(frozen=True, kw_only=True)
class Spread:
    """One of `classes` tokens hidden in hay; it is the target of all tokens, but of those at a distance below `beyond`."""

    length: int = 128
    classes: int = 8
    hay: int = 1
    beyond: int = 0

    @property
    def vocab_size(self) -> int:
        return self.classes + self.hay

    def draw(self, rows: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        ids_BL = self.classes + torch.randint(self.hay, (rows, self.length), generator=generator)
        needle_B1 = torch.randint(self.classes, (rows, 1), generator=generator)
        at_B1 = torch.randint(self.length - self.beyond, (rows, 1), generator=generator)
        ids_BL.scatter_(1, at_B1, needle_B1)
        return ids_BL, needle_B1.where(self.asks(torch.arange(self.length) - at_B1), IGNORE_INDEX)

    def asks(self, distance_BL: Tensor) -> Tensor:
        """Tokens that have a target, by their distance from the needle."""
        return distance_BL.abs() >= self.beyond


@dataclass(frozen=True, kw_only=True)
class SpreadLater(Spread):
    """`Spread` for causal models: the target of the tokens that come `beyond` or more after it."""

    def asks(self, distance_BL: Tensor) -> Tensor:
        return distance_BL >= self.beyond


@dataclass(frozen=True, kw_only=True)
class Marked:
    """Letters, a share of `distractors` digits, and a mark before one digit, which is the target of the first token."""

    length: int = 60
    digits: int = 10
    letters: int = 20
    distractors: float = 0.3

    @property
    def vocab_size(self) -> int:
        return self.digits + self.letters + 1

    def draw(self, rows: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        ids_BL = self.digits + torch.randint(self.letters, (rows, self.length), generator=generator)
        ids_BL = torch.where(
            torch.rand(rows, self.length, generator=generator) < self.distractors,
            torch.randint(self.digits, (rows, self.length), generator=generator),
            ids_BL,
        )
        at_B, digit_B, row_B = (
            torch.randint(self.length - 1, (rows,), generator=generator),
            torch.randint(self.digits, (rows,), generator=generator),
            torch.arange(rows),
        )
        ids_BL[row_B, at_B], ids_BL[row_B, at_B + 1] = self.vocab_size - 1, digit_B
        return ids_BL, _targets_at(ids_BL, slice(0, 1), digit_B[:, None])

    def answers(self, ids_BL: Tensor) -> Tensor:
        """at_B: the position of the digit after the mark."""
        return (ids_BL == self.vocab_size - 1).long().argmax(1) + 1


@dataclass(frozen=True, kw_only=True)
class Duplicate:
    """0w0w: the target of each token of the second half is the next."""

    length: int = 64
    symbols: int = 16

    @property
    def vocab_size(self) -> int:
        return self.symbols + 1

    def draw(self, rows: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        half = self.length // 2
        word_BL = 1 + torch.randint(self.symbols, (rows, half - 1), generator=generator)
        ids_BL = torch.cat([torch.zeros(rows, 1, dtype=torch.long), word_BL], 1).repeat(1, 2)
        return ids_BL, _targets_at(ids_BL, slice(half, -1), word_BL)


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Eight blocks; the target of block u is block 3u + 1 mod 8: none its own, and no two the same."""

    block: int = 8
    symbols: int = 16

    @property
    def length(self) -> int:
        return 8 * self.block

    @property
    def vocab_size(self) -> int:
        return self.symbols

    def draw(self, rows: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        ids_BUC = torch.randint(self.symbols, (rows, 8, self.block), generator=generator)
        return ids_BUC.flatten(1), ids_BUC[:, (3 * torch.arange(8) + 1) % 8].flatten(1)


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """Blocks that begin with a number each, no two the same; the target of the u-th block is the one with the u-th smallest number.

    No block determines its target alone: which one it is depends on the numbers of all.
    """

    blocks: int = 8
    block: int = 4
    numbers: int = 16
    symbols: int = 16

    @property
    def length(self) -> int:
        return self.blocks * self.block

    @property
    def vocab_size(self) -> int:
        return self.symbols + self.numbers

    def draw(self, rows: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        ids_BUC = torch.randint(self.symbols, (rows, self.blocks, self.block), generator=generator)
        ids_BUC[..., 0] = self.symbols + torch.rand(rows, self.numbers, generator=generator).argsort(-1)[:, : self.blocks]
        sorted_BUC = ids_BUC.take_along_dim(ids_BUC[..., :1].argsort(1), 1)
        return ids_BUC.flatten(1), sorted_BUC.flatten(1)


@dataclass(frozen=True, kw_only=True)
class Lag:
    """The target of each token is the one `lag` positions before it; of the first ones, `around` the end, or they have none."""

    length: int = 64
    lag: int = 20
    symbols: int = 16
    around: bool = False

    @property
    def vocab_size(self) -> int:
        return self.symbols

    def draw(self, rows: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        ids_BL = torch.randint(self.symbols, (rows, self.length), generator=generator)
        target_BL = ids_BL.roll(self.lag, 1)
        if not self.around:
            target_BL[:, : self.lag] = IGNORE_INDEX
        return ids_BL, target_BL


@dataclass(frozen=True, kw_only=True)
class Recall:
    """key value key value …, then keys whose targets are their values. Each key is written `times` times, and the last value counts."""

    pairs: int = 16
    times: int = 1
    keys: int = 32
    values: int = 16

    @property
    def length(self) -> int:
        return self.pairs * (2 * self.times + 1)

    @property
    def vocab_size(self) -> int:
        return self.keys + self.values

    def draw(self, rows: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        key_BN = torch.rand(rows, self.keys, generator=generator).argsort(-1)[:, : self.pairs]
        which_BT = (
            torch.rand(rows, self.pairs * self.times, generator=generator).argsort(-1) % self.pairs
        )  # the order of writing, by index of the key
        value_BT = torch.randint(self.values, which_BT.shape, generator=generator)
        last_BN = torch.zeros_like(key_BN)
        for which_B, value_B in zip(which_BT.T, value_BT.T, strict=True):
            last_BN.scatter_(1, which_B[:, None], value_B[:, None])
        asked_BN = torch.rand(rows, self.pairs, generator=generator).argsort(-1)
        written_BL = torch.stack([key_BN.gather(1, which_BT), self.keys + value_BT], -1).flatten(1)
        ids_BL = torch.cat([written_BL, key_BN.gather(1, asked_BN)], 1)
        return ids_BL, _targets_at(ids_BL, slice(-self.pairs, None), self.keys + last_BN.gather(1, asked_BN))


@dataclass(frozen=True, kw_only=True)
class Chapters:
    """`Recall` several times, with an end token after each: a chapter has other keys than those before, which nobody asks for any more."""

    chapters: int = 4
    pairs: int = 8
    values: int = 16

    @property
    def length(self) -> int:
        return self.chapters * (3 * self.pairs + 1)

    @property
    def vocab_size(self) -> int:
        return self.chapters * self.pairs + self.values + 1

    def draw(self, rows: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        keys, shape = self.chapters * self.pairs, (rows, self.chapters, self.pairs)
        key_BCN = torch.rand(rows, keys, generator=generator).argsort(-1).view(shape)
        value_BCN = keys + torch.randint(self.values, shape, generator=generator)
        asked_BCN = torch.rand(shape, generator=generator).argsort(-1)
        end_BC1 = torch.full((rows, self.chapters, 1), self.vocab_size - 1)
        ids_BCL = torch.cat([torch.stack([key_BCN, value_BCN], -1).flatten(2), key_BCN.gather(2, asked_BCN), end_BC1], 2)
        target_BCL = torch.full_like(ids_BCL, IGNORE_INDEX)
        target_BCL[..., 2 * self.pairs : -1] = value_BCN.gather(2, asked_BCN)
        return ids_BCL.flatten(1), target_BCL.flatten(1)


@dataclass(frozen=True, kw_only=True)
class Shots:
    """question answer question answer …: each sequence has a mapping of its own, and the target of every question is its answer.

    So the n-th question has n examples before it. Unless `informative`, the answers shown are random, and the examples say nothing.
    """

    shots: int = 16
    questions: int = 4
    answers: int = 8
    informative: bool = True

    @property
    def length(self) -> int:
        return 2 * (self.shots + 1)

    @property
    def vocab_size(self) -> int:
        return self.questions + self.answers

    def draw(self, rows: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        mapping_BN = self.questions + torch.randint(self.answers, (rows, self.questions), generator=generator)
        question_BS = torch.randint(self.questions, (rows, self.shots + 1), generator=generator)
        right_BS = mapping_BN.gather(1, question_BS)
        shown_BS = right_BS if self.informative else self.questions + torch.randint(self.answers, right_BS.shape, generator=generator)
        ids_BL = torch.stack([question_BS, shown_BS], -1).flatten(1)
        return ids_BL, _targets_at(ids_BL, slice(None, None, 2), right_BS)
