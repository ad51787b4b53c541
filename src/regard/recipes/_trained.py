"""Variants that train a translator through the one loop, and judge it on pairs it has never seen, as often and in as many ways as asked."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ..data import read
from ..decode import Beam
from ..errors import NotSupported
from ..models import Translator
from ..tasks import Run, TranslationConfig, likelihood, score, train_translator, translations
from ..train import TrainConfig
from ..train.checkpoint import load_latest
from ..train.weights import Ring, load_weights


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Figures of the translator in `out`: at most `pairs` pairs of `test`, or of the test part of its own data."""

    test: str | None = None
    pairs: int = 500
    beam: int = 1
    weights: Literal["chosen", "last", "average"] = "chosen"  # by the loop; of the last step; the mean that TrainConfig.average asks for
    step: int = 6  # source words a group of lengths

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        run = Run.load(out, Translator)
        if self.weights != "chosen":
            _load(run, self.weights)
        own = {name: value for name, value in run.config["settings"].items() if name != "digest"}
        pairs = (TranslationConfig(**own).read() if self.test is None else read(self.test)).test[: self.pairs]
        sources, right = [s for s, _ in pairs], [t for _, t in pairs]
        answers = translations(run.model, run.tokenizers, sources, Beam(width=self.beam))
        found = score([text for text, _ in answers], right, sources, self.step)
        nats, told = likelihood(run.model, run.tokenizers, pairs)
        return {
            "exact match": found.exact,
            "token accuracy": told,
            "nats a token": nats,
            "chrF": found.chrf,
            "BLEU": found.bleu,
            "log-probability": sum(each[0].log_prob for _, each in answers) / len(answers),
            **{f"BLEU, {length} words": bleu for length, (_, bleu, _) in found.by_length.items()},
            **{f"exact match, {length} words": exact for length, (_, _, exact) in found.by_length.items()},
        }


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Train `model` on `config`, then judge it; the figures of validation are kept too, as a curve."""

    config: TranslationConfig
    train: TrainConfig
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    judge: Judged = field(default_factory=Judged)

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        shutil.rmtree(out, ignore_errors=True)  # a recipe is a measurement: nothing of an earlier run counts
        done = train_translator(out, self.config, replace(self.train, seed=seed), self.model, self.settings, progress=False)
        parameters = sum(p.numel() for p in Run.load(out).model.parameters())
        events = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        return {
            **self.judge(seed, out),
            "steps": float(done.steps),
            "seconds": done.seconds,
            "parameters": float(parameters),
            **{f"validation nats, step {e['step']}": e["nats"] for e in events if e["event"] == "evaluation"},
        }


def _load(run: Run[Translator], which: str) -> None:
    """Weights the loop may have passed over, out of the last checkpoint."""
    found = load_latest(run.folder / "state")
    size = int(run.config["train"]["average"])
    if found is None or (which == "average" and size < 2):
        raise NotSupported(
            f"{run.folder} holds no {which} weights; the mean of the last so many evaluations is kept with TrainConfig(average=…)"
        )
    if which == "last":
        load_weights(run.model, found.tensors.get("ema") or found.tensors["model"], str(run.folder))
        return
    ring = Ring(size)
    ring.fill(found.tensors["ring"])
    load_weights(run.model, ring.mean(), str(run.folder))
