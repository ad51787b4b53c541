"""Text in and out of a model: the tokenizers of a run and the names of its labels, and attention maps with its tokens as labels."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data import Tokenizer, Tokenizers
from ..decode import PromptEncoder
from ..errors import BadFile, MissingFile, ShapeError
from ..files import read_json, write_json
from ..look import Indices, Layers, Map, Maps, capture
from ..look.gradients import InputGradients, next_token_gradients
from ..look.token_labels import Labels
from ..models import Classifier, DocumentModel, LanguageModel, Model, TextEncoder, TextModel, body_of, device_of
from ..models.text import Axes
from .document_maps import document_maps
from .sentence_transformers import SentencePooling, read_pooling, write_pooling
from .special_tokens import frame


@dataclass(frozen=True)
class TextProcessor:
    """tokenizer.json and, of a classifier, labels.json. A transformers directory may come without a tokenizer."""

    pair: Tokenizers | None  # tokenizers of source and target; None: the directory has none
    labels: tuple[str, ...] = ()  # names of the classes, of a classifier
    origin: str = "this run"  # directory that errors name
    generation: Mapping[str, Any] = field(default_factory=dict)  # generation_config.json of transformers, for export
    pooling: SentencePooling = field(default_factory=SentencePooling)  # pooling of an imported sentence encoder

    @property
    def tokenizers(self) -> Tokenizers:
        """Tokenizers of source and target; for one text both are the same."""
        if self.pair is None:
            raise MissingFile(
                f"{self.origin}: no tokenizer.json, so text cannot become tokens; save the one the model was trained with there"
            )
        return self.pair

    @property
    def tokenizer(self) -> Tokenizer:
        return self.tokenizers.source

    def replaced(self, tokenizer: Tokenizer | Tokenizers | None, labels: Sequence[str] | None) -> TextProcessor:
        """Processor with another tokenizer, whose special tokens hold then, or with other labels; None keeps what there is."""
        found = self if tokenizer is None else TextProcessor(Tokenizers(tokenizer) if isinstance(tokenizer, Tokenizer) else tokenizer)
        return replace(found, labels=self.labels if labels is None else tuple(labels), pooling=self.pooling)

    def save(self, folder: Path) -> None:
        if self.pair is not None:
            self.pair.save(folder / "tokenizer.json")
        if self.generation:
            write_json(folder / "generation_config.json", dict(self.generation))
        if self.labels:
            write_json(folder / "labels.json", self.labels, indent=0)
        if self.pooling != SentencePooling():
            write_pooling(self.pooling, folder)

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
        return cls(pair, tuple(names), str(folder), ids, read_pooling(folder))


@torch.no_grad()
def text_maps(model: Model, processor: TextProcessor, text: str, layers: Layers = None, heads: Indices = None) -> Maps:
    """The maps of a language model, an encoder or a classifier while it reads this text as in training; a tab separates a pair."""
    body = body_of(model)
    assert isinstance(body, LanguageModel | TextModel)
    if isinstance(body, DocumentModel):
        return _document_maps(model, body, processor, text, layers)
    ids, segments = frame(processor.tokenizer, text.split("\t"), sys.maxsize, masks=isinstance(model, TextEncoder))
    if body is model and isinstance(body, LanguageModel):
        ids = PromptEncoder(processor.tokenizer, body.config.vocab_size).encode(text)[0]
    if not 1 <= len(ids) <= body.max_length:
        raise ShapeError(f"the text has {len(ids)} tokens, and this model reads 1 to {body.max_length}; shorten it")
    ids_BL, segment_BL = (x.to(device_of(model)) for x in (torch.tensor([ids]), _segment_numbers(segments)))
    tokens = _strings(processor.tokenizer, ids)
    if isinstance(body, LanguageModel):
        with capture(body, layers, heads, tokens=tokens) as maps:
            x_BLD = body.features(ids_BL)
        if isinstance(model, LanguageModel):
            maps.gradients = next_token_gradients(model, ids_BL, x_BLD, processor.tokenizer.strings, maps.layers)
        elif isinstance(model, Classifier):
            maps.gradients = _label_gradients(model, processor, maps.layers, ids_BL, segment_BL)
        return maps
    axes = body.axes(segment_BL[0].tolist())
    with capture(body, layers, heads, tokens=None if axes else tokens) as maps:
        body.pool(ids_BL, segment_BL=segment_BL)
    if isinstance(model, Classifier) and isinstance(body, TextEncoder):
        maps.gradients = _label_gradients(model, processor, maps.layers, ids_BL, segment_BL)
    elif isinstance(model, TextEncoder):
        maps.gradients = _token_gradients(model, processor.tokenizer, maps.layers, ids_BL, segment_BL)
    if not axes:
        return maps
    found = Maps([named for one in maps.all for named in _named(one, axes, tokens)], maps.idle)
    if isinstance(model, Classifier):
        _add_pooled_gradients(found, model, processor, axes, ids_BL, segment_BL)
    return found


def _named(one: Map, axes: Mapping[str, Sequence[Axes]], tokens: Sequence[str]) -> list[Map]:
    """The matrices of a map, each with the names of its rows and columns."""
    if one.layer not in axes:
        return [one.label(tokens, tokens)]

    def words(names: Sequence[int | str]) -> Labels:
        return (tuple(name if isinstance(name, str) else tokens[name] for name in names),)

    return [
        replace(
            one,
            layer=_part_name(one.layer, part),
            rows=tuple(range(len(part.queries))),
            columns=tuple(range(len(part.keys))),
            queries=len(part.queries),
            weights_BHLM=one.read(0, len(part.queries), part.row)[None, :, :, : len(part.keys)],
            query_labels=words(part.queries),
            key_labels=words(part.keys),
            inputs=None,
            deferred=False,
        )
        for part in axes[one.layer]
    ]


def _part_name(layer: str, part: Axes) -> str:
    return f"{layer} ({part.name})" if part.name else layer


def _document_maps(model: Model, body: DocumentModel, processor: TextProcessor, text: str, layers: Layers) -> Maps:
    """Both levels of attention, over what the model reads of this document."""
    ids, segments = frame(processor.tokenizer, [text], body.max_length, body)
    ids_BL, segment_BL = (x.to(device_of(model)) for x in (torch.tensor([ids]), _segment_numbers(segments)))
    with capture(body) as maps:
        body.pool(ids_BL, segment_BL=segment_BL)
    found = document_maps(maps, processor.tokenizer.strings(ids), segments).choose(layers)
    over_all = [m.layer for m in found.all if len(m.rows) == 1 and len(m.columns) == len(ids)]
    if isinstance(model, Classifier):
        found.gradients = _label_gradients(model, processor, over_all, ids_BL, segment_BL)
    return found


def _segment_numbers(segments: list[int]) -> torch.Tensor:
    """segment_BL of one example."""
    return torch.arange(len(segments)).repeat_interleave(torch.tensor(segments))[None]


def _strings(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Names of tokens; our own vocabularies have no name for the mask, the number after their last."""
    known = len(tokenizer)
    return [tokenizer.strings([i])[0] if i < known else tokenizer.mask_token for i in ids]


def _token_gradients(model: TextEncoder, tokenizer: Tokenizer, layers: list[str], ids_BL: Tensor, segment_BL: Tensor) -> InputGradients:
    """Gradients of the token that an encoder predicts at each position: of a [MASK], the one it fills in."""

    def features(model: TextEncoder) -> Tensor:
        return model.features(ids_BL, segment_BL=segment_BL)[0]

    best_L = model.logits(features(model))[:, : len(tokenizer)].argmax(-1)
    return InputGradients(model, (ids_BL,), features, best_L, tokenizer.strings(best_L.tolist()), dict.fromkeys(layers, 0))


def _add_pooled_gradients(
    maps: Maps, model: Classifier, processor: TextProcessor, axes: Mapping[str, Sequence[Axes]], ids_BL: Tensor, segment_BL: Tensor
) -> None:
    """Those of a model that reads only some of the tokens, such as each text of a pair without the special token before it."""
    keys = {_part_name(layer, part): part.keys for layer, parts in axes.items() for part in parts}
    keys = {layer: these for layer, these in keys.items() if layer in maps.layers and all(isinstance(key, int) for key in these)}
    read = sorted({int(key) for these in keys.values() for key in these})
    if keys:
        maps.gradients = _label_gradients(model, processor, list(keys), ids_BL, segment_BL, read)
    if maps.gradients is not None:
        maps.gradients.positions = {layer: [read.index(int(key)) for key in these] for layer, these in keys.items()}


def _label_gradients(
    model: Classifier, processor: TextProcessor, layers: list[str], ids_BL: Tensor, segment_BL: Tensor, read: Sequence[int] | None = None
) -> InputGradients | None:
    """Gradients of the label that a classifier gives to the text, or to each of its tokens; none of a regression, which has no log-probability.

    `read`: the tokens that it embeds, if not all.
    """
    n_B, read_BL = torch.tensor([ids_BL.shape[1]], device=ids_BL.device), ids_BL if read is None else ids_BL[:, list(read)]

    def logits(model: Classifier) -> Tensor:
        logits_LN = model(ids_BL, n_B, segment_BL)
        return logits_LN[0] if model.each else logits_LN

    if (logits_LN := logits(model)).shape[-1] == 1:
        return None
    label_L = logits_LN.argmax(-1)
    names = [processor.labels[n] if processor.labels else str(n) for n in label_L.tolist()]
    return InputGradients(model, (read_BL,), logits, label_L, names, dict.fromkeys(layers, 0), logits=lambda _, x_N: x_N)
