"""Text in and out of a model: the tokenizers of a run, and the names of its labels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..data import Tokenizer, Tokenizers
from ..errors import BadFile, MissingFile


@dataclass(frozen=True)
class TextProcessor:
    """tokenizer.json and, of a classifier, labels.json. A transformers directory may come without a tokenizer."""

    pair: Tokenizers | None
    labels: tuple[str, ...] = ()
    origin: str = "this run"
    generation: Mapping[str, Any] = field(default_factory=dict)  # generation_config.json of transformers, for export

    @property
    def tokenizers(self) -> Tokenizers:
        """Of source and target; for one text both are the same."""
        if self.pair is None:
            raise MissingFile(
                f"{self.origin}: no tokenizer.json, so text cannot become tokens; save the one the model was trained with there"
            )
        return self.pair

    @property
    def tokenizer(self) -> Tokenizer:
        return self.tokenizers.source

    def save(self, folder: Path) -> None:
        if self.pair is not None:
            self.pair.save(folder / "tokenizer.json")
        if self.generation:
            (folder / "generation_config.json").write_text(json.dumps(self.generation, indent=2) + "\n", encoding="utf-8")
        if self.labels:
            (folder / "labels.json").write_text(json.dumps(self.labels, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> TextProcessor:
        path, labels, generation = folder / "tokenizer.json", folder / "labels.json", folder / "generation_config.json"
        pair = Tokenizers.load(path) if path.exists() else None
        names, ids = _read_json(labels, []), _read_json(generation, {})
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise BadFile(f"{labels}: expected a list of names")
        if not isinstance(ids, dict):
            raise BadFile(f"{generation}: expected an object")
        return cls(pair, tuple(names), str(folder), ids)


def _read_json(path: Path, default: Any) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else default
    except (OSError, ValueError, RecursionError) as wrong:
        raise BadFile(f"{path}: not JSON: {wrong}") from wrong
