"""Where a model looked: the weights of some calls of some layers, with names for their rows and columns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor

from ..errors import CaptureNotSupported, ShapeError, UnknownName
from .labels import Labels, glued, line_of, lines
from .layouts import Layout, Sequence

MEAN = -1  # stands among `heads` for the average of several


@dataclass(frozen=True, eq=False, kw_only=True)
class Map:
    """The weights of one call of one layer, before dropout: rows over queries, columns over keys.

    `rows` and `columns` are positions: those of a stream when there is a state, else places in the call. `queries` is how
    many queries there were up to this call, asked for or not; positions are aligned at the end.
    """

    layer: str
    mechanism: str
    call: int  # of this layer, within one capture
    run: int  # of the whole model
    heads: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    queries: int
    weights_BHLM: Tensor = field(repr=False)
    normalised: bool  # every row that looks anywhere sums to one
    pattern: str = "full"
    stream: int | None = None  # which state was passed, if any
    query_labels: Labels = field(default=(), repr=False)
    key_labels: Labels = field(default=(), repr=False)
    layout: Layout = field(default_factory=Sequence)

    def __post_init__(self) -> None:
        shape, said = tuple(self.weights_BHLM.shape), (len(self.heads), len(self.rows), len(self.columns))
        if len(shape) != 4 or shape[1:] != said:
            raise ShapeError(f"{self.layer}: weights_BHLM {shape} does not have the {said} heads, rows and columns it is said to have")
        for what, labels, size in (("query", self.query_labels, said[1]), ("key", self.key_labels, said[2])):
            if labels and (len(labels) not in (1, shape[0]) or any(len(line) != size for line in labels)):
                raise ShapeError(f"{self.layer}: {what} labels must be {size} words, for all or for each of {shape[0]} batch rows")
        if not isinstance(self.layout, Sequence):
            self.layout.check(self.keys)

    # -- what it is --------------------------------------------------------------------------------------------

    @property
    def keys(self) -> int:
        """How many keys there were, forgotten ones included."""
        return max(self.columns, default=-1) + 1

    @property
    def signed(self) -> bool:
        """Whether some weights are negative."""
        return bool(self.weights_BHLM.numel()) and bool(self.weights_BHLM.amin() < 0)

    @property
    def square(self) -> bool:
        """Whether every position looked, and was looked at: the whole of a self-attention."""
        return self.rows == self.columns == tuple(range(self.queries))

    def labels(self, batch: int = 0) -> tuple[list[str], list[str]]:
        """Names of the rows and of the columns; their positions where nobody named them."""
        return line_of(self.query_labels, batch, self.rows), line_of(self.key_labels, batch, self.columns)

    def head(self, head: int | None = None) -> Map:
        """One head alone; the average of all for None."""
        if head is None:
            return self if len(self.heads) == 1 else replace(self, heads=(MEAN,), weights_BHLM=self.weights_BHLM.mean(1, keepdim=True))
        if head not in self.heads:
            raise UnknownName("head of " + self.layer, str(head), map(str, self.heads))
        at = self.heads.index(head)
        return replace(self, heads=(head,), weights_BHLM=self.weights_BHLM[:, at : at + 1])

    # -- numbers -----------------------------------------------------------------------------------------------

    def entropy(self) -> Tensor:
        """entropy_BH in nats, the mean over the rows that look anywhere: 0 for one key only, log M for all alike.

        Rows are scaled to sum to one; of signed weights the sizes count.
        """
        share = self._shares()
        return self._mean_rows(torch.special.entr(share).sum(-1))

    def distance(self) -> Tensor:
        """distance_BH: how far from itself a query looks on average, in positions, aligned at the end."""
        i, j = torch.tensor(self.rows) + (self.keys - self.queries), torch.tensor(self.columns)
        return self._mean_rows((self._shares() * (i[:, None] - j).abs()).sum(-1))

    def path(self) -> Tensor:
        """path_BHL: the position each query looks at most; −1 if it looks nowhere."""
        if not self.columns:
            return torch.full(self.weights_BHLM.shape[:3], -1)
        best = self.weights_BHLM.max(-1)
        return torch.tensor(self.columns)[best.indices].masked_fill(self.weights_BHLM.abs().sum(-1) == 0, -1)

    def _shares(self) -> Tensor:
        size = self.weights_BHLM.double().abs()
        return size / size.sum(-1, keepdim=True).masked_fill(size.sum(-1, keepdim=True) == 0, 1)

    def _mean_rows(self, x_BHL: Tensor) -> Tensor:
        looks = self.weights_BHLM.abs().sum(-1) > 0
        return ((x_BHL * looks).sum(-1) / looks.sum(-1).clamp(min=1)).float()

    # -- changes -----------------------------------------------------------------------------------------------

    def label(
        self,
        queries: Seq[str] | Seq[Seq[str]] | None = None,
        keys: Seq[str] | Seq[Seq[str]] | None = None,
        layout: Layout | None = None,
    ) -> Map:
        """The same with names: a word for every position, one list for all batch rows or one a batch row."""
        return replace(
            self,
            query_labels=self.query_labels if queries is None else lines(queries, self.rows, self.queries, f"{self.layer}: queries"),
            key_labels=self.key_labels if keys is None else lines(keys, self.columns, self.keys, f"{self.layer}: keys"),
            layout=self.layout if layout is None else layout,
        )

    def merged(self, words: Seq[int], keys: Seq[int] | None = None) -> Map:
        """Sub-words put together: summed over keys, averaged over queries, so rows still sum to what they did.

        `words[p]` is the number of the word that position p belongs to (`word_numbers` makes them); the keys have
        numbers of their own when they are another sequence.
        """
        keys = words if keys is None else keys
        for what, numbers, size in (("words", words, self.queries), ("keys", keys, self.keys)):
            if len(numbers) != size:
                raise ShapeError(f"{self.layer}: {what} numbers {len(numbers)} positions, but there are {size}")
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
            query_labels=tuple(glued(line, of_row, rows) for line in self.query_labels),
            key_labels=tuple(glued(line, of_column, columns) for line in self.key_labels),
            layout=Sequence(),
        )

    def _repr_png_(self) -> bytes:
        from .pictures import draw, png

        return png(draw(self))

    def _repr_html_(self) -> str:
        from .pictures import page

        return page([self])


class Maps(Mapping[str, list[Map]]):
    """Layer name → its maps, oldest first. `maps[layer]`, `maps.layers`, `maps.all` for all in order of time."""

    def __init__(self, maps: Iterable[Map] = (), idle: Iterable[str] = ()):
        self.all = list(maps)
        self.idle = tuple(idle)  # layers that were watched; named when one asks for what was never called

    @property
    def layers(self) -> list[str]:
        """In order of first call."""
        return list(dict.fromkeys(m.layer for m in self.all))

    @property
    def nbytes(self) -> int:
        """What the weights take in memory."""
        return sum(m.weights_BHLM.nbytes for m in self.all)

    def __getitem__(self, layer: str) -> list[Map]:
        found = [m for m in self.all if m.layer == layer]
        if not found:
            if layer in self.idle:
                raise CaptureNotSupported(f"{layer!r} was watched but not called inside the capture; called were: {', '.join(self.layers)}")
            raise UnknownName("captured layer", layer, self.layers)
        return found

    def __contains__(self, layer: object) -> bool:
        return layer in self.layers

    def get(self, layer: str, default: Any = None) -> Any:
        return self[layer] if layer in self.layers else default  # Mapping's own waits for a KeyError

    def __iter__(self) -> Iterator[str]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __repr__(self) -> str:
        return f"Maps({len(self.all)} of {', '.join(self.layers) or 'no layer'}; {self.nbytes / 2**20:.1f} MiB)"

    # -- choosing ----------------------------------------------------------------------------------------------

    def joined(self, layer: str, stream: int | None = None) -> Map:
        """All calls of a layer as one matrix: a row a query, a column a key position, 0 where there was no such key (yet, or any more).

        Calls with a state are put at their positions; calls without (a recurrent decoder that looks once a step) go one below
        the other. Of several streams, the latest unless told. After `state.reorder` (beams) a batch row has the
        steps of whichever hypothesis stood there.
        """
        found = self[layer]
        stream = found[-1].stream if stream is None else stream
        found = [m for m in found if m.stream == stream]
        if not found:
            raise UnknownName("stream of " + layer, str(stream), sorted({str(m.stream) for m in self[layer]}))
        if len({(len(m.weights_BHLM), m.heads) for m in found}) > 1:
            raise ShapeError(f"{layer}: its calls differ in batch or heads, so they do not make one matrix; take them from maps[{layer!r}]")
        if stream is None and len({m.columns for m in found}) > 1:
            raise ShapeError(f"{layer}: its calls see different keys and carry no state, so they do not make one matrix")
        before = [0] * len(found)
        if stream is None:
            for n, m in enumerate(found[:-1]):
                before[n + 1] = before[n] + m.queries
        keys = max(m.keys for m in found)
        last, first = found[-1], found[0].weights_BHLM
        weights_BHLM = first.new_zeros(*first.shape[:2], sum(len(m.rows) for m in found), keys)
        names: list[list[str]] = [[] for _ in last.query_labels]
        at = 0
        for m in found:
            weights_BHLM[:, :, at : at + len(m.rows), torch.tensor(m.columns, dtype=torch.long)] = m.weights_BHLM
            at += len(m.rows)
            for line, words in zip(names, m.query_labels, strict=False):
                line.extend(words)
        whole = last.columns == tuple(range(keys))
        labelled = bool(names) and all(len(line) == at for line in names)
        return replace(
            last,
            call=found[0].call,
            rows=tuple(row + shift for m, shift in zip(found, before, strict=True) for row in m.rows),
            columns=tuple(range(keys)),
            queries=before[-1] + last.queries,
            weights_BHLM=weights_BHLM,
            normalised=all(m.normalised for m in found),
            query_labels=tuple(map(tuple, names)) if labelled else (),
            key_labels=last.key_labels if whole else _spread(found, keys),
        )

    def view(self, layer: str | None = None, call: int | None = None) -> Map:
        """What one would want to see of a layer: that call; else all steps together if it went step by step; else its last call."""
        if not self.all:
            raise CaptureNotSupported("nothing was captured: run the model inside `with capture(model) as maps:`")
        layer = self.layers[-1] if layer is None else layer
        found = self[layer]
        if call is not None:
            chosen = [m for m in found if m.call == call]
            if not chosen:
                raise UnknownName("call of " + layer, str(call), (str(m.call) for m in found))
            return chosen[0]
        last = [m for m in found if m.stream == found[-1].stream]
        stepwise = last[0].stream is not None or (all(m.queries == 1 for m in last) and len({m.columns for m in last}) == 1)
        return self.joined(layer) if len(last) > 1 and stepwise else last[-1]

    def label(
        self,
        queries: Seq[str] | Seq[Seq[str]] | None = None,
        keys: Seq[str] | Seq[Seq[str]] | None = None,
        layout: Layout | None = None,
        layer: str | None = None,
    ) -> Maps:
        """The same maps with names for rows and columns, all of them or those of one layer."""
        if layer is not None:
            _ = self[layer]
        return self._each(lambda m: m.label(queries, keys, layout) if layer in (None, m.layer) else m)

    def merged(self, words: Seq[int], keys: Seq[int] | None = None) -> Maps:
        """Every map with sub-words put together; see `Map.merged`."""
        return self._each(lambda m: m.merged(words, keys))

    def _each(self, change: Callable[[Map], Map]) -> Maps:
        return Maps(map(change, self.all), self.idle)

    # -- through the layers ------------------------------------------------------------------------------------

    def rollout(self, layers: Iterable[str] | None = None, run: int | None = None) -> Tensor:
        r"""rollout_BLM: what the top layer's positions hold of the inputs, if layers only mixed positions (Abnar & Zuidema 2020).

        $$\tilde A_l = \text{rows of } \tfrac12(\text{mean}_h A_l + I) \text{ scaled to sum to one}, \qquad R = \tilde A_n \cdots \tilde A_1$$

        Over all layers in order of time, or those named; of several runs of the model the latest unless told. Heads are those captured.
        """
        names = self.layers if layers is None else list(layers)
        if not self.all:
            raise CaptureNotSupported("nothing was captured, so there is nothing to roll out")
        for name in names:
            _ = self[name]
        run = self.all[-1].run if run is None else run
        chosen = [m for m in self.all if m.layer in names and m.run == run]
        if not chosen:
            raise UnknownName("run", str(run), sorted({str(m.run) for m in self.all}))
        product: Tensor | None = None
        for m in chosen:
            if not m.square or m.queries != chosen[0].queries:
                raise ShapeError(
                    f"rollout multiplies square matrices of one size; {m.layer} has {len(m.rows)} of {m.queries} queries over {len(m.columns)} keys. "
                    "Capture all rows, and name the self-attentions of one stack in layers="
                )
            mixed = (m.weights_BHLM.float().mean(1) + torch.eye(m.queries)) / 2
            mixed = mixed / mixed.sum(-1, keepdim=True)
            product = mixed if product is None else mixed @ product
        assert product is not None
        return product

    # -- keeping and seeing ------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """To `name.safetensors` with `name.json` beside it, or to one `name.npz`."""
        from .files import save

        return save(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Maps:
        """What `save` wrote."""
        from .files import load

        return load(path)

    def save_png(
        self,
        path: str | Path,
        layer: str | None = None,
        head: int | None = None,
        batch: int = 0,
        call: int | None = None,
        query: int | None = None,
        image: Any = None,
    ) -> Path:
        """A picture as a PNG file: one head of one layer, or small ones of all that is not narrowed down.

        `query` is a position: over a Grid it shows where that one looked, upon `image` (h, w) or (h, w, 3) if given.
        """
        from .pictures import figure_of, png

        Path(path).write_bytes(png(figure_of(self, layer, head, batch, call, query, image)))
        return Path(path)

    def show(
        self, layer: str | None = None, head: int | None = None, batch: int = 0, call: int | None = None, file: TextIO | None = None
    ) -> None:
        """Print one matrix as shaded blocks; the average of the heads unless one is named."""
        from .text import text

        print(text(self.view(layer, call).head(head), batch), file=sys.stdout if file is None else file)

    def _repr_png_(self) -> bytes | None:
        from .pictures import figure_of, png

        return png(figure_of(self)) if self.all else None

    def _repr_html_(self) -> str:
        from .pictures import page

        return page([self.view(layer) for layer in self.layers])


def _spread(found: list[Map], keys: int) -> Labels:
    """Names of all keys, gathered from calls that each held only some."""
    if not all(m.key_labels for m in found):
        return ()
    rows = []
    for b in range(len(found[-1].key_labels)):
        known = {p: name for m in found for p, name in zip(m.columns, m.key_labels[b], strict=True)}
        rows.append(tuple(known.get(p, "") for p in range(keys)))
    return tuple(rows)
