"""One example as token ids, and the number of tokens of each of its segments.

BOS text EOS                 a text
BOS text EOS text EOS        a pair: two segments
sentence sentence …          a document, for a model that reads it sentence by sentence: a segment per sentence, no special tokens
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..data import Tokenizer
from ..data.sentences import sentence_spans
from ..models import DocumentModel, Model


class Framed(NamedTuple):
    ids: list[int]
    segments: list[int]  # tokens of each, special ones included


def frame(tokenizer: Tokenizer, texts: Sequence[str], length: int, model: Model | None = None, masks: bool = False) -> Framed:
    """At most `length` tokens in all, as this model reads them. With `masks`, [MASK] is the mask token."""
    if isinstance(model, DocumentModel):
        return frame_document(tokenizer, "\n".join(texts), length, model.config.sentence_length, model.config.max_sentences)
    encoded = [tokenizer.encode_masked(text) for text in texts] if masks else tokenizer.encode_all(list(texts))
    parts = truncated(encoded, length - len(texts) - 1)
    ids = [tokenizer.begin_id, *(i for part in parts for i in (*part, tokenizer.end_id))]
    return Framed(ids, [len(part) + 1 + (n == 0) for n, part in enumerate(parts)])


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
    return Framed(ids, segments) if ids else Framed([tokenizer.end_id], [1])


def truncated(texts: list[list[int]], at_most: int) -> list[list[int]]:
    """At most this many tokens in all: the longest text loses its end."""
    while (over := sum(map(len, texts)) - at_most) > 0:
        longest = max(texts, key=len)
        other = max((len(text) for text in texts if text is not longest), default=0)
        del longest[max(len(longest) - over, min(other, len(longest) - 1)) :]
    return texts
