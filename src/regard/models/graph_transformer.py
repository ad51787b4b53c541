"""A transformer on graphs: blocks of multi-head attention along edges, with positions from the graph's Laplacian and from random walks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ..bounds import Count, Depth, Heads, Probability, Size
from ..errors import ShapeError
from ..layers import Block, FeatureSum, FeedForward, LayerNorm, gelu
from ..patterns import segments
from .graph import GraphBatch, GraphModel, GraphModelConfig
from .model import ModelFacts, attention_lines, build_heads


@dataclass(frozen=True, kw_only=True)
class GraphTransformerConfig(GraphModelConfig):
    width: Size = 64  # model width
    heads: Heads = 4  # heads of each block
    depth: Depth = 2  # blocks
    attention: str | tuple[str, ...] = "softmax"  # a mechanism for all layers, or one per layer
    reach: Literal["neighbours", "graph"] = "neighbours"  # each node attends to its neighbours, or to its whole graph
    laplacian: Count = 8  # eigenvectors of the Laplacian per node
    random_walk: Count = 8  # probabilities of a walk's return after 1, 2, … steps, per node
    dropout: Probability = 0.3  # dropout rate of features and sublayers

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(attention_lines(type(self).__name__, self.attention, self.depth)) != self.depth:
            raise ShapeError(f"{type(self).__name__}: {self.attention} for {self.depth} layers; name one mechanism, or one per layer")


class GraphTransformer(GraphModel):
    """Pre-norm blocks over the nodes. Features and positional encodings are projected and added.

    Cost:    time O(N·D² + E·D) per block for N nodes and E edges, with `reach="graph"` O(N²·D); encodings O(N³), once per graph.
    Use it:  where the structure around a node says what its features do not, and for graphs as wholes.
    Avoid it: for few labels on one large graph: GAT has fewer parameters. Encodings are for graphs of up to some thousand nodes.
    Limits:  edge features are not read.
    Shape:   `GraphBatch` → logits_NC, or logits_BC of graphs.
    Paper:   Dwivedi & Bresson 2020, "A generalization of transformer networks to graphs", arXiv:2012.09699; random walks: Dwivedi et al. 2021,
             arXiv:2110.07875.
    We differ: norms come before the sublayers, and are layer norms, not batch norms.
    """

    facts = ModelFacts(
        name="graph_transformer", year=2020, title="A generalization of transformer networks to graphs", paper="arXiv:2012.09699"
    )
    Config = GraphTransformerConfig
    config: GraphTransformerConfig

    def _build(self) -> None:
        c = self.config
        self.input = FeatureSum(c.inputs, c.width, c.dropout)
        self.position = nn.Linear(c.laplacian + c.random_walk, c.width) if c.laplacian + c.random_walk else None
        lines = attention_lines(type(c).__name__, c.attention, c.depth)
        self.blocks = nn.ModuleList(
            Block(c.width, build_heads(line, c.width, c.heads, 1 << 30), FeedForward(c.width, 2 * c.width, gelu), dropout=c.dropout)
            for line in lines
        )
        self.norm = LayerNorm(c.width)
        self._build_head(c.width)

    def features(self, graph: GraphBatch) -> Tensor:
        x_ND = self.input(graph.features)
        if self.position is not None:
            if graph.position_NP is None or graph.position_NP.shape[1] != self.position.in_features:
                given = "none" if graph.position_NP is None else graph.position_NP.shape[1]
                raise ShapeError(
                    f"GraphTransformer takes {self.position.in_features} positional numbers per node, got {given}; see tasks.graphs"
                )
            x_ND = x_ND + self.position(graph.position_NP)
        pattern = graph.pattern
        if self.config.reach == "graph":
            pattern = segments(torch.arange(len(graph.n_B), device=x_ND.device).repeat_interleave(graph.n_B))
        x_1ND = x_ND.unsqueeze(0)
        for block in self.blocks:
            x_1ND = block(x_1ND, pattern)
        out: Tensor = self.norm(x_1ND).squeeze(0)
        return out
