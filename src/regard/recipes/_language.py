"""Variants that train language models through the one loop, on running text or on rows drawn at random, and judge them on unseen ones.

The text is CPython's documentation with every paragraph kept once: topics quote each other, and almost half of any that is held back
would else stand among those that are trained on.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from ..data import Texts, Tokens
from ..data.windows import gather
from ..look import Map, capture
from ..models import LanguageModel, build
from ..tasks import LanguageConfig, Run, perplexity, train_language
from ..tasks.language import text_for
from ..train import AdamW, Budget, Cosine, Every, Muon, OptimizerConfig, TrainConfig, fit
from ..train.weights import load_weights
from ._puzzles import NOTHING, Puzzle
from ._sequences import TEST, SequenceTask, drawn


def training(steps: int, rate: float, optimizer: OptimizerConfig | None = None) -> TrainConfig:
    """A short warm-up, then half a cosine down to nothing; five evaluations. Muon, if nothing else is said: steps are few here."""
    return TrainConfig(
        budget=Budget(steps=steps),
        optimizer=optimizer or Muon(),
        schedule=Cosine(peak=rate, warmup=steps // 10, steps=steps),
        every=Every(log=max(1, steps // 5), evaluate=max(1, steps // 5), save=steps),
    )


def adam() -> AdamW:
    return AdamW(betas=(0.9, 0.98))


def topics() -> dict[str, list[str]]:
    """The paragraphs of each topic of the documentation by its title, each where it stands first."""
    seen: set[str] = set()
    found: dict[str, list[str]] = {}
    for piece in Texts("python-docs", shares=(0.0, 0.0)).pieces():
        own = [part for part in dict.fromkeys(piece.text.split("\n\n")) if part not in seen]
        seen.update(own)
        found.setdefault(piece.text.partition("\n")[0], []).extend(own)
    return {title: paragraphs for title, paragraphs in found.items() if paragraphs}


def documentation(path: Path, without: Set[str] = frozenset()) -> Path:
    """A file of the topics, a JSON line each, `without` some paragraphs."""
    texts = ["\n\n".join(part for part in paragraphs if part not in without) for paragraphs in topics().values()]
    return lines_of(path, [{"text": text} for text in texts if text.strip()])


def lines_of(path: Path, objects: Iterable[Mapping[str, str]]) -> Path:
    """A file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in objects), encoding="utf-8")
    return path


# -- running text ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Written:
    """A language model trained on the documentation. Nats of the test topics: in all, and by how many tokens were read before."""

    config: LanguageConfig
    train: TrainConfig
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        shutil.rmtree(out, ignore_errors=True)  # a recipe is a measurement: nothing of an earlier run counts
        config = replace(self.config, data=str(documentation(out / "text.jsonl")))
        done = train_language(out, config, replace(self.train, seed=seed), self.model, self.settings, progress=False)
        run = Run.load(out, LanguageModel)
        tokens = text_for(run, config, None)
        found = perplexity(run.model, tokens, length=config.length, batch=config.batch)
        return {
            "nats": found.nats,
            "bits a byte": found.bits_per_byte,
            "seconds": done.seconds,
            "parameters": float(sum(p.numel() for p in run.model.parameters())),
            **by_place(run.model, tokens, config.length),
            **curve(out, "nats"),
        }


@torch.no_grad()
def by_place(model: LanguageModel, tokens: Tokens, length: int) -> dict[str, float]:
    """Nats a token by how many the model has read: windows that begin anywhere, none overlapping, and only whole ones."""
    pairs = zip(tokens.starts.tolist(), tokens.ends.tolist(), strict=True)
    span_B2 = np.array([(at, at + length) for begin, end in pairs for at in range(begin, end - length, length)], dtype=np.int64)
    nats_L = torch.zeros(length)
    for some in np.array_split(span_B2.reshape(-1, 2), max(1, len(span_B2) // 16)):
        batch = gather(tokens, some, apart=False)
        nats_L += F.cross_entropy(model(batch.ids_BL).flatten(0, 1), batch.wanted_BL.flatten(), reduction="none").view(-1, length).sum(0)
    edges = [0, *(2**n for n in range(length.bit_length())), length]
    return {
        f"nats by context, {low + 1} to {high}": float(nats_L[low:high].mean()) / len(span_B2)
        for low, high in pairwise(edges)
        if low < high
    }


# -- drawn rows --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A language model taught a puzzle, with new rows in every batch. The share of right answers on unseen ones."""

    puzzle: Puzzle
    train: TrainConfig
    test: Puzzle | None = None  # what it is judged on, if that is another
    model: str = "gpt3"
    settings: Mapping[str, Any] = field(default_factory=dict)
    rows: int = 32  # a batch
    answer: str = ""  # what the places that are asked are counted in, if they are the same in all rows

    def build(self) -> LanguageModel:
        model = build(self.model, {"vocab": self.puzzle.vocab, "length": self.puzzle.length, **self.settings})
        assert isinstance(model, LanguageModel)
        return model

    def load(self, out: Path) -> LanguageModel:
        """The model that was left in `out`."""
        model = self.build()
        load_weights(model, load_file(out / "model.safetensors"))
        return model.eval()

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        shutil.rmtree(out, ignore_errors=True)
        model = self.build()
        done = fit(model, SequenceTask(self.puzzle, self.rows), replace(self.train, seed=seed), out, progress=False)
        return {
            **self.judged(model.eval()),
            "seconds": done.seconds,
            "parameters": float(sum(p.numel() for p in model.parameters())),
            **curve(out, "accuracy"),
        }

    @torch.no_grad()
    def judged(self, model: LanguageModel) -> dict[str, float]:
        ids_BL, wanted_BL = drawn(self.test or self.puzzle, TEST)
        right_BL, asked_BL = model(ids_BL).argmax(-1) == wanted_BL, wanted_BL != NOTHING
        found = {"accuracy": float(right_BL.sum() / asked_BL.sum())}
        if self.answer:
            right_N = right_BL[:, asked_BL[0]].double().mean(0).tolist()
            found |= {f"accuracy by {self.answer}, {n}": each for n, each in enumerate(right_N)}
        return found

    def look(self, out: Path, layer: int) -> Map:
        """Where the model in `out` looks on the first of the test draws: one layer, the mean of its heads."""
        model = self.load(out)
        with torch.no_grad(), capture(model, layers=[layer]) as maps:
            model(drawn(self.puzzle, TEST)[0][:1])
        return maps.all[-1].head()


def curve(out: Path, figure: str) -> dict[str, float]:
    """A figure of validation by step, as the loop wrote it."""
    events = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {f"validation {figure}, step {e['step']}": e[figure] for e in events if e["event"] == "evaluation"}
