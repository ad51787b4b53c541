"""The base class of models of graphs: a vector per node, then logits per node, or per graph by attention pooling."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor, nn

from ..errors import ShapeError
from ..layers import AttentionPooling, SparseFeatures
from ..patterns import Pattern, edges
from .model import Count, Model, ModelConfig, Size


@dataclass(frozen=True)
class GraphBatch:
    """Graphs as one: their nodes follow each other, and no edge joins two of them."""

    features: SparseFeatures  # features of the nodes
    pairs_2E: Tensor  # query and key node of each edge: (i, j) if i attends to j
    n_B: Tensor  # number of nodes of each graph
    edge_EF: Tensor | None = None  # numbers of each edge
    position_NP: Tensor | None = None  # positional encodings
    chosen_C: Tensor | None = None  # nodes that the loss is about; None: all, or graphs
    target_C: Tensor | None = None  # their classes
    count_B: tuple[int, ...] = ()  # number of chosen nodes, or targets, of each graph

    @cached_property
    def pattern(self) -> Pattern:
        """The edges as a pattern."""
        return edges(self.pairs_2E)


@dataclass(frozen=True, kw_only=True)
class GraphModelConfig(ModelConfig):
    inputs: Size  # features that a node may have
    classes: Size = 2  # classes of nodes or graphs
    pool: bool = False  # logits per graph; otherwise per node
    edge_features: Count = 0  # numbers per edge


class GraphModel(Model):
    """A model of graphs. Write `features`, and call `_build_head` if these are not logits yet.

    Args:
        config: settings.

    Shape: `GraphBatch` → logits_NC of the nodes, or logits_BC of the graphs.
    """

    config: GraphModelConfig
    length_setting = "inputs"

    def _build_head(self, width: int) -> None:
        """A head over vectors of nodes: attention pooling first, for graphs."""
        c = self.config
        self.pool = AttentionPooling(width, width) if c.pool else None
        self.output = nn.Linear(width, c.classes)

    def features(self, graph: GraphBatch) -> Tensor:
        """Vectors of the nodes, h_ND.

        Args:
            graph: graphs.
        """
        raise NotImplementedError

    def forward(self, graph: GraphBatch) -> Tensor:
        """logits_NC of the nodes, or logits_BC of the graphs.

        Args:
            graph: graphs.
        """
        if graph.edge_EF is not None and graph.edge_EF.shape[1] != self.config.edge_features:
            raise ShapeError(
                f"{type(self).__name__} takes {self.config.edge_features} numbers per edge, got {graph.edge_EF.shape[1]}; build it with edge_features"
            )
        h_ND = self.features(graph)
        if self.pool is not None:
            h_ND = self.pool(h_ND, graph.n_B).squeeze(1)
        out: Tensor = h_ND if self.output is None else self.output(h_ND)
        return out
