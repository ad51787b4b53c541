"""Variants that train a translator, and evaluate it on unseen sentence pairs with several beam sizes and sets of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ...decode import Beam
from ...errors import NotSupported
from ...models import Translator
from ...runs import Run
from ...tasks import Translation, TranslationOptions, likelihood, load_run, score, task_of, translations
from ...train import TrainOptions
from ...train.checkpoint import load_latest
from ...train.parameters import Ring, load_parameters
from .training import train_run


@dataclass(frozen=True, kw_only=True)
class TranslationMetrics:
    """Metrics of the translator in `out` on at most `pairs` pairs of `test`, or of the test part of its own data."""

    test: str | None = None
    pairs: int = 500
    beam: int = 1
    parameters: Literal["best", "last", "average"] = "best"  # on validation; of the last step; the mean that TrainOptions.average keeps
    step: int = 6  # source words per length group

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        run = load_run(out, Translator)
        if self.parameters != "best":
            _load_parameters(run, self.parameters)
        task = task_of(run) if self.test is None else Translation(TranslationOptions(data=self.test))
        pairs = task.read().test[: self.pairs]
        sources, references = [s for s, _ in pairs], [t for _, t in pairs]
        answers = translations(run, sources, Beam(size=self.beam))
        found = score([text for text, _ in answers], references, sources, self.step)
        loss, accuracy = likelihood(run, pairs)
        return {
            "exact_match": found.exact_match,
            "accuracy": accuracy,
            "loss": loss,
            "chrf": found.chrf,
            "bleu": found.bleu,
            "log_probability": sum(hypotheses[0].log_prob for _, hypotheses in answers) / len(answers),
            **{f"bleu, {length} words": bleu for length, (_, bleu, _) in found.by_length.items()},
            **{f"exact_match, {length} words": exact for length, (_, _, exact) in found.by_length.items()},
        }


@dataclass(frozen=True, kw_only=True)
class TranslationVariant:
    """A translator trained from scratch, then evaluated."""

    options: TranslationOptions
    train: TrainOptions
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    evaluate: TranslationMetrics = field(default_factory=TranslationMetrics)

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        _, training = train_run(Translation, self.options, self.train.replace(seed=seed), out, model=self.model, settings=self.settings)
        return {**self.evaluate(seed, out), **training}


def _load_parameters(run: Run[Translator], which: str) -> None:
    """Replace the best parameters by others of the last checkpoint."""
    found = load_latest(run.folder / "state")
    size = int(run.config.train["average"])
    if found is None or (which == "average" and size < 2):
        raise NotSupported(
            f"{run.folder} holds no {which} parameters; train with TrainOptions(average=N) to keep the mean of N evaluations"
        )
    if which == "last":
        load_parameters(run.model, found.tensors.get("ema") or found.tensors["model"], str(run.folder))
        return
    ring = Ring(size)
    ring.fill(found.tensors["ring"])
    load_parameters(run.model, ring.mean(), str(run.folder))
