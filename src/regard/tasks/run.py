"""A run directory: everything that is needed to use, go on with, or look at a trained model.

config.json          format_version, the task, its settings, the model's name and settings, how it was trained
tokenizer.json       the vocabulary
model.safetensors    the chosen weights
metrics.jsonl        what happened, a line an event
state/               checkpoints, to resume from
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from ..data import Tokenizers
from ..errors import BadFile, MissingFile
from ..models import Translator, build
from ..train.weights import load_weights

FORMAT = 1


@dataclass(frozen=True)
class Run:
    """A trained translator as it lies on disk."""

    folder: Path
    config: dict[str, Any]
    model: Translator
    tokenizers: Tokenizers

    @classmethod
    def load(cls, folder: Path | str) -> Run:
        """The model with its chosen weights, ready to use."""
        folder = Path(folder)
        config = read_config(folder)
        model = build(config["model"]["name"], config["model"]["config"])
        if not isinstance(model, Translator):
            raise BadFile(f"{folder}: a run of {model.facts.name}, which is no translator")
        weights = folder / "model.safetensors"
        if not weights.exists():
            raise MissingFile(
                f"{weights}: no such file; the run has not finished. Go on with it: regard train translation --out {folder} --resume"
            )
        try:
            load_weights(model, load_file(weights), str(weights))
        except (OSError, SafetensorError) as wrong:
            raise BadFile(f"{weights}: not a file of weights: {wrong}") from wrong
        return cls(folder, config, model.eval(), Tokenizers.load(folder / "tokenizer.json"))


def read_config(folder: Path) -> dict[str, Any]:
    """What `write_config` wrote."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as wrong:
        raise MissingFile(f"{path}: no such file, so {folder} is not a run; `regard train translation --out {folder}` makes one") from wrong
    except (OSError, ValueError) as wrong:
        raise BadFile(f"{path}: not JSON: {wrong}") from wrong
    if not isinstance(config, dict) or config.get("format_version") != FORMAT:
        raise BadFile(f"{path}: expected an object with format_version {FORMAT}")
    for part in ("task", "settings", "model", "train"):
        if part not in config:
            raise BadFile(f"{path}: lacks {part!r}")
    return config


def write_config(folder: Path, task: str, settings: dict[str, Any], model: tuple[str, dict[str, Any]], train: dict[str, Any]) -> None:
    """`config.json`, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"format_version": FORMAT, "task": task, "settings": settings, "model": {"name": model[0], "config": model[1]}, "train": train}
    draft = folder / "config.json.writing"
    draft.write_text(json.dumps(config, indent=2, ensure_ascii=False), encoding="utf-8")
    draft.replace(folder / "config.json")
