r"""Graph attention networks: layers in which each node averages its neighbours, weighted by attention; GAT and GATv2.

$$h_i' = \sigma\Big(\big\Vert_h \sum_{j \in N(i)} \alpha^h_{ij} W^h h_j\Big), \qquad \text{logits}_i = \frac{1}{H} \sum_h \sum_{j \in N(i)} \alpha^h_{ij} W^h h_j$$
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from ..bounds import Depth, Heads, Probability, Size
from ..errors import ShapeError
from ..layers import Dropout, FeatureSum, GraphHeads
from ..layers.spec import Spec
from ..patterns import Pattern
from .graph import GraphBatch, GraphModel, GraphModelConfig
from .model import ModelFacts, attention_lines


@dataclass(frozen=True, kw_only=True)
class GATConfig(GraphModelConfig):
    width: Size = 64  # model width: all heads together
    heads: Heads = 8  # heads of each layer but the last
    output_heads: Heads = 1  # heads of the last layer, which are averaged
    depth: Depth = 2  # layers
    attention: str | tuple[str, ...] = "graph_attention"  # a mechanism, perhaps with settings and a pattern, or one per layer
    dropout: Probability = 0.6  # dropout rate of features, and of the input of each layer
    attention_dropout: Probability = 0.6  # dropout rate of attention weights, for mechanisms that have one
    residual: bool = False  # add the input of a layer to its output

    def __post_init__(self) -> None:
        super().__post_init__()
        lines = attention_lines(type(self).__name__, self.attention, self.depth)
        if len(lines) != self.depth:
            raise ShapeError(f"{type(self).__name__}: {len(lines)} mechanisms for {self.depth} layers; name one, or one per layer")
        if self.width % self.heads:
            raise ShapeError(f"width={self.width} cannot be split into {self.heads} heads of equal size; choose a divisor")


@dataclass(frozen=True, kw_only=True)
class GATv2Config(GATConfig):
    attention: str | tuple[str, ...] = "graph_attention_v2"  # a mechanism for all layers, or one per layer


class GAT(GraphModel):
    """Graph attention layers with ELU between them; the last one gives logits, or a graph's nodes are pooled by attention.

    Cost:    time O(N·D² + E·D) per layer for N nodes and E edges; memory O(N·D + E·H).
    Use it:  to classify nodes of a graph from few labels, on the graph it was trained on or on others; to classify graphs.
    Avoid it: deeper than a few layers without `residual`: nodes become alike.
    Limits:  a feature that was not in the training data is left out.
    Shape:   `GraphBatch` → logits_NC, or logits_BC of graphs.
    Paper:   Veličković et al. 2017, "Graph attention networks", arXiv:1710.10903, section 2 and 3.3.
    We differ: features are sparse, which changes nothing but the time; an edge listed twice counts once; residual connections join layers of one
             width without a projection.
    """

    facts = ModelFacts(name="gat", year=2017, title="Graph attention networks", paper="arXiv:1710.10903")
    Config = GATConfig
    config: GATConfig
    shared: ClassVar[bool] = True  # one projection for queries and keys

    def _build(self) -> None:
        c = self.config
        lines = attention_lines(type(c).__name__, c.attention, c.depth)
        self.layers, self.within = nn.ModuleList(), list[Pattern]()
        for n, line in enumerate(lines):
            last = n == c.depth - 1 and not c.pool
            heads, head_dim = (c.output_heads, c.classes) if last else (c.heads, c.width // c.heads)
            spec = Spec.read(line)
            attention = spec.build(heads=heads, head_dim=head_dim, length=1 << 30)
            if hasattr(attention, "dropout") and not (spec.settings and "dropout" in spec.settings):
                attention.dropout = c.attention_dropout  # type: ignore[assignment]  # a plain value
            maps = [self._map(n, heads * head_dim) for _ in range(1 if self.shared else 2)]
            query = None if self.shared else maps[1]
            heads_ = GraphHeads(maps[0], attention, heads, head_dim, query=query, concat=not last, edge_width=c.edge_features)
            self.layers.append(heads_)
            self.within.append(spec.pattern)
        self.dropout = Dropout(c.dropout)
        self.pool, self.output = None, None
        if c.pool:
            self._build_head(c.width)

    def _map(self, layer: int, width: int) -> nn.Module:
        c = self.config
        if layer == 0:
            return FeatureSum(c.inputs, width, c.dropout)
        linear = nn.Linear(c.width, width, bias=False)
        nn.init.xavier_uniform_(linear.weight)
        return linear

    def features(self, graph: GraphBatch) -> Tensor:
        h_ND = self.layers[0](graph.features, graph.pattern & self.within[0], graph.pairs_2E, graph.edge_EF)
        for layer, within in zip(self.layers[1:], self.within[1:], strict=True):
            x_ND = F.elu(h_ND)
            h_ND = layer(self.dropout(x_ND), graph.pattern & within, graph.pairs_2E, graph.edge_EF)
            if self.config.residual and h_ND.shape == x_ND.shape:
                h_ND = h_ND + x_ND
        return F.elu(h_ND) if self.config.pool else h_ND


class GATv2(GAT):
    """GAT with dynamic attention: each node ranks its neighbours anew; queries have a projection of their own.

    Cost:    as GAT, and K numbers per edge and head in each layer.
    Use it:  where which neighbour matters depends on the node that asks.
    Avoid it: deeper than a few layers without `residual`.
    Limits:  as GAT.
    Shape:   `GraphBatch` → logits_NC, or logits_BC of graphs.
    Paper:   Brody, Alon & Yahav 2021, "How attentive are graph attention networks?", arXiv:2105.14491, eq. 7.
    We differ: features of edges are a bias of the scores; else as GAT.
    """

    facts = ModelFacts(name="gatv2", year=2021, title="How attentive are graph attention networks?", paper="arXiv:2105.14491")
    Config = GATv2Config
    config: GATv2Config
    shared = False
