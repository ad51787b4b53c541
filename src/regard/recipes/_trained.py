"""A variant that trains a translator through the one loop and judges it on pairs it has never seen."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..data import read
from ..decode import Beam
from ..tasks import Run, TranslationConfig, score, train_translator, translations
from ..train import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Train `model` on `config`, then translate at most `judged` pairs of `test` (or of the config's own test part)."""

    config: TranslationConfig
    train: TrainConfig
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    test: str | None = None
    judged: int = 500
    beams: tuple[int, ...] = (1,)
    step: int = 6  # source words a group of lengths

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        shutil.rmtree(out, ignore_errors=True)  # a recipe is a measurement: nothing of an earlier run counts
        done = train_translator(out, self.config, replace(self.train, seed=seed), self.model, self.settings, progress=False)
        run = Run.load(out)
        pairs = (self.config.read() if self.test is None else read(self.test)).test[: self.judged]
        sources, right = [s for s, _ in pairs], [t for _, t in pairs]
        figures = {"steps": float(done.steps), "seconds": done.seconds, "parameters": float(sum(p.numel() for p in run.model.parameters()))}
        for width in self.beams:
            answers = translations(run.model, run.tokenizers, sources, Beam(width=width))
            found = score([text for text, _ in answers], right, sources, self.step)
            name = "" if width == 1 else f", beam {width}"
            figures |= {f"exact match{name}": found.exact, f"chrF{name}": found.chrf, f"BLEU{name}": found.bleu}
            figures[f"log-probability{name}"] = sum(each[0].log_prob for _, each in answers) / len(answers)
            if width == 1:
                figures |= {f"BLEU, {length} words": bleu for length, (_, bleu, _) in found.by_length.items()}
                figures |= {f"exact match, {length} words": exact for length, (_, _, exact) in found.by_length.items()}
        return figures
