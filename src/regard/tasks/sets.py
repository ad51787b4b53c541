"""Sets of vectors: the largest number, how many are different, the odd one out, clusters; or any number, label or index of the user's."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..baselines import Mixture
from ..data import Fault, Splits
from ..data.batches import Numbers
from ..data.sets import Expected, SetExample, TargetKind, as_json, read_set_source, set_of, width_of
from ..data.splits import part_of, read_splits
from ..errors import NotSupported
from ..look import Indices, Layers, Map, Maps
from ..look.pictures import png
from ..models import SetTransformer
from ..runs import Run
from ..train import Loss
from .options import NoOptions
from .options.sets import SetsOptions, SetsTaskDeclaration
from .set_baselines import number_metrics, set_baselines
from .set_pictures import draw_clusters
from .set_processor import SetBatch, SetProcessor
from .task import Prediction, Task

SHOWN = 5  # labels of a prediction


class SetsTask(SetsTaskDeclaration, Task[SetsOptions]):
    unit = "sets"
    Processor = SetProcessor
    model_kind = SetTransformer
    next_commands = 'regard evaluate {out}        regard predict {out} "[[…], …]"        regard look {out}'

    @property
    def kind(self) -> TargetKind:
        """Kind of the target of this run."""
        found: TargetKind = self.processor.kind
        return found

    # -- data ----------------------------------------------------------------------------------------------------------

    def read(self) -> Splits[list[SetExample]]:
        o = self.options
        known = Expected(None if o.target == "auto" else o.target)
        if self.processor is not None:
            known = Expected(self.processor.kind, len(self.processor.mean))

        def found(source: str) -> Iterator[SetExample | Fault]:
            return read_set_source(source, known, part_of(o.shares))

        self.found = known
        data, valid, test = (o.one_file(name) for name in ("data", "valid", "test"))
        return read_splits(found, data, valid, test, o.on_error, o.shares, lambda one: one.key, "set", SetExample.content)

    def make_processor(self, data: Splits[list[SetExample]], base: SetProcessor | None) -> SetProcessor:
        kind = self.found.kind
        assert kind is not None
        if base is None:
            return SetProcessor.of(data.train, kind, self.options.components)
        if (base.kind, len(base.mean)) != (kind, width_of(data.train)):
            raise NotSupported(
                f"the run to start from has sets of {len(base.mean)} numbers per item with a target of the kind {base.kind}, and the data "
                f"{width_of(data.train)} with {kind}; start from another run"
            )
        return base

    def parse(self, text: str) -> SetExample:
        try:
            described = json.loads(text)
        except (ValueError, RecursionError) as wrong:
            raise NotSupported(
                f"{text[:60]!r}: not JSON ({str(wrong)[:60]}); expected a list of items, as in [[0.1, 2], [0.7, 1]]"
            ) from wrong
        described = described.get("set") if isinstance(described, dict) else described
        return set_of(described, Expected(width=len(self.processor.mean)), repr(text[:60]))

    def input_text(self, example: SetExample) -> str:
        return as_json(example.items)

    def lengths(self, rows: Sequence[SetExample]) -> Numbers:
        return np.array([len(one.items) for one in rows], dtype=np.int64)

    def batch(self, item: Sequence[SetExample], generator: torch.Generator | None) -> SetBatch:
        p, targets = self.processor, [one.target for one in item]
        known = [target is not None and (p.kind != "label" or target in p.labels) for target in targets]
        numbers = [0.0 if not there else self._number(target) for there, target in zip(known, targets, strict=True)]
        y_B = torch.tensor(numbers, dtype=torch.float32 if p.kind == "number" else torch.long)
        return SetBatch(
            pad_sequence([p.encode(one) for one in item], batch_first=True),
            torch.tensor([len(one.items) for one in item]),
            y_B,
            torch.tensor(known),
        )

    def _number(self, target: Any) -> float:
        p = self.processor
        return (target - p.y_mean) / p.y_std if p.kind == "number" else float(p.labels.index(target) if p.kind == "label" else target)

    # -- model ---------------------------------------------------------------------------------------------------------

    def settings(self, model: str, data: Splits[Any]) -> dict[str, Any]:
        p = self.processor
        inputs = {"inputs": len(p.mean)}
        if p.kind == "clusters":
            return {**inputs, "head": "seed", "seeds": p.components, "outputs": 1 + 2 * len(p.mean)}
        return {**inputs, "head": "item" if p.kind == "index" else "set", "outputs": max(1, len(p.labels))}

    def loss(self, model: SetTransformer, batch: SetBatch) -> Loss:
        """Absolute error in standard deviations, cross-entropy of the label or of the index, or −log p of the items, each set's mean."""
        out, here_BL = model(batch.x_BLI, batch.n_B), None
        if self.kind == "number":
            return Loss(((out[:, 0] - batch.y_B).abs() * batch.known_B).sum(), len(out), outputs=out[:, 0])
        if self.kind == "clusters":
            here_BL = torch.arange(batch.x_BLI.shape[1], device=out.device) < batch.n_B[:, None]
            nll_BL = -Mixture.of(out.float()).log_density(batch.x_BLI)
            return Loss(((nll_BL * here_BL).sum(1) / batch.n_B).sum(), len(out), outputs=out)
        if self.kind == "index":
            here_BL = torch.arange(out.shape[1], device=out.device) < batch.n_B[:, None]
            out = out.squeeze(-1).masked_fill(~here_BL, -torch.inf)
        nll_B = F.cross_entropy(out.float(), batch.y_B, reduction="none") * batch.known_B
        return Loss(nll_B.sum(), len(out), outputs=out)

    # -- answers -------------------------------------------------------------------------------------------------------

    def answers(self, outputs: Tensor, batch: SetBatch) -> list[Any]:
        """Numbers in their own unit, probabilities of labels or items, mixtures in the unit of the items."""
        p, outputs = self.processor, outputs.float().cpu()
        if p.kind == "number":
            found: list[Any] = (outputs.double() * p.y_std + p.y_mean).tolist()
        elif p.kind == "clusters":
            mixture = p.decode(Mixture.of(outputs))
            found = [Mixture(*(x[n : n + 1] for x in mixture)) for n in range(len(outputs))]
        else:
            sizes = batch.n_B.tolist() if p.kind == "index" else [outputs.shape[1]] * len(outputs)
            found = [row[:n].numpy() for row, n in zip(outputs.softmax(-1), sizes, strict=True)]
        return found

    def metrics(self, sums: Mapping[str, float], answers: Sequence[Any], examples: Sequence[SetExample]) -> dict[str, float]:
        loss = {"loss": sums["loss"] / max(sums["count"], 1)}
        if self.kind == "clusters":
            density = [float(one.log_density(_items(example)).mean()) for one, example in zip(answers, examples, strict=True)]
            return loss | {"log_likelihood": float(np.mean(density))}
        if self.kind == "number":
            return loss | number_metrics(self.processor, np.array(answers), examples)
        return loss | {"accuracy": float(np.mean([self._best(one) == e.target for one, e in zip(answers, examples, strict=True)]))}

    def _best(self, p_N: Any) -> Any:
        return self.processor.labels[int(p_N.argmax())] if self.kind == "label" else int(p_N.argmax())

    def baselines(self, train: Sequence[SetExample], examples: Sequence[SetExample]) -> dict[str, dict[str, float]]:
        return set_baselines(self.processor, train, examples)

    # -- use -----------------------------------------------------------------------------------------------------------

    def prediction(self, example: SetExample, answer: Any, options: NoOptions) -> Prediction:
        if self.kind == "number":
            return Prediction(f"{answer:.4g}", {"y": answer})
        if self.kind == "clusters":
            return _clusters(example, answer)
        best = np.argsort(-answer, kind="stable")[:SHOWN].tolist()
        names = [self.processor.labels[n] if self.kind == "label" else str(n) for n in best]
        what = f"{'' if self.kind == 'label' else 'item '}{names[0]} ({answer[best[0]]:.2f})"
        values = {self.kind: self._best(answer), "probability": float(answer[best[0]])}
        return Prediction(what, values | {"most_likely": {name: float(answer[n]) for name, n in zip(names, best, strict=True)}})

    def attention_maps(self, run: Run[SetTransformer], text: str, layers: Layers, heads: Indices, options: NoOptions) -> tuple[str, Maps]:
        """Maps of the items, the inducing points and the seeds; those between seeds only if they are asked for."""
        example = self.parse(text)
        some: Layers = (lambda name: not name.startswith("decoder")) if layers is None else layers
        found, maps = super().attention_maps(run, text, some, heads, options)
        names = item_names(example)
        drawn = [label_sides(m, names) for m in maps.all]
        points = example.items if example.items.shape[1] == 2 else None
        if example.items.shape[1] == 1:
            points = np.concatenate([example.items, np.zeros_like(example.items)], 1)
        return found, Maps(drawn, maps.idle, points=points)


def item_names(example: SetExample) -> list[str]:
    """Names of the items: those that they have, else their numbers, or how many they are in the set."""
    if example.names:
        return [f"{n}: {name}" for n, name in enumerate(example.names)]
    if example.items.shape[1] <= 3:
        return [", ".join(f"{x:.4g}" for x in row) for row in example.items.tolist()]
    return [f"item {n}" for n in range(len(example.items))]


def label_sides(m: Map, names: Sequence[str]) -> Map:
    """A map with names of its queries and keys: items, inducing points, seeds."""
    parts = m.layer.split(".")
    queries = "inducing point" if "gather" in parts else "seed" if parts[0] in ("pool", "decoder") else ""
    keys = "inducing point" if "spread" in parts else "seed" if parts[0] == "decoder" else ""
    sides = [[f"{name} {n}" for n in range(size)] if name else list(names) for name, size in ((queries, m.queries), (keys, m.keys))]
    return m.label(sides[0], sides[1])


def _items(example: SetExample) -> Tensor:
    return torch.from_numpy(example.items).double()[None]


def _clusters(example: SetExample, mixture: Mixture) -> Prediction:
    """Shares, means and deviations of the components, largest first, and a picture of sets in the plane."""
    share_C, order = mixture.log_share_BC[0].exp(), mixture.log_share_BC[0].argsort(descending=True)
    belongs_L = mixture.joint(_items(example))[0].argmax(-1)
    density = float(mixture.log_density(_items(example)).mean())
    parts, lines = [], [f"log-likelihood per item {density:.3f}"]
    for c in order.tolist():
        mean, std = mixture.mean_BCI[0, c].tolist(), mixture.std_BCI[0, c].tolist()
        parts.append({"share": float(share_C[c]), "mean": mean, "std": std, "items": int((belongs_L == c).sum())})
        lines.append(f"{float(share_C[c]):.2f} at ({', '.join(f'{x:.3g}' for x in mean)}) ± ({', '.join(f'{x:.2g}' for x in std)})")
    files = {".png": png(draw_clusters([(example.items, mixture, "")]))} if example.items.shape[1] == 2 else {}
    return (
        Prediction("\n".join(lines), {"log_likelihood": density, "components": parts}, files)
        if math.isfinite(density)
        else Prediction(lines[0], {"log_likelihood": density, "components": []})
    )
