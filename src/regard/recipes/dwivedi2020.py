"""A transformer on a graph tells structures apart by positional encodings; attention along edges alone cannot.

Paper: Dwivedi & Bresson 2020, "A generalization of transformer networks to graphs", arXiv:2012.09699, table 1 (there molecules and block graphs; with
       Laplacian eigenvectors 0.226 instead of 0.264 of error on ZINC); random walks: Dwivedi et al. 2021, arXiv:2110.07875.
Run:   regard run dwivedi2020        Takes: about ten minutes on one CPU core.

A graph is one ring of 2n nodes, or two rings of n, with n from 3 to 6; all nodes hold the same number, and every node has two neighbours. So nodes see the
same wherever they look along edges, and a network without positions says the same of both graphs, whatever its parameters: chance is one half. A
random walk returns after n steps in the small rings only, and the eigenvectors of two rings are zero on one of them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import tasks
from ..runs import Run
from ..tasks import Graphs
from ..tasks.options import GraphsOptions
from ..train import TrainOptions
from ._engine import Recipe, RecipeFacts, above, at_least, at_most, validation_curves
from ._engine.variants import TaskVariant, metrics_of_test, short_training

GRAPHS, SIZES = 600, (3, 6)
OPTIONS = GraphsOptions(scale="none", l2=0.0, shares=(0.1, 0.25))
TRAIN = short_training(300, 5e-3, "adamw", weight_decay=0.0)
WALKS, EIGENVECTORS, NONE, GAT = "random walks", "Laplacian eigenvectors", "no positions", "GAT"


def write_rings(path: Path) -> Path:
    """Write graphs of one ring or two, in turn, with their nodes in random order."""
    draw = random.Random(0)
    lines = []
    for number in range(GRAPHS):
        n, rings = draw.randint(*SIZES), 1 + number % 2
        size = 2 * n // rings
        name = draw.sample(range(2 * n), 2 * n)
        edges = [[name[ring * size + m], name[ring * size + (m + 1) % size]] for ring in range(rings) for m in range(size)]
        lines.append(json.dumps({"edges": edges, "nodes": [[1.0]] * (2 * n), "y": ("one", "two")[rings - 1]}) + "\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines), encoding="utf-8")
    return path


@dataclass(frozen=True, kw_only=True)
class RingsVariant(TaskVariant):
    """A network that says how many rings a graph has."""

    task: type[tasks.Task[Any]] = Graphs
    options: tasks.DataOptions = OPTIONS
    train: TrainOptions = TRAIN
    model: str | None = "graph_transformer"
    settings: Mapping[str, Any] = field(default_factory=dict)
    evaluate: Callable[[Run[Any]], Mapping[str, float]] = metrics_of_test

    def data(self, out: Path) -> tasks.DataOptions:
        return replace(self.options, data=str(write_rings(out / "rings.jsonl")))


def transformer(laplacian: int, random_walk: int) -> RingsVariant:
    return RingsVariant(settings={"width": 32, "heads": 2, "dropout": 0.0, "laplacian": laplacian, "random_walk": random_walk})


recipe = Recipe(
    facts=RecipeFacts("dwivedi2020", 2020, "A generalization of transformer networks to graphs", "arXiv:2012.09699", "about ten minutes"),
    question="Does a transformer on graphs need to know where its nodes are?",
    variants={
        WALKS: transformer(0, 8),
        EIGENVECTORS: transformer(8, 0),
        NONE: transformer(0, 0),
        GAT: RingsVariant(model="gat", settings={"width": 32, "heads": 2, "dropout": 0.0, "attention_dropout": 0.0}),
    },
    claims=(
        above("Laplacian eigenvectors add at least 20 points", EIGENVECTORS, NONE, 0.2, source="table 1"),
        above("encodings by random walks add at least 20 points", WALKS, NONE, 0.2, source="2110.07875, table 1"),
        at_least("with encodings by random walks at least 95 % of the graphs are right", 0.95, WALKS),
        at_most("without positions at most 60 %: the graphs look alike along edges", 0.6, NONE, kind="control"),
        at_most("GAT alike", 0.6, GAT, kind="control"),
    ),
    pictures=(validation_curves("accuracy"),),
)
