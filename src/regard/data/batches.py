"""Batches of pairs with little padding: sentences of similar length go together, up to `batch_tokens` tokens per batch.

    1. put the pairs in a random order, then sort by source length, each length changed by up to ± `noise`;
    2. cut that into strips, and sort each strip by target length, up and down in turn, so that both lengths are similar;
    3. fill batches in that order while rows × (longest sentence of either side) ≤ batch_tokens;
    4. shuffle the batches.

All of it depends on (seed, epoch) alone: not on the number of processes, nor on what was read before. Batch number i of an
epoch is the same everywhere; with n processes, process r takes batches r, r + n, r + 2n …. A run resumes from (epoch, i), also
with another number of processes.

Sentences are token ids in one array, four bytes per token, with the offset of each sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import NotSupported, ShapeError
from .tokens import PAD, Tokenizer, Tokenizers

Ids = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths: row i is `values[offsets[i] : offsets[i + 1]]`.

    Args:
        values: all rows, end to end.
        offsets: start of each row, and the end of the last.
    """

    values: Ids
    offsets: Numbers

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]]) -> Ragged:
        rows = list(rows)
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)), out=offsets[1:])
        return cls(np.fromiter(chain.from_iterable(rows), np.int32, int(offsets[-1])), offsets)

    @classmethod
    def joined(cls, parts: Sequence[Ragged]) -> Ragged:
        """One after another."""
        if not parts:
            return cls.of([])
        starts = np.cumsum([0, *(part.offsets[-1] for part in parts)])
        offsets = [part.offsets[:-1] + start for part, start in zip(parts, starts, strict=False)]
        return cls(np.concatenate([part.values for part in parts]), np.concatenate([*offsets, starts[-1:]]).astype(np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Ids:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> Numbers:
        return np.diff(self.offsets)

    def padded(self, rows: Numbers) -> tuple[Tensor, Tensor]:
        """The chosen rows as one tensor (rows, longest), padded with PAD, and their lengths."""
        starts, counts = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
        columns = np.arange(int(counts.max(initial=0)))
        inside = columns < counts[:, None]
        # beyond a row's end any valid index will do: `inside` masks it
        indices = np.minimum(starts[:, None] + columns, max(len(self.values) - 1, 0))
        table = np.where(inside, self.values[indices], PAD) if columns.size else np.zeros((len(rows), 0))
        return torch.from_numpy(table.astype(np.int64)), torch.from_numpy(counts)


@dataclass(frozen=True)
class Corpus:
    """Pairs as ids. The source ends in EOS, so no sentence is empty; the target goes from BOS to EOS.

    Args:
        source: ids of the sources.
        target: ids of the targets.
    """

    source: Ragged
    target: Ragged

    def __post_init__(self) -> None:
        if len(self.source) != len(self.target):
            raise ShapeError(f"{len(self.source)} source sentences and {len(self.target)} target sentences; they come in pairs")

    def __len__(self) -> int:
        return len(self.source)

    @classmethod
    def of(cls, pairs: Sequence[tuple[str, str]], tokenizers: Tokenizers, dropout: float = 0.0, seed: int = 0) -> Corpus:
        """Encode the pairs. With BPE-dropout, use another seed each epoch: `seed=1000 * seed + epoch`.

        Args:
            pairs: source and target of each pair.
            tokenizers: tokenizers of both sides.
            dropout: probability of BPE-dropout.
            seed: seed of BPE-dropout.
        """
        return cls(
            _encoded(pairs, 0, tokenizers.source, dropout, 2 * seed),
            _encoded(pairs, 1, tokenizers.target, dropout, 2 * seed + 1),
        )


def _encoded(pairs: Sequence[tuple[str, str]], side: int, tokenizer: Tokenizer, dropout: float, seed: int, chunk: int = 1 << 14) -> Ragged:
    # in chunks, so that lists of Python integers never hold a whole corpus
    first, end, parts = [tokenizer.target_start_id] * side, tokenizer.target_end_id, []
    for at in range(0, len(pairs), chunk):
        some = tokenizer.encode_all([pair[side] for pair in pairs[at : at + chunk]], dropout, (seed << 24) + at // chunk)
        parts.append(Ragged.of([*first, *ids, end] for ids in some))
    return Ragged.joined(parts)


@dataclass
class PairBatch:
    """Sentences and their translations. Lengths say which positions are real; the rest is PAD.

    Args:
        source_BM: ids of the sources.
        source_n_B: tokens of each source, the end included.
        target_BL: ids of the targets, from begin to end.
        target_n_B: tokens to predict.
        index_B: numbers of the pairs in the corpus.
    """

    source_BM: Tensor
    source_n_B: Tensor  # tokens of each source, EOS included
    target_BL: Tensor  # BOS … EOS
    target_n_B: Tensor  # tokens to predict, EOS included: one fewer than there are
    index_B: Tensor | None = None  # their numbers in the corpus

    def __len__(self) -> int:
        return len(self.source_BM)

    def to(self, device: torch.device | str) -> PairBatch:
        return replace(self, **{name: x.to(device, non_blocking=True) for name, x in vars(self).items() if x is not None})


def collate(corpus: Corpus, index: Numbers) -> PairBatch:
    """The chosen pairs as one batch.

    Args:
        corpus: pairs as ids.
        index: numbers of the chosen pairs.
    """
    source_BM, source_n_B = corpus.source.padded(index)
    target_BL, target_all_B = corpus.target.padded(index)
    return PairBatch(source_BM, source_n_B, target_BL, target_all_B - 1, torch.from_numpy(index))


class Batches:
    """The batches of every epoch. Of a corpus, or of a function epoch → corpus (with BPE-dropout each epoch has its own).

    `shuffle=False` is for evaluation: no noise, batches from the longest to the shortest, every epoch the same. A pair longer
    than `batch_tokens` raises (`long="stop"`) or makes a batch by itself (`long="alone"`).

    Args:
        corpus: pairs as ids, or a function epoch → pairs.
        batch_tokens: tokens per batch, of the longer side.
        seed: seed of the order.
        noise: fraction by which lengths are varied before pairs are sorted by them.
        shuffle: another order each epoch; False: from the longest to the shortest.
        long: pair longer than a batch: stop with an error, or make a batch of it alone.
    """

    def __init__(
        self,
        corpus: Corpus | Callable[[int], Corpus],
        batch_tokens: int = 4096,
        *,
        seed: int = 0,
        noise: float = 0.05,
        shuffle: bool = True,
        long: Literal["stop", "alone"] = "stop",
    ):
        if batch_tokens < 1 or noise < 0 or long not in ("stop", "alone"):
            raise NotSupported(
                f'batch_tokens={batch_tokens}, noise={noise}, long={long!r}; expected batch_tokens ≥ 1, noise ≥ 0, long "stop" or "alone"'
            )
        self._corpus, self.batch_tokens, self.seed, self.noise, self.shuffle, self.long = corpus, batch_tokens, seed, noise, shuffle, long
        self._planned: tuple[int, Corpus, list[Numbers]] | None = None

    def plan(self, epoch: int) -> list[Numbers]:
        """The whole epoch: which pairs each batch holds, in order, for all processes together."""
        return self._made(epoch)[1]

    def corpus(self, epoch: int) -> Corpus:
        """The corpus that the epoch's plan indexes."""
        return self._made(epoch)[0]

    def epoch(self, epoch: int, first: int = 0, rank: int = 0, world: int = 1, even: bool = True) -> Iterator[PairBatch]:
        """Batches first + rank, first + rank + world, … of the epoch, for process `rank` of `world`.

        With `even` every process gets equally many: up to world − 1 batches at the end are dropped, different ones each epoch.
        Evaluation wants all: even=False.

        Args:
            epoch: number of the epoch.
            first: number of the first batch.
            rank: number of this process.
            world: number of processes.
            even: give every process equally many batches.
        """
        if not 0 <= rank < world:
            raise NotSupported(f"process {rank} of {world}; ranks count from 0 to {world - 1}")
        corpus, planned = self._made(epoch)
        if not 0 <= first <= len(planned):
            raise ShapeError(
                f"epoch {epoch} has {len(planned)} batches and cannot go on from number {first}; are data and batch_tokens the same as before?"
            )
        left = len(planned) - first
        last = first + (left - left % world if even else left)
        return (collate(corpus, planned[number]) for number in range(first + rank, last, world))

    def fill(self, epoch: int = 0) -> float:
        """The share of positions that are real tokens and not padding, of both sides."""
        corpus, planned = self._made(epoch)
        source, target = corpus.source.lengths, corpus.target.lengths - 1
        padded = sum(len(index) * int(source[index].max() + target[index].max()) for index in planned)
        return float((source.sum() + target.sum()) / padded) if padded else 1.0

    def _made(self, epoch: int) -> tuple[Corpus, list[Numbers]]:
        if self._planned is None or self._planned[0] != epoch:
            corpus = self._corpus(epoch) if callable(self._corpus) else self._corpus
            self._planned = epoch, corpus, self._plan(corpus, epoch)
        return self._planned[1:]

    def _plan(self, corpus: Corpus, epoch: int) -> list[Numbers]:
        source, target = corpus.source.lengths, corpus.target.lengths - 1
        longest = np.maximum(source, target)
        if self.long == "stop" and len(corpus) and longest.max() > self.batch_tokens:
            worst = int(longest.argmax())
            raise NotSupported(
                f"pair {worst} has {longest[worst]} tokens on its longer side, more than batch_tokens={self.batch_tokens}; "
                'raise batch_tokens, shorten the pair, or give it a batch of its own with long="alone"'
            )
        generator = np.random.default_rng([self.seed, epoch] if self.shuffle else 0)
        order = generator.permutation(len(corpus))
        order = order[np.argsort(self._noisy(source[order], generator), kind="stable")]
        # as many strips as there will be batches in each: square tiles of the plane of both lengths
        strips = max(1, round(float(longest.sum() / self.batch_tokens) ** 0.5))
        turned = []
        for number, strip in enumerate(np.array_split(order, strips)):
            by_target = strip[np.argsort(self._noisy(target[strip], generator), kind="stable")]
            turned.append(by_target[::-1] if number % 2 else by_target)
        batches = self._filled(np.concatenate(turned), longest)
        if self.shuffle:
            return [batches[n] for n in generator.permutation(len(batches))]
        return sorted(batches, key=lambda index: -int(longest[index].max()))

    def _noisy(self, lengths: Numbers, generator: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return lengths * (1 + (self.noise if self.shuffle else 0.0) * generator.uniform(-1, 1, len(lengths)))

    def _filled(self, order: Numbers, longest: Numbers) -> list[Numbers]:
        batches, at = [], 0
        while at < len(order):
            # no more rows fit than if all were as short as this one
            ahead = np.maximum.accumulate(longest[order[at : at + max(1, self.batch_tokens // int(longest[order[at]]))]])
            rows = max(1, int(np.count_nonzero(ahead * np.arange(1, len(ahead) + 1) <= self.batch_tokens)))
            batches.append(order[at : at + rows])
            at += rows
        return batches


def similar_lengths(lengths_E: Numbers, size: int, generator: np.random.Generator, pool: int = 32) -> list[Numbers]:
    """Every example once, in batches of similar length: pools of as many batches are drawn at random, and each is sorted by length."""
    order = generator.permutation(len(lengths_E))
    pools = [order[at : at + pool * size] for at in range(0, len(order), pool * size)]
    by_length = np.concatenate([some[np.argsort(lengths_E[some], kind="stable")] for some in pools] or [order])
    return [by_length[at : at + size] for at in range(0, len(by_length), size)]
