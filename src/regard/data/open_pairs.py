"""Articles and summaries as ids over an extended vocabulary: words of an article that the tokenizer lacks get ids of their own.

    source, words = encode_article(tokenizer, "Zyrkon met Ada", 400)        words = ["Zyrkon"], whose id is len(tokenizer)
    encode_summary(tokenizer, "Zyrkon", words, 100)                         BOS, len(tokenizer), EOS
    tokenizer.decode([len(tokenizer)], words)                               "Zyrkon"

A batch of them is an ordinary `PairBatch`: the numbers are per row, so the ids alone say what can be copied.
"""

from __future__ import annotations

from collections.abc import Sequence

from .batches import Corpus, Ragged
from .pace import Pace
from .tokens import Tokenizer

CHUNK = 1 << 12  # pairs


def encode_article(tokenizer: Tokenizer, text: str, longest: int) -> tuple[list[int], list[str]]:
    """The first `longest` tokens of an article and the end token, and its words outside the vocabulary."""
    ids, words = tokenizer.encode_open(text, longest=longest)
    return [*ids, tokenizer.target_end_id], words


def encode_summary(tokenizer: Tokenizer, text: str, words: Sequence[str], longest: int) -> list[int]:
    """BOS, the first `longest` tokens of a summary of an article with these words, and EOS; what was cut has no EOS."""
    ids, _ = tokenizer.encode_open(text, words, longest + 1)
    return [tokenizer.target_start_id, *ids[:longest], *([tokenizer.target_end_id] if len(ids) <= longest else [])]


def open_corpus(pairs: Sequence[tuple[str, str]], tokenizer: Tokenizer, source_length: int, target_length: int) -> Corpus:
    """All pairs as ids, in chunks, so that lists of Python integers never hold a whole corpus."""
    sources, targets, pace = list[Ragged](), list[Ragged](), Pace("tokenizing articles")
    for at in range(0, len(pairs), CHUNK):
        chunk = list[tuple[list[int], list[int]]]()
        for article, summary in pairs[at : at + CHUNK]:
            source, words = encode_article(tokenizer, article, source_length)
            chunk.append((source, encode_summary(tokenizer, summary, words, target_length)))
            pace.add(len(article))
        sources.append(Ragged.of(source for source, _ in chunk))
        targets.append(Ragged.of(target for _, target in chunk))
    return Corpus(Ragged.joined(sources), Ragged.joined(targets))
