"""Graphs as tensors: features by name, normalised; edges with self-loops; positional encodings of the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data.arrays import Array
from ..data.graphs import GraphData
from ..errors import NotSupported
from ..layers import SparseFeatures
from ..models import GraphBatch
from .task import JsonProcessor

MOST_ENCODED = 4000  # nodes of a graph with positional encodings: they need all of its N × N matrix


class GraphExample(NamedTuple):
    """A graph, and which of its nodes the question is about."""

    graph: GraphData
    chosen_C: Array | None = None  # numbers of nodes; None: the graph as a whole


class GraphRow(NamedTuple):
    """A graph as tensors."""

    features: SparseFeatures
    pairs_2E: Tensor
    edge_EF: Tensor | None
    laplacian_NP: Tensor | None  # whose signs are arbitrary
    walk_NP: Tensor | None
    chosen_C: Tensor | None
    target_C: Tensor


@dataclass(frozen=True)
class GraphProcessor(JsonProcessor):
    """Names of features and labels, and how numbers are scaled."""

    features: tuple[str, ...]
    labels: tuple[str, ...]
    pool: bool
    scale: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    edge_mean: tuple[float, ...]
    edge_std: tuple[float, ...]
    self_loops: bool

    @classmethod
    def of(cls, examples: Sequence[GraphExample], scale: str, self_loops: bool) -> GraphProcessor:
        """Processor for the graphs of the training part; their labels are those of the chosen nodes.

        Args:
            examples: training part.
            scale: rows, columns, none, or auto.
            self_loops: each node attends to itself.
        """
        graphs = list({id(one.graph): one.graph for one in examples}.values())
        names = tuple(dict.fromkeys(name for graph in graphs for name in graph.features.names))
        number = {name: n for n, name in enumerate(names)}
        index = np.concatenate([np.array([number[name] for name in g.features.names], np.int64)[g.features.index_T] for g in graphs])
        value = np.concatenate([g.features.value_T for g in graphs]).astype(np.float64)
        if scale == "auto":
            scale = "rows" if (value == 1).all() else "columns"
        count = np.maximum(np.bincount(index, minlength=len(names)), 1)
        mean = np.bincount(index, value, len(names)) / count
        std = np.sqrt(np.bincount(index, (value - mean[index]) ** 2, len(names)) / count)
        constant = std < 1e-6
        mean, std = np.where(constant, 0, mean), np.where(constant, np.maximum(np.abs(mean), 1e-6), std)
        edge_mean, edge_std = np.zeros(0), np.zeros(0)
        if edges := [g.edge_EF for g in graphs if g.edge_EF is not None]:
            edge_mean, edge_std = np.concatenate(edges).mean(0), np.maximum(np.concatenate(edges).std(0), 1e-6)
        found = {one.graph.label if one.chosen_C is None else one.graph.labels[n] for one in examples for n in _chosen(one)}
        if scale != "columns":
            mean, std = mean[:0], std[:0]
        moments = [tuple(map(float, one)) for one in (mean, std, edge_mean, edge_std)]
        pool = examples[0].chosen_C is None
        return cls(names, tuple(sorted(found)), pool, scale, moments[0], moments[1], moments[2], moments[3], self_loops)

    def encode(self, example: GraphExample, laplacian: int, random_walk: int) -> GraphRow:
        """The tensors of a graph. A feature that is not known is left out, and a label becomes −1.

        Args:
            example: graph and chosen nodes.
            laplacian: eigenvectors of its Laplacian per node.
            random_walk: probabilities of return per node.
        """
        g, known = example.graph, {name: n for n, name in enumerate(self.features)}
        number = np.array([known.get(name, -1) for name in g.features.names], np.int64)
        index = number[g.features.index_T] if len(number) else np.zeros(0, np.int64)
        row_T = np.repeat(np.arange(len(g.nodes)), np.diff(g.features.first))[index >= 0]
        index, value = index[index >= 0], g.features.value_T[index >= 0].astype(np.float64)
        if self.scale == "columns":
            value = (value - np.array(self.mean)[index]) / np.array(self.std)[index]
        elif self.scale == "rows":
            value = value / np.maximum(np.bincount(row_T, np.abs(value), len(g.nodes)), 1e-12)[row_T]
        first = np.concatenate([[0], np.cumsum(np.bincount(row_T, minlength=len(g.nodes)))])
        features = SparseFeatures(torch.from_numpy(index), torch.from_numpy(value).float(), torch.from_numpy(first))
        pairs_E2, edge_EF = g.pairs_E2, g.edge_EF
        if len(self.edge_mean):
            if edge_EF is None or edge_EF.shape[1] != len(self.edge_mean):
                raise NotSupported(
                    f"{g.name}: {0 if edge_EF is None else edge_EF.shape[1]} numbers per edge, the run expects {len(self.edge_mean)}"
                )
            edge_EF = (edge_EF - np.array(self.edge_mean)) / np.array(self.edge_std)
        else:
            edge_EF = None
        if self.self_loops:
            alone = np.setdiff1d(np.arange(len(g.nodes)), pairs_E2[pairs_E2[:, 0] == pairs_E2[:, 1], 0])
            pairs_E2 = np.concatenate([pairs_E2, np.stack([alone, alone], 1)])
            edge_EF = None if edge_EF is None else np.concatenate([edge_EF, np.zeros((len(alone), edge_EF.shape[1]))])  # the mean
        chosen_C = None if example.chosen_C is None else torch.from_numpy(example.chosen_C)
        classes = {name: n for n, name in enumerate(self.labels)}
        labels = [g.label] if example.chosen_C is None else [g.labels[n] if g.labels else "" for n in example.chosen_C]
        return GraphRow(
            features,
            torch.from_numpy(np.ascontiguousarray(pairs_E2.T)),
            None if edge_EF is None else torch.from_numpy(edge_EF).float(),
            laplacian_encoding(g, laplacian) if laplacian else None,
            random_walk_encoding(g, random_walk) if random_walk else None,
            chosen_C,
            torch.tensor([classes.get(label, -1) for label in labels]),
        )

    def collate(self, rows: Sequence[GraphRow], generator: torch.Generator | None) -> GraphBatch:
        """Graphs side by side as one. In training the signs of eigenvectors are drawn again.

        Args:
            rows: graphs as tensors.
            generator: random numbers; None: an evaluation.
        """
        n_B = torch.tensor([row.features.rows for row in rows])
        start = (n_B.cumsum(0) - n_B).tolist()
        position_NP = None
        parts = [
            torch.cat([x for x in (_signed(row.laplacian_NP, generator), row.walk_NP) if x is not None], 1) for row in rows if _encoded(row)
        ]
        if parts:
            position_NP = torch.cat(parts)
        entries = torch.tensor([0, *(len(row.features.index_T) for row in rows)]).cumsum(0).tolist()
        first = torch.cat([*(row.features.first[:-1] + at for row, at in zip(rows, entries, strict=False)), torch.tensor([entries[-1]])])
        one = len(rows) == 1
        features = (
            rows[0].features
            if one
            else SparseFeatures(torch.cat([row.features.index_T for row in rows]), torch.cat([row.features.value_T for row in rows]), first)
        )
        return GraphBatch(
            features,
            rows[0].pairs_2E if one else torch.cat([row.pairs_2E + at for row, at in zip(rows, start, strict=True)], 1),
            n_B,
            None if rows[0].edge_EF is None else torch.cat([row.edge_EF for row in rows if row.edge_EF is not None]),
            position_NP,
            None if self.pool else torch.cat([row.chosen_C + at for row, at in zip(rows, start, strict=True) if row.chosen_C is not None]),
            torch.cat([row.target_C for row in rows]),
            tuple(len(row.target_C) for row in rows),
        )


def _chosen(one: GraphExample) -> Array:
    return np.zeros(1, np.int64) if one.chosen_C is None else one.chosen_C


def _encoded(row: GraphRow) -> bool:
    return row.laplacian_NP is not None or row.walk_NP is not None


def _signed(x_NP: Tensor | None, generator: torch.Generator | None) -> Tensor | None:
    if x_NP is None or generator is None:
        return x_NP
    return x_NP * (2 * torch.randint(2, (x_NP.shape[1],), generator=generator) - 1)


def _adjacency(graph: GraphData) -> Array:
    """A_NN of the graph without directions and self-loops."""
    count = len(graph.nodes)
    if count > MOST_ENCODED:
        raise NotSupported(
            f"{graph.name}: positional encodings of {count:,} nodes; expected at most {MOST_ENCODED:,}; use --set laplacian=0 --set random_walk=0"
        )
    a_NN = np.zeros((count, count))
    a_NN[graph.pairs_E2[:, 0], graph.pairs_E2[:, 1]] = a_NN[graph.pairs_E2[:, 1], graph.pairs_E2[:, 0]] = 1
    np.fill_diagonal(a_NN, 0)
    return a_NN


def laplacian_encoding(graph: GraphData, count: int) -> Tensor:
    """Eigenvectors of I − D^{−½} A D^{−½} with the smallest eigenvalues after the first, scaled by √N; zeros where there are no more.

    Args:
        graph: graph.
        count: number of eigenvectors.

    Shape: → encoding (N, count).
    """
    a_NN = _adjacency(graph)
    root_N = np.maximum(a_NN.sum(1), 1) ** -0.5
    _, vectors_NN = np.linalg.eigh(np.eye(len(a_NN)) - root_N[:, None] * a_NN * root_N)
    found = vectors_NN[:, 1 : count + 1] * len(a_NN) ** 0.5
    return torch.from_numpy(np.pad(found, ((0, 0), (0, count - found.shape[1])))).float()


def random_walk_encoding(graph: GraphData, count: int) -> Tensor:
    """Probability that a random walk from a node is back after 1, 2, … steps.

    Args:
        graph: graph.
        count: number of steps.

    Shape: → encoding (N, count).
    """
    a_NN = _adjacency(graph)
    step_NN = a_NN / np.maximum(a_NN.sum(1, keepdims=True), 1)
    found, power_NN = [], np.eye(len(a_NN))
    for _ in range(count):
        power_NN = power_NN @ step_NN
        found.append(power_NN.diagonal().copy())
    return torch.from_numpy(np.stack(found, 1)).float()
