"""Attention maps of models that read one text, with its tokens as labels."""

from __future__ import annotations

import torch

from ..data.special_tokens import SpecialTokens
from ..decode import PromptEncoder
from ..errors import ShapeError
from ..look import Indices, Layers, Maps, capture
from ..models import Classifier, LanguageModel, Model, TextEncoder
from ._processor import TextProcessor


@torch.no_grad()
def text_maps(model: Model, processor: TextProcessor, text: str, layers: Layers = None, heads: Indices = None) -> Maps:
    """The maps of a language model, an encoder or a classifier while it reads this text as in training; a tab separates a pair."""
    body = model.body if isinstance(model, Classifier) else model
    assert isinstance(body, LanguageModel | TextEncoder)
    ids, segment = _prompt(body, processor, text) if body is model and isinstance(body, LanguageModel) else _framed(processor, text)
    if not 1 <= len(ids) <= body.max_length:
        raise ShapeError(f"a text of {len(ids)} tokens, and this model reads 1 to {body.max_length}; shorten it")
    ids_BL = torch.tensor([ids])
    with capture(body, layers, heads, tokens=processor.tokenizer.strings(ids)) as maps:
        if isinstance(body, LanguageModel):
            body.features(ids_BL)
        else:
            body.features(ids_BL, segment_BL=torch.tensor([segment]))
    return maps


def _prompt(body: LanguageModel, processor: TextProcessor, text: str) -> tuple[list[int], list[int]]:
    return PromptEncoder(processor.tokenizer, body.config.vocab_size).encode(text)[0], []


def _framed(processor: TextProcessor, text: str) -> tuple[list[int], list[int]]:
    """begin text end, or begin text end text end; and which of the two texts each token belongs to."""
    special = SpecialTokens.of(processor.tokenizer)
    parts = [[*ids, special.end] for ids in processor.tokenizer.encode_all(text.split("\t"))]
    segment = [0] + [int(number > 0) for number, part in enumerate(parts) for _ in part]
    return [special.begin, *(i for part in parts for i in part)], segment
