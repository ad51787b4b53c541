"""Options of the task graphs: what `regard train` and the commands on its runs show, without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ...bounds import Bounded, Count, NonNegative, Size
from ...train.options import TrainOptions
from .shared import DataOptions, Declaration, Files, absolute_files


@dataclass(frozen=True, kw_only=True)
class GraphsOptions(DataOptions):
    """Graphs."""

    data: Files = "blocks"
    """Planetoid .npz; edge list .csv or .tsv; .jsonl, .graphml or .conllu; a folder of files per class; or blocks, shapes or karate, which are made."""
    nodes: str | None = None
    """Table of the nodes of an edge list (.csv, .tsv): id, label, perhaps split, and features."""
    label: str = "label"
    """Column or attribute that is the label of a node; of CoNLL-U: upos, xpos or deprel."""
    directed: bool = False
    """A node attends to the sources of its edges only; --no-directed: edges go both ways."""
    self_loops: bool = True
    """Each node attends to itself, too; --no-self-loops: only along edges of the data."""
    scale: Literal["auto", "rows", "columns", "none"] = "auto"
    """Features: rows sum to one, columns have mean 0 and deviation 1; auto: rows of ones, as of words, or columns."""
    l2: NonNegative = 5e-4
    """Weight of the L2 penalty on all parameters."""
    batch_size: Size = 32
    """Graphs per batch."""

    def absolute(self) -> GraphsOptions:
        found = super().absolute()
        return found if self.nodes is None else replace(found, nodes=str(absolute_files(self.nodes)))


@dataclass(frozen=True, kw_only=True)
class NeighbourhoodOptions(Bounded):
    """Part of the graph that is shown."""

    node: str = ""
    """Name of the node in the middle, of a graph with more nodes than --most-nodes; if not given, the one with most neighbours."""
    hops: Count = 2
    """Steps from it along edges."""
    most_nodes: Size = 60
    """Nodes that are shown at most."""


class GraphsDeclaration(Declaration):
    """Train a graph network to classify nodes, or whole graphs.

    As in:  regard train graphs --out runs/blocks
            regard train graphs --data cora.npz --out runs/cora
            regard train graphs --data edges.csv --nodes nodes.csv --out runs/mine
            regard train graphs --data shapes --model graph_transformer --out runs/shapes
    """

    name = "graphs"
    Options = GraphsOptions
    LookOptions = NeighbourhoodOptions
    default_model = "gat"
    default_train = TrainOptions(
        steps=1000, lr=5e-3, schedule="constant", warmup_steps=0, weight_decay=0.0, betas=(0.9, 0.999), clip=0.0, average=0,
        evaluate_every=1, save_every=200, patience=100,
    )  # fmt: skip
    main_options = ("nodes", "label")
