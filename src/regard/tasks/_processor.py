"""Text in and out of a model: the tokenizers of a run, and the names of its labels."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ..data import Tokenizer, Tokenizers
from ..errors import BadFile, MissingFile


@dataclass(frozen=True)
class TextProcessor:
    """tokenizer.json and, of a classifier, labels.json. A transformers directory may come without a tokenizer."""

    pair: Tokenizers | None
    labels: tuple[str, ...] = ()
    origin: str = "this run"

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
        if self.labels:
            (folder / "labels.json").write_text(json.dumps(self.labels, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> TextProcessor:
        path, labels = folder / "tokenizer.json", folder / "labels.json"
        pair = Tokenizers.load(path) if path.exists() else None
        try:
            names = json.loads(labels.read_text(encoding="utf-8")) if labels.exists() else []
        except (OSError, ValueError) as wrong:
            raise BadFile(f"{labels}: not JSON: {wrong}") from wrong
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise BadFile(f"{labels}: expected a list of names")
        return cls(pair, tuple(names), str(folder))
