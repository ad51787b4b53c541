"""Graphs: nodes with features and labels, joined by edges; or many graphs with a label each.

    read_graphs("cora.npz")                                 Planetoid: x_indptr, x_indices, x_data, x_shape, edges, label, train, val, test
    read_graphs("edges.csv", nodes="nodes.csv")             an edge list (source, target, perhaps numbers), and a table of nodes (id, label, …)
    read_graphs("graphs.jsonl")                             {"edges": [[0, 1], …], "nodes": [[0.5], …], "labels": ["a", …]}, or "y" for a graph
    read_graphs("molecules")                                a folder of .graphml or .jsonl files per class
    read_graphs("club.graphml")                             GraphML, through networkx (the extra graphs)
    read_graphs("en-ud-train.conllu")                       sentences as trees: words joined to their heads, labelled with parts of speech
    read_graphs("blocks:nodes=300")                         generated: a stochastic block graph; shapes: rings, stars, trees and grids; karate

A pair (i, j) means that node i attends to node j: an edge from j to i. Edges are taken in both directions unless `directed`. An edge that is
listed twice counts once, and the features of the first are kept; a self-loop is an edge; a node without edges is kept. An edge to a node that does
not exist is a fault, with file and line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .._extras import extra
from ..errors import BadFile, MissingFile, NotSupported
from .arrays import Array, read_arrays
from .lines import Fault, cells, objects, plain_suffix
from .sources import between_option, source_options

MOST_NODES = 1 << 26  # per graph
GENERATED = ("blocks", "shapes", "karate")
BLOCKS = {"nodes": 300, "classes": 3, "features": 16, "signal": 35, "inside": 50, "across": 8, "known": 10, "noise": 0, "seed": 0}
SHAPES = {"count": 400, "seed": 0}
KINDS = ("ring", "star", "tree", "grid")
PARTS = {
    "train": "train",
    "training": "train",
    "valid": "valid",
    "val": "valid",
    "validation": "valid",
    "dev": "valid",
    "test": "test",
    "": "",
}


@dataclass(frozen=True, eq=False)
class Features:
    """Features of nodes by name, sparse: those of node n are entries first[n] … first[n + 1]."""

    names: tuple[str, ...]  # names of the features
    index_T: Array  # number of each entry's feature in `names`
    value_T: Array  # its value
    first: Array  # first entry of each node, and the end

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, float]]) -> Features:
        """Features from a mapping per node.

        Args:
            rows: value by name, per node.
        """
        names = tuple(dict.fromkeys(name for row in rows for name in row))
        number = {name: n for n, name in enumerate(names)}
        index = np.fromiter((number[name] for row in rows for name in row), np.int64)
        value = np.fromiter((value for row in rows for value in row.values()), np.float32)
        return cls(names, index, value, np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64))


@dataclass(frozen=True, eq=False)
class GraphData:
    """One graph."""

    name: str  # file and number
    nodes: tuple[str, ...]  # names
    pairs_E2: Array  # (i, j): node i attends to node j; each once
    features: Features
    labels: tuple[str, ...] = ()  # label of each node, "" where it is not known; empty: none is
    label: str = ""  # label of the graph
    parts: tuple[str, ...] = ()  # train, valid, test or "" of each node, where the data say so
    edge_EF: Array | None = None  # numbers of each pair

    def content(self) -> bytes:
        """All of it, as a hash."""
        whole = hashlib.blake2b(digest_size=16)
        f = self.features
        for one in (self.nodes, self.labels, self.label, self.parts, f.names):
            whole.update(repr(one).encode())
        for array in (self.pairs_E2, f.index_T, f.value_T, f.first, *(() if self.edge_EF is None else (self.edge_EF,))):
            whole.update(array.tobytes())
        return whole.digest()

    def of_nodes(self, chosen_N: Array) -> GraphData:
        """The induced subgraph of some nodes, in this order.

        Args:
            chosen_N: numbers of the nodes.
        """
        number = np.full(len(self.nodes), -1)
        number[chosen_N] = np.arange(len(chosen_N))
        both = (number[self.pairs_E2] >= 0).all(1)
        f = self.features
        taken = [np.arange(f.first[n], f.first[n + 1]) for n in chosen_N]
        at = np.concatenate([np.zeros(0, np.int64), *taken])
        first = np.concatenate([[0], np.cumsum([len(one) for one in taken])]).astype(np.int64)
        return replace(
            self,
            nodes=tuple(self.nodes[n] for n in chosen_N),
            pairs_E2=number[self.pairs_E2[both]],
            features=Features(f.names, f.index_T[at], f.value_T[at], first),
            labels=tuple(self.labels[n] for n in chosen_N) if self.labels else (),
            parts=tuple(self.parts[n] for n in chosen_N) if self.parts else (),
            edge_EF=None if self.edge_EF is None else self.edge_EF[both],
        )

    def labelled(self) -> Array:
        """Numbers of the nodes whose label is known."""
        return np.array([n for n, label in enumerate(self.labels) if label], dtype=np.int64)

    def number(self, name: str) -> int:
        """Number of the node with this name; without a name that of the one with most neighbours.

        Args:
            name: name of a node, or an empty text.
        """
        if not name:
            return int(np.bincount(self.pairs_E2[:, 0], minlength=len(self.nodes)).argmax())
        if name not in self.nodes:
            raise NotSupported(f"{self.name} has no node {name!r}; its nodes are {', '.join(self.nodes[:10])} …")
        return self.nodes.index(name)

    def around(self, node: int, hops: int, most: int) -> Array:
        """Numbers of the nodes within some steps of a node, nearest first, up to a number of nodes.

        Args:
            node: number of the node.
            hops: steps along pairs.
            most: number of nodes to stop at.
        """
        found, edge = [node], np.array([node])
        for _ in range(hops):
            reached = np.unique(self.pairs_E2[np.isin(self.pairs_E2[:, 0], edge), 1])
            edge = reached[~np.isin(reached, found)]
            found += edge.tolist()
        return np.array(found[:most])


def read_graphs(source: str, *, nodes: str | None = None, label: str = "label", directed: bool = False) -> Iterator[GraphData | Fault]:
    """Graphs of one source, and a Fault in place of one that cannot be used, or of an edge.

    Args:
        source: file, folder, or generated data.
        nodes: table of the nodes of an edge list.
        label: column, attribute or field that is the label of a node: `upos` and the like of CoNLL-U.
        directed: take edges in their direction only.
    """
    path, name = Path(source), source.partition(":")[0]
    if not path.exists() and name in GENERATED:
        yield from {"blocks": _blocks, "shapes": _shapes, "karate": _karate}[name](source.partition(":")[2])
    elif path.is_dir():
        for folder in sorted(one for one in path.iterdir() if one.is_dir()):
            for file in sorted(folder.iterdir()):
                for graph in read_graphs(str(file), label=label, directed=directed):
                    yield graph if isinstance(graph, Fault) else replace(graph, label=folder.name)
    elif not path.exists():
        raise MissingFile(
            f"{source}: no such file; expected .npz, .csv, .tsv, .jsonl, .graphml or .conllu, or one of {', '.join(GENERATED)}"
        )
    elif (suffix := plain_suffix(path)) == ".npz":
        yield _planetoid(path, directed)
    elif suffix in (".jsonl", ".ndjson", ".json", ".parquet"):
        yield from _objects(path, directed)
    elif suffix == ".graphml":
        yield _graphml(path, label, directed)
    elif suffix in (".conllu", ".conll"):
        yield from _conllu(path, label, directed)
    else:
        yield from _table(path, None if nodes is None else Path(nodes), label, directed)


def make_graph(
    name: str, nodes: Sequence[str], pairs: Iterable[tuple[int, int]], rows: Sequence[Mapping[str, float]], **more: Any
) -> GraphData:
    """A graph from pairs, each once. A graph without features gets each node's number of neighbours as one.

    Args:
        name: name of the graph.
        nodes: names of the nodes.
        pairs: (i, j) if node i attends to node j.
        rows: features of each node by name.
        **more: other fields of `GraphData`.
    """
    each = dict.fromkeys((int(i), int(j)) for i, j in pairs)
    pairs_E2 = np.array(list(each), dtype=np.int64).reshape(-1, 2)
    if not any(rows):
        degrees = np.bincount(pairs_E2[:, 0], minlength=len(nodes))
        rows = [{f"degree {min(degree, 16)}": 1.0} for degree in degrees.tolist()]
    return GraphData(name, tuple(nodes), pairs_E2, Features.of(rows), **more)


def tree_pairs(heads: Sequence[int], directed: bool = False) -> list[tuple[int, int]]:
    """The pairs of a syntax tree: each word and its head attend to each other. `edges(torch.tensor(tree_pairs(heads)).T)` is the pattern.

    Args:
        heads: number of the head of each word, from 0; −1 for the root.
        directed: a word attends to its head only.
    """
    up = [(word, head) for word, head in enumerate(heads) if head >= 0]
    return up if directed else [pair for word, head in up for pair in ((word, head), (head, word))]


def _both(pairs: Iterable[Sequence[int]], directed: bool) -> Iterator[tuple[int, int]]:
    """From (source, target) to (query, key): the target attends to the source, and back."""
    for source, target in pairs:
        yield target, source
        if not directed:
            yield source, target


# -- formats -----------------------------------------------------------------------------------------------------------


def _planetoid(path: Path, directed: bool) -> GraphData:
    arrays = read_arrays(path)
    needed = ("x_indptr", "x_indices", "x_data", "x_shape", "edges", "label")
    if missing := [name for name in needed if name not in arrays]:
        raise BadFile(f"{path}: no array {missing[0]}; expected {', '.join(needed)}, and perhaps train, val and test")
    first, index, value, labels = (np.asarray(arrays[name]) for name in ("x_indptr", "x_indices", "x_data", "label"))
    shape, edges = arrays["x_shape"].tolist(), arrays["edges"]
    count, width = shape if len(shape) == 2 else (-1, -1)
    sound = len(first) == count + 1 and len(index) == len(value) == int(first[-1]) and len(labels) == count and (np.diff(first) >= 0).all()
    if not sound or (len(index) and not 0 <= int(index.min()) <= int(index.max()) < width) or not np.isfinite(value).all():
        raise BadFile(f"{path}: x_indptr, x_indices, x_data, x_shape and label do not fit each other, or hold values that are not finite")
    if edges.ndim != 2 or edges.shape[1] != 2:
        raise BadFile(f"{path}: edges has shape {edges.shape}; expected (edges, 2)")
    if len(wrong := np.flatnonzero(((edges < 0) | (edges >= count)).any(1))):
        row = int(wrong[0])
        raise BadFile(f"{path}: row {row:,} of edges, {edges[row].tolist()}, has a node that does not exist; expected 0 to {count - 1:,}")
    parts = [""] * count
    for name in ("train", "val", "test"):
        chosen = arrays.get(name, np.zeros(0, np.int64))
        if len(chosen) and not 0 <= int(chosen.min()) <= int(chosen.max()) < count:
            raise BadFile(f"{path}: {name} has a node that does not exist; expected 0 to {count - 1:,}")
        for node in chosen.tolist():
            parts[node] = PARTS[name]
    pairs_E2 = np.concatenate([edges[:, ::-1], *([] if directed else [edges])]).astype(np.int64)
    features = Features(tuple(map(str, range(width))), index.astype(np.int64), value.astype(np.float32), first.astype(np.int64))
    named = tuple("" if one < 0 else str(one) for one in labels.tolist())
    pairs_E2 = pairs_E2[np.sort(np.unique(pairs_E2, axis=0, return_index=True)[1])]
    return GraphData(str(path), tuple(map(str, range(count))), pairs_E2, features, named, parts=tuple(parts) if any(parts) else ())


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if np.isfinite(value) else None


def _row(values: Mapping[str, Any]) -> dict[str, float]:
    """Features of a node from named values: numbers are values; a text is a feature of its own; empty, NaN and null are missing."""
    row: dict[str, float] = {}
    for name, value in values.items():
        number = _number(str(float(value) if isinstance(value, bool) else value))
        if number is not None:
            row[name] = number
        elif str(value).lower() not in ("", "nan", "none", "inf", "-inf"):
            row[f"{name}={value}"] = 1.0
    return row


def _table(path: Path, nodes: Path | None, label: str, directed: bool) -> Iterator[GraphData | Fault]:
    """An edge list with or without a header, and a table of nodes with one."""
    names: dict[str, int] = {}
    rows: list[dict[str, float]] = []
    labels: list[str] = []
    parts: list[str] = []
    if nodes is not None:
        header: list[str] | None = None
        for where, row in cells(nodes):
            if isinstance(row, Fault):
                yield row
            elif header is None:
                header = row
                if "id" not in header:
                    raise BadFile(f"{where}: columns {', '.join(header[:20])}; expected a header with id, {label} and features")
            elif len(row) != len(header):
                yield Fault(where, "another number of cells than the header", f"{len(row)}, not {len(header)}")
            elif (values := dict(zip(header, row, strict=True))).get("split", "").lower() not in PARTS:
                yield Fault(where, "unknown split", values["split"], "write train, valid or test")
            elif (name := values.pop("id")) in names:
                yield Fault(where, "a node that is listed already", name, "give each node one line")
            else:
                names[name] = len(names)
                labels.append(values.pop(label, ""))
                parts.append(PARTS[values.pop("split", "").lower()])
                rows.append(_row(values))
    pairs: dict[tuple[int, int], list[float]] = {}
    width = None
    for number, (where, row) in enumerate(cells(path)):
        if isinstance(row, Fault):
            yield row
            continue
        if number == 0 and len(row) > 1 and row[0].lower() in ("source", "from", "src") and row[1].lower() in ("target", "to", "dst"):
            continue
        numbers = [_number(cell) for cell in row[2:]]
        if len(row) < 2 or None in numbers or len(numbers) != (len(numbers) if width is None else width):
            yield Fault(where, "no edge", "\t".join(row)[:60], "write source, target and as many numbers as in the other lines")
            continue
        width = len(numbers)
        if nodes is not None and (unknown := [name for name in row[:2] if name not in names]):
            yield Fault(where, "an edge to a node that does not exist", f"{unknown[0]!r} is not in {nodes}", "add it to the table of nodes")
            continue
        source, target = (names.setdefault(name, len(names)) for name in row[:2])
        for pair in _both([(source, target)], directed):
            pairs.setdefault(pair, [one or 0.0 for one in numbers])
    if len(names) > MOST_NODES:
        raise NotSupported(f"{path}: {len(names):,} nodes; expected at most {MOST_NODES:,}")
    edge_EF = np.array(list(pairs.values()), dtype=np.float32) if width else None
    rows = rows or [{} for _ in names]
    yield make_graph(str(path), tuple(names), pairs, rows, labels=tuple(labels), parts=tuple(parts) if any(parts) else (), edge_EF=edge_EF)


def _objects(path: Path, directed: bool) -> Iterator[GraphData | Fault]:
    for where, one in objects(path):
        if isinstance(one, Fault):
            yield one
            continue
        edges = one.get("edges") if isinstance(one, dict) else None
        if not isinstance(edges, list) or not all(map(_is_edge, edges)):
            yield Fault(where, "no edges", "", 'write {"edges": [[0, 1], …], "nodes": [[0.5], …], "labels": ["a", …] or "y": "a"}')
            continue
        nodes, labels = one.get("nodes"), one.get("labels")
        count = len(nodes) if isinstance(nodes, list) else max((max(edge) for edge in edges), default=-1) + 1
        outside = [edge for edge in edges if not 0 <= min(edge) <= max(edge) < count]
        if not count:
            yield Fault(where, "no nodes", "", 'write "nodes": [[0.5], …]')
        elif outside:
            yield Fault(where, "an edge to a node that does not exist", f"{outside[0]} of {count} nodes", "number nodes from 0")
        elif isinstance(labels, list) and len(labels) != count:
            yield Fault(where, "another number of labels than nodes", f"{len(labels)} and {count}")
        elif isinstance(nodes, list) and (wrong := next((node for node in nodes if not isinstance(node, list | dict)), None)) is not None:
            yield Fault(where, "features in another form", str(wrong)[:40], "write a list of numbers, or an object, per node")
        else:
            rows = [
                _row(node if isinstance(node, dict) else dict(zip(map(str, range(len(node))), node, strict=True)))
                for node in nodes or [{}] * count
            ]
            named = tuple("" if one is None else str(one) for one in labels) if isinstance(labels, list) else ()
            y = "" if one.get("y") is None else str(one["y"])
            yield make_graph(where, tuple(map(str, range(count))), _both(edges, directed), rows, labels=named, label=y)


def _is_edge(edge: Any) -> bool:
    return isinstance(edge, list) and len(edge) == 2 and all(isinstance(node, int) and not isinstance(node, bool) for node in edge)


def _graphml(path: Path, label: str, directed: bool) -> GraphData:
    with extra("graphs"):
        import networkx
    text = path.read_bytes()
    if b"<!DOCTYPE" in text or b"<!ENTITY" in text:
        raise BadFile(f"{path}: a document type, whose entities could name other files; save GraphML without one")
    try:
        found = networkx.parse_graphml(text.decode())
    except (networkx.NetworkXError, ValueError, SyntaxError, KeyError) as wrong:
        raise BadFile(f"{path}: no GraphML: {' '.join(str(wrong).split())[:100]}") from wrong
    return _of_networkx(str(path), found, label, directed)


def _of_networkx(name: str, found: Any, label: str, directed: bool) -> GraphData:
    number = {node: n for n, node in enumerate(found.nodes)}
    rows = [dict(values) for _, values in found.nodes(data=True)]
    labels = tuple(str(row.pop(label, "")) for row in rows)
    parts = tuple(PARTS.get(str(row.pop("split", "")).lower(), "") for row in rows)
    pairs = _both(((number[source], number[target]) for source, target in found.edges()), directed and found.is_directed())
    more = {"labels": labels if any(labels) else (), "parts": parts if any(parts) else (), "label": str(found.graph.get("y", ""))}
    return make_graph(name, tuple(map(str, found.nodes)), pairs, [_row(row) for row in rows], **more)


COLUMNS = {"label": 3, "upos": 3, "xpos": 4, "deprel": 7}  # of CoNLL-U; the part of speech is the label by default


def _conllu(path: Path, label: str, directed: bool) -> Iterator[GraphData | Fault]:
    """A tree per sentence; lines of multi-word tokens and empty nodes are left out."""
    if label not in COLUMNS:
        raise NotSupported(f"label {label!r} of {path}: expected one of {', '.join(COLUMNS)}")
    words: list[list[str]] = []
    where, number, wrong = str(path), 0, None
    for here, row in [*_conllu_lines(path), ("", [])]:
        if row and row[0].startswith("#"):
            continue
        if not row:
            if words and wrong is None:
                number += 1
                yield _sentence(f"{path}#{number}", words, COLUMNS[label], directed)
            elif wrong is not None:
                yield wrong
            words, wrong = [], None
            continue
        where = here
        if len(row) < 8:
            wrong = wrong or Fault(where, "no line of CoNLL-U", "\t".join(row)[:60], "expected ten columns separated by tabs")
        elif row[0].isdigit():
            words.append(row)
            if not row[6].isdigit() or int(row[0]) != len(words):
                wrong = wrong or Fault(where, "no number of a head, or words out of order", "\t".join(row[:7:6]))
    return


def _conllu_lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    from .lines import every_line

    last = 0
    for where, line, _ in every_line(path):
        if isinstance(line, Fault):
            yield where, ["?"]
        else:
            last = 0 if not line.strip() else last + 1
            yield where, line.split("\t") if line.strip() else []


def _sentence(name: str, words: list[list[str]], column: int, directed: bool) -> GraphData:
    heads = [int(row[6]) - 1 for row in words]
    if any(head >= len(words) for head in heads):
        raise BadFile(f"{name}: a head that does not exist; the sentence has {len(words)} words")
    rows = [
        {f"form={row[1].lower()}": 1.0, f"suffix={row[1].lower()[-3:]}": 1.0} | ({"capital": 1.0} if row[1][:1].isupper() else {})
        for row in words
    ]
    forms = tuple(row[1] for row in words)
    return make_graph(
        name, forms, tree_pairs(heads, directed), rows, labels=tuple("" if row[column] == "_" else row[column] for row in words)
    )


# -- generated ---------------------------------------------------------------------------------------------------------


def _blocks(text: str) -> Iterator[GraphData]:
    """A stochastic block graph: communities with many edges inside and few across, features that tell little, few known labels.

    `noise`: as many nodes in a hundred have no label, random features but a mark, and edges to anyone.
    """
    _, o = source_options(f",{text}" if text else "", BLOCKS)
    count, classes = between_option("nodes", o["nodes"], 10, 20_000), between_option("classes", o["classes"], 2, 20)
    width = between_option("features", o["features"], classes, 1000)
    signal, inside, across, known = (between_option(name, o[name], 0, 1000) for name in ("signal", "inside", "across", "known"))
    random = np.random.default_rng(o["seed"])
    noise_N = np.arange(count) < count * between_option("noise", o["noise"], 0, 90) / 100
    label_N = random.integers(classes, size=count)
    rate_NN = np.where(label_N[:, None] == label_N, inside, across) / 1000
    rate_NN = np.where(noise_N[:, None] | noise_N, 2 * inside / 1000, rate_NN)
    pairs = np.argwhere(np.triu(random.random((count, count)) < rate_NN, 1))
    x_NF = random.standard_normal((count, width)).astype(np.float32)
    x_NF[~noise_N, label_N[~noise_N]] += signal / 25
    if noise_N.any():
        x_NF = np.concatenate([x_NF, 3 * noise_N[:, None]], 1).astype(np.float32)
    place_N = random.permutation(count)
    parts = np.where(place_N < count * known / 100, "train", np.where(place_N < count * (known / 100 + 0.2), "valid", "test"))
    rows = [{str(n): float(value) for n, value in enumerate(row)} for row in x_NF]
    names = [f"noise{n}" if noise else f"{'abcdefghijklmnopqrst'[c]}{n}" for n, (c, noise) in enumerate(zip(label_N, noise_N, strict=True))]
    labels = tuple("" if noise else "abcdefghijklmnopqrst"[c] for c, noise in zip(label_N, noise_N, strict=True))
    yield make_graph(f"blocks:{text}", names, _both(pairs.tolist(), False), rows, labels=labels, parts=tuple(parts.tolist()))


def _shapes(text: str) -> Iterator[GraphData]:
    """Small graphs of four kinds, each with a few random edges more."""
    _, o = source_options(f",{text}" if text else "", SHAPES)
    for number in range(between_option("count", o["count"], 1, 100_000)):
        random = np.random.default_rng([o["seed"], number])
        kind, count = KINDS[number % 4], int(random.integers(8, 25))
        if kind == "ring":
            pairs = [(n, (n + 1) % count) for n in range(count)]
        elif kind == "star":
            pairs = [(0, n) for n in range(1, count)]
        elif kind == "tree":
            pairs = [(n, int(random.integers(max(0, n - 4), n))) for n in range(1, count)]
        else:
            columns = int(random.integers(3, 6))
            right = [(n, n + 1) for n in range(count - 1) if (n + 1) % columns]
            pairs = right + [(n, n + columns) for n in range(count - columns)]
        pairs += [(int(a), int(b)) for a, b in random.integers(count, size=(int(random.integers(3)), 2)) if a != b]
        yield make_graph(f"shapes#{number + 1}", tuple(map(str, range(count))), _both(pairs, False), [{}] * count, label=kind)


def _karate(text: str) -> Iterator[GraphData]:
    """Zachary's karate club, of networkx: members by the side they took; each is its own feature, and the two leaders' sides are known."""
    with extra("graphs", "or use --data blocks, which needs no package"):
        import networkx
    found = networkx.karate_club_graph()
    members = list(found.nodes)
    labels = tuple(str(found.nodes[one]["club"]) for one in members)
    parts = ["train" if n in (0, 33) else "valid" if n % 3 == 1 else "test" for n in range(len(members))]
    rows = [{f"member {n}": 1.0} for n in members]
    names, pairs = tuple(map(str, members)), _both(found.edges(), False)
    yield make_graph("karate", names, pairs, rows, labels=labels, parts=tuple(parts))
