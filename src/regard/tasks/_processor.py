"""Text in and out of a model: the tokenizers of a run and the names of its labels, and attention maps with its tokens as labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..data import Tokenizer, Tokenizers
from ..data.hf_tokenizer import SpecialTokens
from ..decode import PromptEncoder
from ..errors import BadFile, MissingFile, ShapeError
from ..files import read_json, write_json
from ..look import Indices, Layers, Maps, capture
from ..models import LanguageModel, Model, TextModel, body_of


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
            write_json(folder / "generation_config.json", dict(self.generation))
        if self.labels:
            write_json(folder / "labels.json", self.labels, indent=0)

    @classmethod
    def load(cls, folder: Path) -> TextProcessor:
        path, labels, generation = folder / "tokenizer.json", folder / "labels.json", folder / "generation_config.json"
        pair = Tokenizers.load(path) if path.exists() else None
        names = read_json(labels) if labels.exists() else []
        ids = read_json(generation) if generation.exists() else {}
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise BadFile(f"{labels}: expected a list of names")
        if not isinstance(ids, dict):
            raise BadFile(f"{generation}: expected an object")
        return cls(pair, tuple(names), str(folder), ids)


@torch.no_grad()
def text_maps(model: Model, processor: TextProcessor, text: str, layers: Layers = None, heads: Indices = None) -> Maps:
    """The maps of a language model, an encoder or a classifier while it reads this text as in training; a tab separates a pair."""
    body = body_of(model)
    assert isinstance(body, LanguageModel | TextModel)
    ids, segment = _framed(processor, text)
    if body is model and isinstance(body, LanguageModel):
        ids = PromptEncoder(processor.tokenizer, body.config.vocab_size).encode(text)[0]
    if not 1 <= len(ids) <= body.max_length:
        raise ShapeError(f"the text has {len(ids)} tokens, and this model reads 1 to {body.max_length}; shorten it")
    ids_BL = torch.tensor([ids])
    with capture(body, layers, heads, tokens=processor.tokenizer.strings(ids)) as maps:
        if isinstance(body, LanguageModel):
            body.features(ids_BL)
        else:
            body.pool(ids_BL, segment_BL=torch.tensor([segment]))
    return maps


def _framed(processor: TextProcessor, text: str) -> tuple[list[int], list[int]]:
    """begin text end, or begin text end text end; and which of the two texts each token belongs to."""
    special = SpecialTokens.of(processor.tokenizer)
    parts = [[*ids, special.end] for ids in processor.tokenizer.encode_all(text.split("\t"))]
    segment = [0] + [int(number > 0) for number, part in enumerate(parts) for _ in part]
    return [special.begin, *(i for part in parts for i in part)], segment
