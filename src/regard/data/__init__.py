"""Readers, tokenizers and batches.

>>> from regard.data import Batches, Corpus, Tokenizers, read_pairs
>>> data = read_pairs("numbers:en-de,below=1000")
>>> data.train[101]
('one hundred and eleven', 'einhundertelf')
>>> tokenizers = Tokenizers.train(data.train, vocab_size=400)
>>> batches = Batches(Corpus.of(data.train, tokenizers), batch_tokens=1024, seed=0)
>>> batch = next(batches.epoch(0))
>>> tokenizers.target.decode(batch.target_BL[0].tolist()) == data.train[batch.index_B[0]][1]
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import lazy

if TYPE_CHECKING:
    from .batches import Batches, Corpus, PairBatch, Ragged, collate
    from .cache import TokenizedText, count_characters, tokenize_texts, train_tokenizer
    from .hf_tokenizer import HFTokenizer
    from .lines import LONGEST, Fault, Skipped, objects
    from .lm_batches import LMBatch, LMBatches
    from .pairs import PairList
    from .parallel import leaked, read_pairs
    from .sources import SOURCES
    from .splits import Splits
    from .text import Texts
    from .tokens import BOS, EOS, PAD, UNK, Tokenizer, Tokenizers, TrainedKind
    from .unigram import load_tokenizers
else:
    __getattr__, __dir__ = lazy(__name__)
