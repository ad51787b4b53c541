"""Classification of the nodes of a graph, on the graph that was trained on or on others, and of whole graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.arrays import Array
from ..data.graphs import GraphData, read_graphs
from ..data.lines import Skipped
from ..data.splits import Splits, choose_parts, digest, hold_out, place
from ..errors import BadFile, NotSupported
from ..look import Indices, Layers, Maps, capture
from ..look.layouts import Graph
from ..models import GraphBatch, GraphModel
from ..runs import Run
from ..train import Loss, Metric, TrainOptions
from .graph_processor import GraphExample, GraphProcessor, GraphRow
from .measuring import answer
from .options import NoOptions
from .options.graphs import GraphsDeclaration, GraphsOptions, NeighbourhoodOptions
from .task import Prediction, Task


class Graphs(GraphsDeclaration, Task[GraphsOptions]):
    Processor = GraphProcessor
    model_kind = GraphModel
    unit, loss_unit = "graphs", "labels"
    metric = Metric("accuracy", higher=True)
    inputs = "file"
    next_commands = "regard evaluate {out}        regard predict {out} graph.csv        regard look {out} graph.csv"

    # -- data ----------------------------------------------------------------------------------------------------------

    def read(self) -> Splits[list[GraphExample]]:
        """One graph with labelled nodes: its nodes in three parts. Several graphs, or files for each part: each graph whole, in one part."""
        o = self.options
        skipped = Skipped(unit="graph", on_error=o.on_error)
        graphs = self._graphs(str(o.one_file("data")), skipped)
        others = {name: self._graphs(str(file), skipped) for name in ("valid", "test") if (file := o.one_file(name))}
        held = (0.0 if "valid" in others else o.shares[0], 0.0 if "test" in others else o.shares[1])
        pool = all(graph.label and not any(graph.labels) for graph in graphs)
        if not pool and len(graphs) == 1 and not others and held != (0.0, 0.0):
            train, valid, test = ([GraphExample(graphs[0], chosen)] if len(chosen) else [] for chosen in _node_parts(graphs[0], held))
        else:
            examples = [GraphExample(graph, None if pool else graph.labelled()) for graph in graphs]
            train, valid, test = hold_out(examples, self.key, held)
            whole = {name: [GraphExample(graph, None if pool else graph.labelled()) for graph in found] for name, found in others.items()}
            valid, test = whole.get("valid", valid), whole.get("test", test)
        contents = (
            part
            for found in (train, valid, test)
            for one in found
            for part in (one.graph.content(), b"" if one.chosen_C is None else one.chosen_C.tobytes())
        )
        return Splits(train, valid, test, skipped, digest(contents))

    def _graphs(self, source: str, skipped: Skipped) -> list[GraphData]:
        o = self.options
        label = "upos" if o.label == "label" and source.partition("#")[0].endswith((".conllu", ".conll")) else o.label
        found = list(skipped.sound(read_graphs(source, nodes=o.nodes, label=label, directed=o.directed)))
        if not found:
            raise BadFile(f"{source}: no graph in it{f'; {skipped}' if len(skipped) else ''}")
        return found

    def key(self, example: GraphExample) -> str:
        return example.graph.content().hex()

    def make_processor(self, data: Splits[list[GraphExample]], base: GraphProcessor | None) -> GraphProcessor:
        if not data.train or not any(len(_targets(one)) for one in data.train):
            raise NotSupported(f"{self.options.data}: no labels to learn; name their column with --label, or give graphs a label (y)")
        return base or GraphProcessor.of(data.train, self.options.scale, self.options.self_loops)

    def parse(self, text: str) -> GraphExample:
        """The graph of a file, or one of several by its number, `file.conllu#3`: all of its nodes."""
        found = self._all(text)
        if len(found) > 1 and "#" not in text:
            raise NotSupported(f"{text} holds {len(found):,} graphs; name one by its number, as in {text}#1")
        return found[0]

    def _all(self, text: str) -> list[GraphExample]:
        name, mark, number = text.rpartition("#")
        graphs = self._graphs(name if mark else text, Skipped(unit="graph"))
        if mark:
            if not number.isdigit() or not 1 <= int(number) <= len(graphs):
                raise NotSupported(f"{text}: expected a number from 1 to {len(graphs):,} after #")
            graphs = [graphs[int(number) - 1]]
        pool = self.processor is not None and self.processor.pool
        return [GraphExample(graph, None if pool else np.arange(len(graph.nodes))) for graph in graphs]

    def encode(self, examples: Sequence[GraphExample], model: Any) -> list[GraphRow]:
        c = model.config
        return [self.processor.encode(one, getattr(c, "laplacian", 0), getattr(c, "random_walk", 0)) for one in examples]

    def batch(self, item: Sequence[GraphRow], generator: torch.Generator | None) -> GraphBatch:
        batch: GraphBatch = self.processor.collate(item, generator)
        return batch

    # -- model ---------------------------------------------------------------------------------------------------------

    @classmethod
    def train_defaults(cls, model: str) -> TrainOptions:
        return cls.default_train.replace(lr=1e-3) if model == "graph_transformer" else cls.default_train

    def settings(self, model: str, data: Splits[Any]) -> dict[str, Any]:
        p = self.processor
        return {"inputs": max(len(p.features), 1), "classes": max(len(p.labels), 2), "pool": p.pool, "edge_features": len(p.edge_mean)}

    def sizes(self, model: str, data: Splits[Any]) -> dict[str, Any]:
        """Less dropout where there is more than a few labels on one graph."""
        labels = sum(len(_targets(one)) for one in data.train)
        much = self.processor.pool or labels > 1000
        return {"dropout": 0.1, "attention_dropout": 0.0} if much and model != "graph_transformer" else {}

    def loss(self, model: GraphModel, batch: GraphBatch) -> Loss:
        """Cross-entropy of the chosen nodes, or of the graphs; in training with the L2 penalty. Unknown labels count as wrong."""
        logits = model(batch)
        if batch.chosen_C is not None:
            logits = logits[batch.chosen_C]
        assert batch.target_C is not None
        known = batch.target_C >= 0
        nll_C = F.cross_entropy(logits, batch.target_C.clamp(min=0), reduction="none")
        total = (nll_C * known).sum()
        if model.training and self.options.l2:
            total = total + len(logits) * self.options.l2 / 2 * _squares(model)
        right = (logits.argmax(-1) == batch.target_C).sum()
        return Loss(total, len(logits), {"correct": right}, logits.softmax(-1))

    def answers(self, outputs: Tensor, batch: GraphBatch) -> list[Array]:
        return [part.numpy() for part in outputs.cpu().split(list(batch.count_B))]

    def metrics(self, sums: Mapping[str, float], answers: Sequence[Any], examples: Sequence[GraphExample]) -> dict[str, float]:
        return {"accuracy": sums["correct"] / max(sums["count"], 1), "loss": sums["loss"] / max(sums["count"], 1)}

    def baselines(self, train: Sequence[GraphExample], examples: Sequence[GraphExample]) -> dict[str, dict[str, float]]:
        """The most frequent label of the training part."""
        usual = Counter(label for one in train for label in _targets(one)).most_common(1)[0][0]
        targets = [label for one in examples for label in _targets(one)]
        return {"most frequent label": {"accuracy": targets.count(usual) / max(len(targets), 1)}}

    # -- use -----------------------------------------------------------------------------------------------------------

    def predict(self, run: Run[GraphModel], inputs: Sequence[str], options: NoOptions) -> list[Prediction]:
        """Labels of the graphs of each file, or of their nodes."""
        found = []
        for text in inputs:
            examples = self._all(text)
            each = [self.prediction(*pair, options) for pair in zip(examples, answer(self, run.model, examples, options), strict=True)]
            values = each[0].values if len(each) == 1 else {"graphs": [one.values for one in each]}
            found.append(Prediction("\n".join(one.text for one in each), values))
        return found

    def prediction(self, example: GraphExample, answer: Array, options: NoOptions) -> Prediction:
        """A line per node with its label, or the label of the graph, with its probability."""
        labels = [self.processor.labels[n] for n in answer.argmax(1)]
        best = answer.max(1).tolist()
        if example.chosen_C is None:
            return Prediction(f"{labels[0]}\t{best[0]:.3f}", {"graph": example.graph.name, "label": labels[0], "probability": best[0]})
        names = [example.graph.nodes[n] for n in example.chosen_C]
        found = [{"node": name, "label": label, "probability": p} for name, label, p in zip(names, labels, best, strict=True)]
        lines = (f"{one['node']}\t{one['label']}\t{one['probability']:.3f}" for one in found)
        return Prediction("\n".join(lines), {"graph": example.graph.name, "nodes": found})

    def attention_maps(
        self, run: Run[GraphModel], text: str, layers: Layers, heads: Indices, options: NeighbourhoodOptions
    ) -> tuple[str, Maps]:
        """Weights along the edges. Of a large graph the neighbourhood of a node, as a graph of its own."""
        example = self.parse(text)
        graph = example.graph
        if len(graph.nodes) > options.most_nodes:
            graph = graph.of_nodes(graph.around(graph.number(options.node), options.hops, options.most_nodes))
            example = GraphExample(graph, None if example.chosen_C is None else np.arange(len(graph.nodes)))
        with capture(run.model, layers, heads) as maps:
            (found,) = answer(self, run.model, [example], options)
        row = self.encode([example], run.model)[0]
        names = list(graph.nodes)
        if example.chosen_C is not None:
            names = [f"{name} {self.processor.labels[n]}" for name, n in zip(names, found.argmax(1), strict=True)]
        of_nodes = Maps(m for m in maps.all if m.queries == m.keys == len(names))
        return self.prediction(example, found, NoOptions()).text, of_nodes.label(names, names, Graph(row.pairs_2E.T.tolist()))


def _squares(model: torch.nn.Module) -> Tensor:
    """Σ of the squares of all parameters."""
    return torch.stack([one.square().sum() for one in model.parameters()]).sum()


def _targets(one: GraphExample) -> list[str]:
    return [one.graph.label] if one.chosen_C is None else [one.graph.labels[n] for n in one.chosen_C if one.graph.labels]


def _node_parts(graph: GraphData, shares: tuple[float, float]) -> tuple[Array, ...]:
    """Labelled nodes for training, validation and test: as the data say, or by a hash of their names."""
    labelled = graph.labelled()
    if graph.parts:
        return tuple(np.array([n for n in labelled if graph.parts[n] == name], dtype=np.int64) for name in ("train", "valid", "test"))
    chosen = choose_parts(np.array([place(graph.nodes[n]) for n in labelled]), shares)
    return tuple(labelled[chosen == number] for number in range(3))
