"""One example as token ids, and the number of tokens of each of its segments.

BOS text EOS                 a text
BOS text EOS text EOS        a pair: two segments
sentence sentence …          a document, for a model that reads it sentence by sentence: a segment per sentence, no special tokens
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..data import HFTokenizer, Tokenizer
from ..data.hf_tokenizer import SpecialTokens
from ..data.sentences import sentence_spans
from ..models import DocumentModel, Model

MASK = "[MASK]"  # in a text: a token to predict


class Framed(NamedTuple):
    ids: list[int]
    segments: list[int]  # tokens of each, special ones included


def frame(tokenizer: Tokenizer, texts: Sequence[str], length: int, model: Model | None = None, masks: bool = False) -> Framed:
    """At most `length` tokens in all, as this model reads them. With `masks`, [MASK] is the mask token."""
    if isinstance(model, DocumentModel):
        return frame_document(tokenizer, "\n".join(texts), length, model.config.sentence_length, model.config.max_sentences)
    special = SpecialTokens.of(tokenizer)
    encoded = [encode_masked(tokenizer, text) for text in texts] if masks else tokenizer.encode_all(list(texts))
    parts = truncated(encoded, length - len(texts) - 1)
    ids = [special.begin, *(i for part in parts for i in (*part, special.end))]
    return Framed(ids, [len(part) + 1 + (n == 0) for n, part in enumerate(parts)])


def encode_masked(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a text in which [MASK] is the mask token."""
    if MASK not in text:
        return tokenizer.encode(text)
    mask = SpecialTokens.of(tokenizer).mask
    if isinstance(tokenizer, HFTokenizer):  # which finds the mask in a text itself, with the spaces around it
        return tokenizer.encode(text.replace(MASK, tokenizer.vocabulary[mask]))
    *before, last = text.split(MASK)
    if tokenizer.kind in ("bpe", "unigram"):  # the space before a word is part of its token, and that is what is masked
        before = [part.removesuffix(" ") for part in before]
    return [i for part in tokenizer.encode_all([*before, last]) for i in (*part, mask)][:-1]


def frame_document(tokenizer: Tokenizer, text: str, length: int, sentence_length: int, max_sentences: int) -> Framed:
    """The beginning of a document: at most `length` tokens and `max_sentences` sentences. A long sentence becomes several, an empty document the end token."""
    written = [(" " if first and text[first - 1].isspace() else "") + text[first:end] for first, end in sentence_spans(text[: 64 * length])]
    ids, segments = list[int](), list[int]()
    for sentence in tokenizer.encode_all(written[:max_sentences]):
        for at in range(0, len(sentence), sentence_length):
            part = sentence[at : at + sentence_length][: length - len(ids)]
            if not part or len(segments) == max_sentences:
                return Framed(ids, segments)
            ids += part
            segments.append(len(part))
    return Framed(ids, segments) if ids else Framed([SpecialTokens.of(tokenizer).end], [1])


def truncated(texts: list[list[int]], at_most: int) -> list[list[int]]:
    """At most this many tokens in all: the longest text loses its end."""
    while (over := sum(map(len, texts)) - at_most) > 0:
        longest = max(texts, key=len)
        other = max((len(text) for text in texts if text is not longest), default=0)
        del longest[max(len(longest) - over, min(other, len(longest) - 1)) :]
    return texts
