"""The attention weights of one call of one layer, with labels for their rows and columns."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import ShapeError, UnknownName
from .inputs import Inputs
from .layouts import Layout, Sequence
from .token_labels import Labels, Words, batch_labels, join_pieces, lines

MEAN = -1  # in `heads`: the mean of several


class Values(NamedTuple):
    """A number per query or per key, shown beside its label: the probability of generating a word, the coverage of a source word."""

    name: str
    numbers: tuple[float, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Map:
    """The weights of one call of one layer, before dropout: a row per query, a column per key.

    `rows` and `columns` are positions in the call, or in the whole sequence if there is a state. Positions are aligned at the end.
    """

    layer: str  # name of the layer
    mechanism: str  # name of the mechanism
    call: int  # index of the call of this layer, within one capture
    run: int  # index of the call of the whole model
    heads: tuple[int, ...]  # indices of the heads
    rows: tuple[int, ...]  # positions of the queries
    columns: tuple[int, ...]  # positions of the keys
    queries: int  # number of queries up to and including this call
    weights_BHLM: Tensor = field(repr=False)  # the weights; empty if only inputs were kept
    normalised: bool  # every non-zero row sums to one
    pattern: str = "full"  # pattern of the call as it prints
    stream: int | None = None  # the number of the state that was passed, if any
    query_labels: Labels = field(default=(), repr=False)  # labels of the queries, per batch row
    key_labels: Labels = field(default=(), repr=False)  # labels of the keys, per batch row
    query_values: Values | None = field(default=None, repr=False)  # numbers of the queries of the first batch row
    key_values: Values | None = field(default=None, repr=False)  # numbers of the keys of the first batch row
    layout: Layout = field(default_factory=Sequence)  # layout of the keys
    inputs: Inputs | None = field(default=None, repr=False)  # q and k of the call, if they were kept
    deferred: bool = False  # weights_BHLM is a placeholder of NaN without memory; `read` computes rows from `inputs`

    def __post_init__(self) -> None:
        shape, expected = tuple(self.weights_BHLM.shape), (len(self.heads), len(self.rows), len(self.columns))
        if len(shape) != 4 or shape[1:] != expected:
            raise ShapeError(f"{self.layer}: weights_BHLM is {shape}; expected (batch, {', '.join(map(str, expected))}): heads, rows, keys")
        for what, labels, size in (("query", self.query_labels, expected[1]), ("key", self.key_labels, expected[2])):
            if labels and (len(labels) not in (1, shape[0]) or any(len(line) != size for line in labels)):
                raise ShapeError(f"{self.layer}: {what} labels must be {size} words, for all or for each of {shape[0]} batch rows")
        for values, size in ((self.query_values, expected[1]), (self.key_values, expected[2])):
            if values is not None and len(values.numbers) != size:
                raise ShapeError(f"{self.layer}: {len(values.numbers)} numbers of {values.name}; expected {size}, one per label")
        if not isinstance(self.layout, Sequence):
            self.layout.check(self.keys)

    @classmethod
    def of_matrix(
        cls,
        weights: Tensor,
        layer: str,
        mechanism: str,
        queries: Words | None = None,
        keys: Words | None = None,
        layout: Layout | None = None,
        *,
        head: int = MEAN,
        normalised: bool = True,
        **more: Any,
    ) -> Map:
        """Map of one matrix of weights that was not captured but computed: an alignment, the footprint of a window.

        Args:
            weights: Weights, (queries, keys), or with axes of batch and heads before.
            layer: Name to show.
            mechanism: Name of what computed it.
            queries: Labels of the rows.
            keys: Labels of the columns.
            layout: Arrangement of the keys.
            head: Number of the head; the mean of several if not given.
            normalised: Whether every non-zero row sums to one.
            more: Further fields.
        """
        weights_BHLM = weights.detach().float().cpu()
        weights_BHLM = weights_BHLM.reshape(-1, 1, *weights.shape[-2:])
        L, M = weights_BHLM.shape[2:]
        drawn = cls(
            layer=layer,
            mechanism=mechanism,
            call=0,
            run=0,
            heads=(head,),
            rows=tuple(range(L)),
            columns=tuple(range(M)),
            queries=L,
            weights_BHLM=weights_BHLM,
            normalised=normalised,
            **more,
        )
        return drawn.label(queries, keys, layout)

    # -- properties --------------------------------------------------------------------------------------------

    @property
    def keys(self) -> int:
        """The number of keys, evicted ones included."""
        return max(self.columns, default=-1) + 1

    @property
    def signed(self) -> bool:
        """True if some weights are negative."""
        return not self.deferred and bool(self.weights_BHLM.numel()) and bool(self.weights_BHLM.amin() < 0)

    @property
    def square(self) -> bool:
        """True if all positions are rows and columns: a complete self-attention."""
        return self.rows == self.columns == tuple(range(self.queries))

    def read(self, first: int, last: int, batch: int = 0) -> Tensor:
        """weights_HLM of the rows from `first` up to, not including, `last`, as float32; computed now if they were deferred.

        Args:
            first: first row.
            last: row after the last.
            batch: batch row.
        """
        if self.deferred:
            assert self.inputs is not None
            return self.inputs.weights(first, last, self.heads)[batch]
        return self.weights_BHLM[batch, :, first:last].float()

    def labels(self, batch: int = 0) -> tuple[list[str], list[str]]:
        """The labels of rows and columns; positions where there are none."""
        return batch_labels(self.query_labels, batch, self.rows), batch_labels(self.key_labels, batch, self.columns)

    def head(self, head: int | None = None) -> Map:
        """One head; the mean of all for None."""
        if head is None:
            return (
                self
                if len(self.heads) == 1
                else replace(self, heads=(MEAN,), weights_BHLM=self.weights_BHLM.mean(1, keepdim=True), inputs=None)
            )
        if head not in self.heads:
            raise UnknownName("head of " + self.layer, str(head), map(str, self.heads))
        at = self.heads.index(head)
        return replace(self, heads=(head,), weights_BHLM=self.weights_BHLM[:, at : at + 1], inputs=None)

    # -- statistics -----------------------------------------------------------------------------------------------

    def entropy(self) -> Tensor:
        """entropy_BH in nats, the mean over non-zero rows: 0 if one key has all the weight, log M if it is uniform.

        Rows are scaled to sum to one; of signed weights the magnitudes count.
        """
        return self._mean_rows(torch.special.entr(self._shares()).sum(-1))

    def distance(self) -> Tensor:
        """distance_BH: the mean distance between a query and the keys it attends to, in positions, aligned at the end."""
        i, j = torch.tensor(self.rows) + (self.keys - self.queries), torch.tensor(self.columns)
        return self._mean_rows((self._shares() * (i[:, None] - j).abs()).sum(-1))

    def argmax(self) -> Tensor:
        """The position each query attends to most, (B, H, L); −1 for a row of zeros."""
        if not self.columns:
            return torch.full(self.weights_BHLM.shape[:3], -1)
        best = self.weights_BHLM.max(-1)
        return torch.tensor(self.columns)[best.indices].masked_fill(self.weights_BHLM.abs().sum(-1) == 0, -1)

    def _shares(self) -> Tensor:
        size = self.weights_BHLM.double().abs()
        return size / size.sum(-1, keepdim=True).masked_fill(size.sum(-1, keepdim=True) == 0, 1)

    def _mean_rows(self, x_BHL: Tensor) -> Tensor:
        nonzero_BHL = self.weights_BHLM.abs().sum(-1) > 0
        return ((x_BHL * nonzero_BHL).sum(-1) / nonzero_BHL.sum(-1).clamp(min=1)).float()

    # -- labels and words -----------------------------------------------------------------------------------------------

    def label(self, queries: Words | None = None, keys: Words | None = None, layout: Layout | None = None) -> Map:
        """A new map with labels: a word per position, one list for all batch rows or one per batch row.

        Args:
            queries: labels of the rows: a word per position, for all batch rows or for each; None: as they are.
            keys: labels of the columns, alike; None: as they are.
            layout: layout of the keys; None: as it is.
        """
        return replace(
            self,
            query_labels=self.query_labels if queries is None else lines(queries, self.rows, self.queries, f"{self.layer}: queries"),
            key_labels=self.key_labels if keys is None else lines(keys, self.columns, self.keys, f"{self.layer}: keys"),
            layout=self.layout if layout is None else layout,
        )

    def merge_words(self, words: Seq[int], keys: Seq[int] | None = None) -> Map:
        """Sub-word tokens merged into words: weights are summed over keys and averaged over queries, which keeps the sums of rows.

        `words[p]` is the number of the word that position p belongs to (see `word_numbers`); `keys` are the numbers for the keys when they
        are another sequence.
        """
        keys = words if keys is None else keys
        for what, numbers, size in (("words", words, self.queries), ("keys", keys, self.keys)):
            if len(numbers) != size:
                raise ShapeError(f"{self.layer}: {what} has {len(numbers)} word numbers; expected one for each of {size} positions")
        of_row, of_column = [words[p] for p in self.rows], [keys[p] for p in self.columns]
        rows, columns = tuple(dict.fromkeys(of_row)), tuple(dict.fromkeys(of_column))
        member_RL = torch.tensor([[float(n == word) for n in of_row] for word in rows]).view(len(rows), len(of_row))
        member_MC = torch.tensor([[float(n == word) for word in columns] for n in of_column]).view(len(of_column), len(columns))
        mean_RL = member_RL / member_RL.sum(-1, keepdim=True)
        return replace(
            self,
            rows=rows,
            columns=columns,
            queries=max(words, default=-1) + 1,
            weights_BHLM=(mean_RL @ self.weights_BHLM.float() @ member_MC).to(self.weights_BHLM.dtype),
            query_labels=tuple(join_pieces(line, of_row, rows) for line in self.query_labels),
            key_labels=tuple(join_pieces(line, of_column, columns) for line in self.key_labels),
            query_values=None,
            key_values=None,
            layout=Sequence(),
            inputs=None,
        )

    def _repr_png_(self) -> bytes:
        from .pictures import draw, png

        return png(draw(self))

    def _repr_html_(self) -> str:
        from .pictures import to_html

        return to_html([self])
