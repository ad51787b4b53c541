"""The families of transformers that can be read and written: one file each, and this list."""

from __future__ import annotations

from ._bert import BERT
from ._big_bird import BIG_BIRD
from ._family import Family
from ._fnet import FNET
from ._gpt import GPT
from ._gpt2 import GPT2
from ._llama import LLAMA
from ._longformer import LONGFORMER
from ._marian import MARIAN
from ._nystromformer import NYSTROMFORMER
from ._reformer import REFORMER

FAMILIES: tuple[Family, ...] = (BERT, GPT, GPT2, LLAMA, MARIAN, LONGFORMER, BIG_BIRD, FNET, NYSTROMFORMER, REFORMER)
