"""Data of the explorer page: a JSON header, and binary pieces by key. docs/explorer.md describes the format.

    >>> recording = Recording(maps, title="runs/numbers", text="twenty-one")
    >>> recording.header()["maps"][0]["name"]
    >>> recording.piece("tile/0/0/0/0/0")

| key | bytes |
|---|---|
| `statistics/MAP` | JSON: entropy, distance, sink, low, high; a number per head |
| `tile/MAP/HEAD/LEVEL/I/J` | float32 low and high, then uint8 cells |
| `allowed/MAP/HEAD/LEVEL/I/J` | the same for the pattern: 255 where a pair is allowed |
| `values/MAP/HEAD/FIRST/LAST` | float32: exact rows |
| `column/MAP/HEAD/J` | float32: one exact column |
| `maxima/MAP/HEAD` | float32: the largest magnitude of each row |
| `queries/MAP/HEAD`, `keys/MAP/HEAD` | float32: the vectors of which dot products are taken |
| `norms/MAP/HEAD` | float32: the norm of each value after the output projection |
| `bias/MAP/HEAD/I` | float32: what was added to the scores of one query |
| `gradients/MAP/I` | float32: the log-probability of the output of one query; per key, the norm of its gradient, and gradient × input |
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import CaptureNotSupported, RegardError, ShapeError, UnknownName
from .gradients import GradientRow
from .images import data_url
from .interventions import AblatedWeights
from .layouts import Graph, to_json
from .map import MEAN, Map
from .maps import Maps
from .tiles import TILE, TileReader

FORMAT, VERSION = "regard.explorer", 1
MAX_VALUES = 2**22  # exact weights per piece
MAX_ROLLOUT = 2048  # positions: a rollout multiplies whole matrices


class Recording:
    """One capture as the explorer reads it. `facts` are further plain values for the page: the loss, the output, the step."""

    def __init__(self, maps: Maps, *, id: str = "0", title: str = "", text: str = "", batch: int = 0, **facts: Any):
        views = [maps.view(layer) for layer in maps.layers]
        if maps.image is not None:
            facts |= {"image": data_url(maps.image), "grey": np.ndim(maps.image) == 2}
        if maps.points is not None:
            facts["points"] = _unit_square(maps.points)
        if maps.score is not None:
            facts = {"output": maps.answer, "score": maps.score} | facts
        self.points = 0 if maps.points is None else len(maps.points)
        self.gradients = maps.gradients if batch == 0 else None
        if self.gradients is None:
            facts["no_gradients"] = maps.no_gradients
        self._gradient_rows: dict[int, GradientRow] = {}  # by output
        self.id, self.title, self.text, self.facts, self.batch = id, title, text, facts, batch
        for m in views:
            if not 0 <= batch < len(m.weights_BHLM):
                raise ShapeError(f"{m.layer}: batch={batch}; expected one of {len(m.weights_BHLM)} batch rows, counted from 0")
        self.derived = [] if any(m.deferred for m in views) else _rollouts(maps, views)
        self.maps = [*views, *self.derived]
        self.readers = [TileReader(m, batch) for m in self.maps]
        self._labels: list[list[str]] = []

    @property
    def nbytes(self) -> int:
        """Bytes that its maps keep in memory."""
        return Maps(self.maps).nbytes

    def header(self) -> dict[str, Any]:
        """Plain values that describe the capture; small, and made without reading weights."""
        self._labels = []
        described = [self._describe(reader) for reader in self.readers]
        return {"id": self.id, "title": self.title, "text": self.text, **self.facts, "labels": self._labels, "maps": described}

    def _describe(self, reader: TileReader) -> dict[str, Any]:
        m, queries, keys, outputs = reader.map, None, None, None
        if m.query_labels:
            queries = self._label_index(m.labels(self.batch)[0])
        if m.key_labels:
            keys = self._label_index(m.labels(self.batch)[1])
        if self.gradients is not None and self._input_number(m) is not None:
            outputs = self._label_index(self.gradients.outputs)
        return {
            "name": m.layer,
            "mechanism": m.mechanism,
            "pattern": m.pattern,
            "heads": [str(h) if h != MEAN else "mean" for h in m.heads] + (["mean"] if len(m.heads) > 1 else []),
            "rows": reader.rows,
            "columns": reader.columns,
            "first_row": m.rows[0] if m.rows else 0,
            "offset": m.keys - m.queries,
            "levels": reader.levels,
            "deferred": m.deferred,
            "tile": TILE,
            "normalised": m.normalised,
            "signed": m.signed,
            "derived": any(m is one for one in self.derived),
            "cross": _is_cross(m),
            "row_labels": queries,
            "column_labels": keys,
            **{f"{side}_values": found._asdict() for side, found in (("row", m.query_values), ("column", m.key_values)) if found},
            "layout": _layout(m),
            "points": m.keys == self.points,
            "outputs": outputs,
            "allowed": reader.pattern() is not None,
            "dimensions": self._dimensions(m),
            "scale": self._score_scale(reader),
            **({"ablated": ablated} if (ablated := self._ablated(m)) else {}),
        }

    def _label_index(self, labels: list[str]) -> int:
        if labels not in self._labels:
            self._labels.append(labels)
        return self._labels.index(labels)

    def _input_number(self, m: Map) -> int | None:
        """Number of the input of `gradients` that has the keys of this map, if its queries compute outputs."""
        assert self.gradients is not None
        layers = self.gradients.layers
        if any(m is one for one in self.derived):  # a rollout has the queries and keys of its layers
            stack = m.layer.removeprefix("rollout of ")
            return next((n for layer, n in layers.items() if layer.split(".")[0] == stack), None)
        return layers.get(m.layer)

    @staticmethod
    def _ablated(m: Map) -> dict[str, str]:
        """Ablated heads by name: zero or uniform."""
        change = None if m.inputs is None else m.inputs.observed.change
        return {str(head): how for head, how in change.heads.items() if head in m.heads} if isinstance(change, AblatedWeights) else {}

    @staticmethod
    def _dimensions(m: Map) -> int:
        return 0 if m.inputs is None else m.inputs.observed.q_BLHK.shape[-1]

    def _score_scale(self, reader: TileReader) -> float | None:
        """The factor of q·k in the scores, 1/√K as a rule; None if the weights of the last row are not a softmax of q·k plus a bias."""
        if reader.map.inputs is None or not reader.rows:
            return None
        last, n = reader.rows - 1, reader.columns
        own = replace(reader.map.inputs, observed=reader.map.inputs.observed._replace(change=None))  # not those of an ablated head
        row_M = own.weights(last, last + 1, reader.map.heads[:1])[self.batch, 0, 0].double()
        read = [
            torch.frombuffer(bytearray(self.piece(f"{kind}/{self.readers.index(reader)}/0")), dtype=torch.float32)
            for kind in ("queries", "keys")
        ]
        q_K, k_MK = read[0].unflatten(0, (reader.rows, -1))[last].double(), read[1].unflatten(0, (n, -1)).double()
        log_M = row_M.log() - self._row_bias(reader, 0, last).double()
        used = (row_M > 1e-9).nonzero()[:, 0]
        dot = (k_MK @ q_K)[used]
        spread = dot - dot.mean()
        if len(used) < 3 or float(spread.square().sum()) < 1e-9:
            return None
        target = log_M[used] - log_M[used].mean()
        scale = float((spread * target).sum() / spread.square().sum())
        return scale if float((target - scale * spread).abs().max()) < 1e-3 * max(1.0, float(target.abs().max())) else None

    # -- pieces --------------------------------------------------------------------------------------------------------

    def piece(self, key: str) -> bytes:
        """The bytes of one piece; an unknown key is a RegardError."""
        if not re.fullmatch(r"[a-z]+(/\d{1,9}){1,5}", key):
            raise UnknownName("piece", key[:80], self._kinds)
        kind, *numbers = key.split("/")
        where = [int(number) for number in numbers]
        if kind not in self._kinds or len(where) != self._kinds[kind][0] or where[0] >= len(self.readers):
            raise UnknownName("piece", key[:80], (f"{name} and {count} numbers" for name, (count, _) in self._kinds.items()))
        return self._kinds[kind][1](self, self.readers[where[0]], *where[1:])

    def _statistics(self, reader: TileReader) -> bytes:
        return json.dumps(reader.statistics()).encode()

    def _tile(self, reader: TileReader, *at: int) -> bytes:
        return reader.tile(*at)

    def _allowed(self, reader: TileReader, *at: int) -> bytes:
        return reader.allowed(*at)

    def _values(self, reader: TileReader, head: int, first: int, last: int) -> bytes:
        if not first < last <= reader.rows or (last - first > 1 and (last - first) * reader.columns > MAX_VALUES):
            raise ShapeError(f"rows {first} to {last} of {reader.rows}; expected at most {MAX_VALUES:,} weights per piece")
        return _floats(reader.values(head, first, last))

    def _column(self, reader: TileReader, head: int, j: int) -> bytes:
        return _floats(reader.column(head, j))

    def _maxima(self, reader: TileReader, head: int) -> bytes:
        return _floats(reader.maxima(head))

    def _queries(self, reader: TileReader, head: int) -> bytes:
        observed, head = self._observed(reader, head)
        return _floats(observed.q_BLHK[self.batch, list(reader.map.inputs.rows), head])  # type: ignore[union-attr]

    def _keys(self, reader: TileReader, head: int) -> bytes:
        observed, head = self._observed(reader, head)
        groups, heads = observed.k_BMHK.shape[2], observed.q_BLHK.shape[2]
        return _floats(observed.k_BMHK[self.batch, :, head * groups // heads])

    def _norms(self, reader: TileReader, head: int) -> bytes:
        observed, head = self._observed(reader, head)
        assert reader.map.inputs is not None
        norms_BHM = reader.map.inputs.value_norms_BHM
        if norms_BHM is None:
            raise UnknownName("norms of", reader.map.layer, ())
        return _floats(norms_BHM[self.batch, head * norms_BHM.shape[1] // observed.q_BLHK.shape[2]])

    def _bias(self, reader: TileReader, head: int, i: int) -> bytes:
        return _floats(self._row_bias(reader, head, i))

    def _row_bias(self, reader: TileReader, head: int, i: int) -> Tensor:
        """Compute what is added to the scores of one query."""
        observed, head = self._observed(reader, head)
        assert reader.map.inputs is not None
        if i >= reader.rows:
            raise UnknownName("row of " + reader.map.layer, str(i), ())
        bias = observed.call.of_rows(torch.tensor([reader.map.inputs.rows[i]], device=observed.q_BLHK.device)).scores_bias()
        if not isinstance(bias, Tensor):
            return torch.full((reader.columns,), float(bias))
        B, H = observed.q_BLHK.shape[0], observed.q_BLHK.shape[2]
        return bias.detach().expand(B, H, 1, observed.call.keys)[self.batch, head, 0].cpu()

    def _gradients(self, reader: TileReader, i: int) -> bytes:
        m = reader.map
        number = None if self.gradients is None else self._input_number(m)
        if self.gradients is None or number is None or i >= reader.rows:
            raise UnknownName("gradients of " + m.layer, str(i), ())
        count = len(self.gradients.outputs)
        output = 0 if count == 1 else i if count == reader.rows else m.rows[i]
        if output not in self._gradient_rows:
            self._gradient_rows[output] = self.gradients.rows([output])[0]
        row, at = self._gradient_rows[output], self.gradients.positions.get(m.layer)
        return _floats(torch.tensor([row.log_probability])) + b"".join(
            _floats(_over_keys(m, x[number] if at is None else x[number][at])) for x in (row.norm, row.times_input)
        )

    def read_gradients(self) -> None:
        """Compute those of all outputs in one forward pass, for a file."""
        if self.gradients is not None:
            outputs = range(len(self.gradients.outputs))
            self._gradient_rows = dict(zip(outputs, self.gradients.rows(outputs), strict=True))

    def _observed(self, reader: TileReader, head: int) -> tuple[Any, int]:
        inputs, heads = reader.map.inputs, reader.map.heads
        if inputs is None or not 0 <= head < len(heads):
            raise UnknownName("head of " + reader.map.layer + " with queries and keys", str(head), map(str, heads) if inputs else ())
        return inputs.observed, heads[head]

    _kinds: dict[str, tuple[int, Callable[..., bytes]]] = {  # noqa: RUF012  a constant
        "statistics": (1, _statistics),
        "tile": (5, _tile),
        "allowed": (5, _allowed),
        "values": (4, _values),
        "column": (3, _column),
        "maxima": (2, _maxima),
        "queries": (2, _queries),
        "keys": (2, _keys),
        "norms": (2, _norms),
        "bias": (3, _bias),
        "gradients": (2, _gradients),
    }


def record(maps: Maps, title: str = "", text: str = "", batch: int = 0, others: Mapping[str, Maps] | None = None) -> list[Recording]:
    """Recordings of maps and of others to compare them with. Names that are numbers are steps of training."""
    named = {title: maps, **(others or {})}
    if not all(each.all for each in named.values()):
        raise CaptureNotSupported("nothing was captured; run the model inside `with capture(model) as maps:`")
    return [
        recording
        for n, (name, each) in enumerate(named.items())
        for recording in record_answers(
            each, id=str(n), title=name, text=text, batch=batch, **({"step": int(name)} if others and name.isdecimal() else {})
        )
    ]


def record_answers(maps: Maps, *, id: str, **about: Any) -> list[Recording]:
    """The recording of one input and, after it, those of the other answers to it (`Maps.alternatives`), which name it with `of`."""
    others = {name: value for name, value in about.items() if name in ("title", "text", "batch")}
    return [Recording(maps, id=id, **about)] + [
        Recording(other, id=f"{id}.{n}", of=id, **others) for n, other in enumerate(maps.alternatives, 1)
    ]


def document(recordings: list[Recording], title: str = "", **facts: Any) -> dict[str, Any]:
    """The header of a page: all captures it shows."""
    captures = [recording.header() for recording in recordings]
    return {"format": FORMAT, "format_version": VERSION, "title": title, **facts, "captures": captures}


def _floats(x: Tensor) -> bytes:
    return x.detach().to("cpu", torch.float32).contiguous().numpy().astype("<f4").tobytes()


def _over_keys(m: Map, x_M: Tensor) -> Tensor:
    """A number per key, of numbers per input: what comes before a grid (a class token) is not an input, and has none."""
    before = len(m.columns) - len(x_M)
    if before not in (0, getattr(m.layout, "prefix_tokens", 0)):
        raise ShapeError(f"{m.layer}: {len(m.columns)} keys, but {len(x_M)} inputs with gradients")
    return torch.cat([torch.full((before,), torch.nan), x_M.detach().cpu()])


def _unit_square(points: Any) -> list[list[float]]:
    """Points moved and scaled to −1 … 1, the same for both axes; y grows upwards."""
    xy = torch.as_tensor(points).double()
    if xy.dim() != 2 or xy.shape[1] != 2 or not bool(xy.isfinite().all()):
        raise ShapeError(f"points of shape {tuple(xy.shape)}; expected (keys, 2), all finite")
    if not len(xy):
        return []
    low, high = xy.amin(0), xy.amax(0)
    scaled = (xy - (low + high) / 2) / ((high - low).max() / 2).clamp(min=1e-12)
    return [[round(x, 4), round(-y, 4)] for x, y in scaled.tolist()]


def _layout(m: Map) -> dict[str, Any]:
    """Describe a layout as files of maps do; a graph also with points to draw its nodes at."""
    plain = to_json(m.layout)
    if isinstance(m.layout, Graph):
        from .pictures import spring_layout

        nodes = max(m.keys, m.queries)
        points = spring_layout(nodes, m.layout.edges)
        plain["points"] = (points / max(abs(points).max(), 1e-9)).round(4).tolist() if nodes else []
    return plain


def _is_cross(m: Map) -> bool:
    """Return whether queries and keys are different sequences, as far as labels and pattern tell."""
    return "causal" not in m.pattern and (m.query_labels != m.key_labels or len(m.rows) != len(m.columns))


def _rollouts(maps: Maps, views: list[Map]) -> list[Map]:
    """Attention rollout of each stack of self-attention layers, as one more map per stack."""
    stacks: dict[tuple[str, int], list[Map]] = {}
    for m in views:
        if m.square and m.normalised and not m.signed and m.stream is None and m.queries <= MAX_ROLLOUT:
            stacks.setdefault((m.layer.split(".")[0], m.queries), []).append(m)
    found = []
    for (stack, _), members in stacks.items():
        if len(members) < 2:
            continue
        try:
            rolled_BLM = maps.rollout([m.layer for m in members])
        except RegardError:
            continue
        last = members[-1]
        found.append(
            Map(
                layer=f"rollout of {stack}",
                mechanism=f"rollout of {len(members)} layers",
                call=0,
                run=last.run,
                heads=(MEAN,),
                rows=last.rows,
                columns=last.columns,
                queries=last.queries,
                weights_BHLM=rolled_BLM[:, None],
                normalised=True,
                pattern=last.pattern,
                query_labels=last.query_labels,
                key_labels=last.key_labels,
                layout=last.layout,
            )
        )
    return found
