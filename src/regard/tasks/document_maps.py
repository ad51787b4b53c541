"""Attention maps of a model that reads a document on two levels: the words of each sentence, and the sentences.

| map | a row | its columns |
|---|---|---|
| `words` | per sentence | all tokens; weights are zero outside the sentence |
| `sentences` | the document | the sentences |
| `document` | the document | all tokens: weight of the sentence × weight of the word in it, which sums to one |
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..errors import ShapeError
from ..look import Map, Maps, Tree
from ..look.trees import pieces


def document_maps(maps: Maps, tokens: Sequence[str], lengths: Sequence[int]) -> Maps:
    """The three maps above, of a capture of one document: first a batch of its sentences, then one row over them.

    `tokens` of the document in order, `lengths` of its sentences.
    """
    S, T = len(lengths), len(tokens)
    if len(maps.all) != 2 or (words := maps.all[0]).weights_BHLM.shape[0] != S or (over := maps.all[1]).keys != S or sum(lengths) != T:
        shapes = [tuple(m.weights_BHLM.shape) for m in maps.all]
        raise ShapeError(f"maps of shapes {shapes}; expected two: of {S} sentences over their words, and of one document over them")
    ends = torch.tensor(lengths).cumsum(0).tolist()
    spans = [(end - n, end) for n, end in zip(lengths, ends, strict=True)]
    weights_ST = torch.zeros(S, T)
    for s, (first, end) in enumerate(spans):
        weights_ST[s, first:end] = words.read(0, 1, s)[:, 0].mean(0)[: end - first]
    weights_1S = over.read(0, 1)[:, 0].mean(0)[None]
    starts = [_label(tokens[first:end]) for first, end in spans]
    document, tree = ["document"], Tree(spans)
    return Maps(
        [
            Map.of_matrix(weights_ST, "words", words.mechanism, starts, tokens, tree, head=0),
            Map.of_matrix(weights_1S, "sentences", over.mechanism, document, starts, head=0),
            Map.of_matrix(weights_1S @ weights_ST, "document", over.mechanism, document, tokens, tree, head=0),
        ]
    )


def _label(tokens: Sequence[str], longest: int = 24) -> str:
    """The beginning of a sentence."""
    text = "".join((" " if space else "") + piece for space, piece in pieces(tokens[:longest])).strip()
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
