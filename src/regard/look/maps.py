"""The maps of one capture: by layer, joined over calls, rolled out over layers, written to files and pictures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from copy import copy
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import torch
from torch import Tensor

from ..errors import CaptureNotSupported, RegardError, ShapeError, UnknownName
from ._select import Layers, layer_filter
from .layouts import Layout
from .map import MEAN, Map
from .scales import ScaleName
from .token_labels import Labels, Words

if TYPE_CHECKING:
    from .gradients import InputGradients  # imports all models


class Maps(Mapping[str, list[Map]]):
    """Layer name → its maps, oldest first: `maps[layer]`, `maps.layers`; `maps.all` has all in order of time.

    Beside the weights they may know more of the input and of what the model made of it. Pictures are drawn over `image`; `alternatives`
    are those of the other hypotheses of a beam, say; `no_gradients` says why there are no `gradients`.

    Args:
        maps: maps in order of time.
        idle: names of layers that were observed, for the error message if they were never called.
        image: image behind a Grid, uint8 of shape (h, w) or (h, w, 3); frames of a video side by side.
        points: positions of keys that are points in a plane, (keys, 2).
        answer: output of the model as text.
        score: log-probability of the answer.
        alternatives: maps of other answers to the same input.
        gradients: attribution of outputs to inputs.
    """

    def __init__(
        self,
        maps: Iterable[Map] = (),
        idle: Iterable[str] = (),
        image: Any = None,
        *,
        points: Any = None,
        answer: str = "",
        score: float | None = None,
        alternatives: Iterable[Maps] = (),
        gradients: InputGradients | None = None,
    ):
        self.all = list(maps)
        self.idle = tuple(idle)  # layers that capture watched, for the error message if they were never called
        self.image, self.points = image, points
        self.answer, self.score, self.alternatives, self.gradients = answer, score, tuple(alternatives), gradients
        self.no_gradients = "These maps do not say which output each query computes, so there is no gradient to compare them with."

    @property
    def layers(self) -> list[str]:
        """Names of the layers, in order of first call."""
        return list(dict.fromkeys(m.layer for m in self.all))

    @property
    def nbytes(self) -> int:
        """Bytes that the weights take, or what they are computed from."""
        return sum((0 if m.deferred else m.weights_BHLM.nbytes) + (0 if m.inputs is None else m.inputs.nbytes) for m in self.all)

    def __getitem__(self, layer: str) -> list[Map]:
        self._check_layer(layer)
        return [m for m in self.all if m.layer == layer]

    def _check_layer(self, layer: str) -> None:
        if layer in self.layers:
            return
        if layer in self.idle:
            raise CaptureNotSupported(f"{layer!r} was not called inside the capture; these were: {', '.join(self.layers)}")
        raise UnknownName("captured layer", layer, self.layers)

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

    # -- selection ----------------------------------------------------------------------------------------------

    def join_calls(self, layer: str, stream: int | None = None) -> Map:
        """All calls of a layer as one matrix: a row per query, a column per key position, 0 where that key did not exist (yet, or any more).

        Calls with a state are placed at their positions; calls without (a recurrent decoder that attends once per step) are stacked.
        Of several streams, the latest by default. After `state.reorder` (beam search) a batch row has the steps of whichever
        hypothesis occupied it.
        """
        calls = self._calls(layer, stream)
        first, last, keys = calls[0], calls[-1], max(m.keys for m in calls)
        starts = [0, *accumulate(m.queries for m in calls[:-1])] if last.stream is None else [0] * len(calls)
        sizes = [len(m.rows) for m in calls]
        weights_BHLM = first.weights_BHLM.new_zeros(*first.weights_BHLM.shape[:2], sum(sizes), keys)
        for m, part in zip(calls, weights_BHLM.split(sizes, 2), strict=True):
            part[..., torch.tensor(m.columns, dtype=torch.long)] = m.weights_BHLM
        return replace(
            last,
            call=first.call,
            rows=tuple(row + start for m, start in zip(calls, starts, strict=True) for row in m.rows),
            columns=tuple(range(keys)),
            queries=starts[-1] + last.queries,
            weights_BHLM=weights_BHLM,
            normalised=all(m.normalised for m in calls),
            query_labels=_join_query_labels(calls),
            key_labels=last.key_labels if last.columns == tuple(range(keys)) else _gather_key_labels(calls, keys),
            query_values=None,
            key_values=None,
            inputs=None,
        )

    def _calls(self, layer: str, stream: int | None) -> list[Map]:
        """The calls of a layer that make one matrix."""
        every = self[layer]
        stream = every[-1].stream if stream is None else stream
        calls = [m for m in every if m.stream == stream]
        if not calls:
            raise UnknownName("stream of " + layer, str(stream), sorted({str(m.stream) for m in every}))
        if len({(len(m.weights_BHLM), m.heads) for m in calls}) > 1:
            raise ShapeError(f"{layer}: its calls differ in batch or heads and cannot be joined; take them from maps[{layer!r}]")
        if stream is None and len({m.columns for m in calls}) > 1:
            raise ShapeError(f"{layer}: its calls have different keys and no state, and cannot be joined; take them from maps[{layer!r}]")
        return calls

    def view(self, layer: str | None = None, call: int | None = None) -> Map:
        """One map of a layer: the call if given; else all steps joined if it ran step by step; else its last call."""
        if not self.all:
            raise CaptureNotSupported("nothing was captured; run the model inside `with capture(model) as maps:`")
        layer = self.layers[-1] if layer is None else layer
        found = self[layer]
        if call is not None:
            chosen = [m for m in found if m.call == call]
            if not chosen:
                raise UnknownName("call of " + layer, str(call), (str(m.call) for m in found))
            return chosen[0]
        last = [m for m in found if m.stream == found[-1].stream]
        stepwise = last[0].stream is not None or (all(m.queries == 1 for m in last) and len({m.columns for m in last}) == 1)
        return self.join_calls(layer) if len(last) > 1 and stepwise else last[-1]

    def label(
        self, queries: Words | None = None, keys: Words | None = None, layout: Layout | None = None, layer: str | None = None
    ) -> Maps:
        """New maps with labels for rows and columns, all of them or those of one layer; these keep theirs: `maps = maps.label(words, words)`.

        Args:
            queries: labels of the rows: a word per position, for all batch rows or for each; None: as they are.
            keys: labels of the columns, alike; None: as they are.
            layout: layout of the keys; None: as it is.
            layer: layer to label; None: all.
        """
        if layer is not None:
            self._check_layer(layer)
        return self._each(lambda m: m.label(queries, keys, layout) if layer in (None, m.layer) else m)

    def choose(self, layers: Layers) -> Maps:
        """Maps of some layers, chosen as in `capture`."""
        wanted = layer_filter(layers, self.layers)
        chosen = [m for m in self.all if wanted(m.layer, self.layers.index(m.layer))]
        return Maps(chosen, self.idle, self.image, gradients=self.gradients)

    def merge_words(self, words: Seq[int], keys: Seq[int] | None = None) -> Maps:
        """Every map with sub-word tokens merged into words; see `Map.merge_words`."""
        return self._each(lambda m: m.merge_words(words, keys))

    def _each(self, change: Callable[[Map], Map]) -> Maps:
        return self._with(map(change, self.all))

    def _with(self, maps: Iterable[Map]) -> Maps:
        """Other maps of the same input."""
        other = copy(self)
        other.all = list(maps)
        return other

    # -- across layers ------------------------------------------------------------------------------------

    def rollout(self, layers: Iterable[str] | None = None, run: int | None = None) -> Tensor:
        r"""Attention rollout, rollout_BLM: how much of each input reaches each position of the top layer (Abnar & Zuidema 2020).

        $$\tilde A_l = \text{rows of } \tfrac12(\text{mean}_h A_l + I) \text{ scaled to sum to one}, \qquad R = \tilde A_n \cdots \tilde A_1$$

        Over all layers in order of time, or `layers`; of several runs of the model the latest, or `run`. The mean is over captured heads.
        """
        names = self.layers if layers is None else list(layers)
        if not self.all:
            raise CaptureNotSupported("nothing was captured; run the model inside `with capture(model) as maps:`")
        for name in names:
            self._check_layer(name)
        run = self.all[-1].run if run is None else run
        chosen = [m for m in self.all if m.layer in names and m.run == run]
        if not chosen:
            raise UnknownName("run", str(run), sorted({str(m.run) for m in self.all}))
        product: Tensor | None = None
        for m in chosen:
            if not m.square or m.queries != chosen[0].queries:
                raise ShapeError(
                    f"{m.layer} has {len(m.rows)} of {m.queries} queries over {len(m.columns)} keys; rollout needs square matrices of one size: "
                    "capture all rows, and pass the self-attention layers of one stack as layers="
                )
            mixed = (m.weights_BHLM.float().mean(1) + torch.eye(m.queries)) / 2
            mixed = mixed / mixed.sum(-1, keepdim=True)
            product = mixed if product is None else mixed @ product
        assert product is not None
        return product

    def with_rollout(self, name: str = "rollout") -> Maps:
        """Add the rollout over all of these maps as a further layer of that name."""
        last = self.all[-1] if self.all else None
        rollout_BLM = self.rollout()
        assert last is not None
        more = replace(
            last, layer=name, mechanism="rollout", call=0, heads=(MEAN,), weights_BHLM=rollout_BLM[:, None], normalised=True, inputs=None
        )
        return self._with([*self.all, more])

    # -- files and pictures ------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write `name.safetensors` with `name.json` beside it, or one `name.npz`."""
        from .files import save

        return save(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Maps:
        """Read what `save` wrote."""
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
        scale: ScaleName = "row",
    ) -> Path:
        """Write a picture as PNG: one head of one layer, or small multiples of the layers and heads that are not selected.

        Args:
            path: file to write.
            layer: layer to draw; None: all, as small multiples.
            head: head to draw; None: all, as small multiples.
            batch: batch row to draw.
            call: index of the call; None: all steps joined if it ran step by step, else the last call.
            query: position whose attention is drawn, over a Grid on top of `image`, if there is one; None: the matrix.
            scale: meaning of the darkest colour, see `Scale`.
        """
        from .pictures import figure_of, png

        chosen = [self.view(name, call) for name in ([layer] if layer is not None or not self.all else self.layers)]
        Path(path).write_bytes(png(figure_of([m if head is None else m.head(head) for m in chosen], batch, query, self.image, scale)))
        return Path(path)

    def save_html(
        self,
        path: str | Path,
        title: str = "",
        text: str = "",
        batch: int = 0,
        others: Mapping[str, Maps] | None = None,
        gradients: bool = False,
    ) -> Path:
        """Write the explorer with these maps as one HTML file that opens without a server or a network.

        Args:
            path: file to write.
            title: title of the page.
            text: input of the model as text, shown on the page.
            batch: batch row to show.
            others: other maps by name, to compare with; named after numbers of steps, they become a slider over training.
            gradients: store those of all outputs (`self.gradients`), a backward pass each.
        """
        from .explorer import record
        from .html import save_html

        return save_html(record(self, title, text, batch, others), path, title, gradients)

    def show(
        self,
        layer: str | None = None,
        head: int | None = None,
        batch: int = 0,
        call: int | None = None,
        file: TextIO | None = None,
        scale: ScaleName = "row",
    ) -> None:
        """Print one matrix as shaded blocks; the mean of heads by default.

        Args:
            layer: layer to print; None: the last.
            head: index of the head; None: the mean of all.
            batch: batch row to print.
            call: index of the call; None: all steps joined if it ran step by step, else the last call.
            file: stream to print to; standard output if not given.
            scale: meaning of a full block, see `Scale`.
        """
        from .terminal import to_text

        print(to_text(self.view(layer, call).head(head), batch, scale=scale), file=sys.stdout if file is None else file)

    def show_summary(self, batch: int = 0, file: TextIO | None = None) -> None:
        """Print entropy and mean distance, layers × heads, and the rollout of each stack of self-attention layers."""
        from .overview import summary_text

        print(summary_text([self.view(layer) for layer in self.layers], batch), file=sys.stdout if file is None else file)

    def save_summary(self, path: str | Path, batch: int = 0) -> Path:
        """Write what `show_summary` prints as PNG."""
        from .overview import draw_summary
        from .pictures import png

        Path(path).write_bytes(png(draw_summary([self.view(layer) for layer in self.layers], batch)))
        return Path(path)

    def widget(self, title: str = "", batch: int = 0) -> Any:
        """The explorer as a notebook widget (extra `[notebook]`). Where it is installed, maps display themselves as one."""
        from .widget import widget

        return widget(self, title, batch)

    def _repr_mimebundle_(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]] | dict[str, Any]:
        """Show in a notebook: the widget if it can be made, always with the static picture as fall-back."""
        fallback: dict[str, Any] = {"text/plain": repr(self), "text/html": self._repr_html_()}
        try:
            shown = self.widget()._repr_mimebundle_(**options)
        except RegardError:  # not installed, nothing captured, or too large for a page
            return fallback
        data, metadata = shown if isinstance(shown, tuple) else (shown or {}, {})
        return {**fallback, **{kind: value for kind, value in data.items() if kind != "text/plain"}}, metadata

    def _repr_png_(self) -> bytes | None:
        from .pictures import figure_of, png

        return png(figure_of([self.view(layer) for layer in self.layers], image=self.image)) if self.all else None

    def _repr_html_(self) -> str:
        from .pictures import to_html

        return to_html([self.view(layer) for layer in self.layers])


def _join_query_labels(calls: list[Map]) -> Labels:
    if len({len(m.query_labels) for m in calls}) > 1:
        return ()
    lines_of_calls = zip(*(m.query_labels for m in calls), strict=True)
    return tuple(tuple(label for line in row for label in line) for row in lines_of_calls)


def _gather_key_labels(calls: list[Map], keys: int) -> Labels:
    """Labels of all keys, from calls that each had some of them."""
    if not all(m.key_labels for m in calls):
        return ()
    rows = []
    for b in range(len(calls[-1].key_labels)):
        known = {p: label for m in calls for p, label in zip(m.columns, m.key_labels[b], strict=True)}
        rows.append(tuple(known.get(p, "") for p in range(keys)))
    return tuple(rows)
