"""Byte-pair encoding: start from bytes, and repeatedly merge the most frequent pair of neighbours.

The `tokenizers` library trains and applies it; dropout is written here, because the library's own cannot be seeded.

Paper: Sennrich et al. 2016, "Neural machine translation of rare words with subword units", arXiv:1508.07909; over bytes,
Radford et al. 2019; dropout, Provilkov et al. 2020, "BPE-dropout", arXiv:1910.13267.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

Merge = tuple[str, str]


def _printable() -> list[str]:
    """One printable character per byte, as in byte-level BPE: printable bytes are themselves, the rest are numbered from 256."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(b if b in plain else next(others)) for b in range(256)]


BYTES = _printable()
BYTE_OF = {character: byte for byte, character in enumerate(BYTES)}
_words = pre_tokenizers.ByteLevel(add_prefix_space=False)  # merges stay within its words; a space belongs to the word after it


def applied(ids: Mapping[str, int], merges: Sequence[Merge]) -> tokenizers.Tokenizer:
    """The library's tokenizer for these ids. It has no added tokens: it would find their names inside a user's text."""
    native = tokenizers.Tokenizer(models.BPE(vocab=dict(ids), merges=list(merges)))
    native.pre_tokenizer = _words
    return native


def trained(lines: Iterable[str], size: int, least: int) -> tuple[list[str], list[Merge]]:
    """At most `size` tokens, the 256 bytes first, and the merges in the order they are applied."""
    native = tokenizers.Tokenizer(models.BPE())
    native.pre_tokenizer = _words
    trainer = trainers.BpeTrainer(vocab_size=size, min_frequency=least, initial_alphabet=BYTES, show_progress=False)
    native.train_from_iterator(lines, trainer)
    found = native.get_vocab(with_added_tokens=False)
    merges = json.loads(native.to_str())["model"]["merges"]
    # older versions of the library write a merge as "a b", newer ones as ["a", "b"]
    return sorted(found, key=found.__getitem__), [tuple(m.split(" ") if isinstance(m, str) else m) for m in merges]


def with_dropout(text: str, ranks: Mapping[Merge, int], dropout: float, generator: random.Random) -> list[str]:
    """The tokens when at each step each possible merge is skipped with probability `dropout`."""
    tokens, never = [], len(ranks)
    for word, _ in _words.pre_tokenize_str(text):
        symbols = list(word)
        pairs = [ranks.get(pair, never) for pair in pairwise(symbols)]  # at each gap the rank of its merge
        while pairs:
            # the first by rank that is not skipped: the others need not be drawn
            left = pairs
            while (rank := min(left)) < never and generator.random() < dropout:
                left = left.copy()
                left[left.index(rank)] = never
            if rank == never:
                break
            at = left.index(rank)
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
            del pairs[at]
            for gap in range(max(at - 1, 0), min(at + 1, len(pairs))):  # on both sides of the new symbol
                pairs[gap] = ranks.get((symbols[gap], symbols[gap + 1]), never)
        tokens += symbols
    return tokens
