"""The special tokens around a text and in place of its words, whichever vocabulary they are of.

    begin text end            begin text end text end            a word shown as `mask`

In ours these are BOS, EOS and the number after the last, for a model with one token more; a borrowed tokenizer has its own, by role.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import NotSupported
from .borrowed import BorrowedTokenizer
from .tokens import BOS, EOS, SPECIAL, UNK, Tokenizer


@dataclass(frozen=True)
class Frame:
    begin: int
    end: int
    hidden: int | None  # in place of a word that is to be guessed
    unknown: int | None
    special: frozenset[int]  # no words
    size: int  # of the vocabulary

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Frame:
        if not isinstance(tokenizer, BorrowedTokenizer):
            return cls(BOS, EOS, len(tokenizer), UNK, frozenset(range(len(SPECIAL))), len(tokenizer))
        roles = tokenizer.roles
        begin, end = roles.get("cls", roles.get("bos", roles.get("eos"))), roles.get("sep", roles.get("eos", roles.get("bos")))
        if begin is None or end is None:
            raise NotSupported(f"{tokenizer!r} has no token that begins or ends a text; its roles are {', '.join(roles) or 'none'}")
        return cls(begin, end, roles.get("mask"), roles.get("unk"), frozenset(roles.values()), len(tokenizer))

    @property
    def mask(self) -> int:
        """What stands for a hidden word."""
        if self.hidden is None:
            raise NotSupported("this vocabulary has no token for a hidden word; one for masked language modelling has")
        return self.hidden

    def words(self) -> Tensor:
        """All ids that are no special tokens."""
        return torch.tensor([i for i in range(self.size) if i not in self.special])
