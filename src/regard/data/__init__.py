"""Where sentences come from, how they become numbers, and how numbers become batches.

>>> from regard.data import Batches, Corpus, Tokenizers, read
>>> data = read("numbers:en-de,below=1000")
>>> data.train[101]
('one hundred and eleven', 'einhundertelf')
>>> tokenizers = Tokenizers.train(data.train, size=400)
>>> batches = Batches(Corpus.of(data.train, tokenizers), budget=1024, seed=0)
>>> batch = next(batches.epoch(0))
>>> tokenizers.target.decode(batch.target_BL[0].tolist()) == data.train[batch.index_B[0]][1]
True
"""

from .batches import Batches, PairBatch, collate
from .borrowed import BorrowedTokenizer
from .cache import Encoded, Tokens, encoded
from .corpus import Corpus, Ragged
from .lines import LONGEST, Skipped
from .parallel import SOURCES, Parallel, read
from .text import Texts
from .tokens import BOS, EOS, PAD, UNK, Tokenizer, Tokenizers
from .windows import TokenBatch, Windows

__all__ = [
    "BOS",
    "EOS",
    "LONGEST",
    "PAD",
    "SOURCES",
    "UNK",
    "Batches",
    "BorrowedTokenizer",
    "Corpus",
    "Encoded",
    "PairBatch",
    "Parallel",
    "Ragged",
    "Skipped",
    "Texts",
    "TokenBatch",
    "Tokenizer",
    "Tokenizers",
    "Tokens",
    "Windows",
    "collate",
    "encoded",
    "read",
]
