"""Graph attention weights neighbours by what they hold: better than weighting all alike where some mislead, far better than no graph.

Paper: Veličković et al. 2018, "Graph attention networks", ICLR, arXiv:1710.10903 (there on citation graphs and proteins, here on generated ones);
       Brody, Alon & Yahav 2021, "How attentive are graph attention networks?", arXiv:2105.14491, section 5.1: the dictionary lookup;
       depth: Chen et al. 2020, arXiv:1909.03211, whose mean average distance of nodes it takes.
Run:   regard run gat2018        Takes: about half an hour on one CPU core.

**Blocks.** 300 nodes of three classes, a tenth of the labels, features that tell little alone; edges are six times as likely within a class. Three nodes
in ten are noise: marked by a feature, without a label, joined to anyone. A graph of its own for each seed. The same network with uniform weights
(scores of 0), and with each node attending to itself alone, which is an MLP on the features.

**Lookup.** Ten keys with values, ten queries, each joined to all keys; the answer of a query is the value of its key. GAT's queries all rank the keys alike,
so no parameters of its solve this; GATv2's can.

**Depth.** On blocks without noise, 2 and 16 layers, with and without residual connections. How alike nodes become: the mean cosine distance between the vectors
of two nodes before the last layer.

Depth, the heads of the lookup, its rate and its steps were chosen with seed 0 by accuracy on test items, before any seed was reported; graphs of the
reported seeds are others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from .. import tasks
from ..runs import Run
from ..tasks import Graphs
from ..tasks.options import GraphsOptions
from ..train import TrainOptions
from ._engine import Claim, Proportion, Recipe, RecipeFacts, above, at_least, at_most, below, measured
from ._engine.variants import TaskVariant, train_run

TRAIN = TrainOptions(
    steps=300, lr=5e-3, schedule="constant", warmup_steps=0, weight_decay=0.0, betas=(0.9, 0.999), clip=0.0, average=0, evaluate_every=10,
    save_every=300,
)  # fmt: skip
LOOKUP_TRAIN = TRAIN.replace(steps=600, lr=1e-2, evaluate_every=60, save_every=600)
OPTIONS = GraphsOptions()
LOOKUP_OPTIONS = GraphsOptions(directed=True, scale="none", l2=0.0, batch_size=40, shares=(0.1, 0.2))
NOISY, MIXED = "noise=30,", "inside=40,across=15,signal=50,"
UNIFORM, ALONE = "softmax(scale=0.0)", "graph_attention under window(0)"
KEYS, LOOKUPS = 10, 300


def test_accuracy(run: Run[Any]) -> dict[str, float]:
    """Share of the labels of the test part, of which there are this many."""
    task = tasks.task_of(run)
    items = sum(len(one.chosen_C) for one in task.test_data(run, None))
    return {"accuracy": Proportion(tasks.evaluate(run).metrics["accuracy"], items)}


@torch.no_grad()
def accuracy_and_distance(run: Run[Any]) -> dict[str, float]:
    """The accuracy, and the mean cosine distance between the vectors of two nodes before the last layer."""
    task, model = tasks.task_of(run), run.model
    batch = task.batch(task.encode(task.test_data(run, None), model), None)
    seen: list[torch.Tensor] = []
    hook = model.layers[-1].register_forward_pre_hook(lambda layer, inputs: seen.append(inputs[0]))
    model.eval()(batch)
    hook.remove()
    unit_ND = F.normalize(seen[0], dim=-1)
    distance_NN = 1 - unit_ND @ unit_ND.T
    return {**test_accuracy(run), "distance": float(distance_NN.sum() / (len(unit_ND) * (len(unit_ND) - 1)))}


@dataclass(frozen=True, kw_only=True)
class BlocksVariant(TaskVariant):
    """A network on a block graph of the seed's."""

    task: type[tasks.Task[Any]] = Graphs
    options: tasks.DataOptions = OPTIONS
    train: TrainOptions = TRAIN
    model: str = "gat"
    graph: str = NOISY
    settings: Mapping[str, Any] = field(default_factory=dict)
    evaluate: Callable[[Run[Any]], Mapping[str, float]] = test_accuracy

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        options = replace(self.options, data=f"blocks:{self.graph}seed={seed}")
        run, training = train_run(self.task, options, self.train.replace(seed=seed), out, model=self.model, settings=self.settings)
        return {**self.evaluate(run), **training}


@dataclass(frozen=True, kw_only=True)
class LookupVariant(BlocksVariant):
    """A network on dictionaries, each a graph: queries look their keys up."""

    options: tasks.DataOptions = LOOKUP_OPTIONS
    train: TrainOptions = LOOKUP_TRAIN
    settings: Mapping[str, Any] = field(default_factory=lambda: {"heads": 1, "dropout": 0.0, "attention_dropout": 0.0})

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        out.mkdir(parents=True, exist_ok=True)
        options = replace(self.options, data=str(write_dictionaries(out / "lookup.jsonl", seed)))
        run, training = train_run(self.task, options, self.train.replace(seed=seed), out, model=self.model, settings=self.settings)
        return {**self.evaluate(run), **training}


def write_dictionaries(path: Path, seed: int) -> Path:
    """Write graphs: nodes 0 to 9 are queries, 10 to 19 keys with their values; edges from each key to each query."""
    edges, lines = [[KEYS + key, query] for query in range(KEYS) for key in range(KEYS)], []
    for number in range(LOOKUPS):
        value_K = np.random.default_rng([seed, number]).permutation(KEYS)
        queries: list[dict[str, float]] = [{f"query {n}": 1.0} for n in range(KEYS)]
        keys: list[dict[str, float]] = [{f"key {n}": 1.0, f"value {value}": 1.0} for n, value in enumerate(value_K)]
        labels = [*map(str, value_K), *[None] * KEYS]
        lines.append(json.dumps({"edges": edges, "nodes": queries + keys, "labels": labels}) + "\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path


def deep(depth: int, residual: bool) -> BlocksVariant:
    """A network on blocks that are less apart, without noise."""
    settings = {"depth": depth, "residual": residual, "dropout": 0.2, "attention_dropout": 0.2}
    return BlocksVariant(graph=MIXED, settings=settings, evaluate=accuracy_and_distance)


recipe = Recipe(
    facts=RecipeFacts("gat2018", 2018, "Graph attention networks", "arXiv:1710.10903", "about half an hour"),
    question="Do attention weights help a graph network, and what can GAT's not do?",
    variants={
        "GAT": BlocksVariant(),
        "uniform weights": BlocksVariant(settings={"attention": UNIFORM}),
        "no graph": BlocksVariant(settings={"attention": ALONE}),
        "lookup, GAT": LookupVariant(),
        "lookup, GATv2": LookupVariant(model="gatv2"),
        "2 layers": deep(2, False),
        "16 layers": deep(16, False),
        "16 layers, residual": deep(16, True),
    },
    claims=(
        above("GAT is better than the same network with uniform weights", "GAT", "uniform weights", source="section 3.4: Const-GAT"),
        above("and than an MLP on the features, by 8 points", "GAT", "no graph", 0.08, source="table 2: MLP"),
        at_least("GATv2 looks up at least 95 % of the keys of unseen dictionaries", 0.95, "lookup, GATv2"),
        at_most("GAT at most 40 %", 0.4, "lookup, GAT"),
        above("GATv2 is better at it than GAT, by 50 points", "lookup, GATv2", "lookup, GAT", 0.5, source="2105.14491, figure 3"),
        Claim(
            "16 layers without residuals make nodes more alike than 2 do",
            measured("2 layers", "distance") - measured("16 layers", "distance") >= 0.1,
            source="1909.03211, figure 2",
        ),
        above("residuals keep 16 layers better than those without, by 5 points", "16 layers, residual", "16 layers", 0.05),
        below("16 layers without residuals are worse than 2, by 5 points", "16 layers", "2 layers", 0.05),
    ),
)
