"""The special tokens around a text and in place of masked words, for any tokenizer.

    begin text end            begin text end text end            a masked word becomes `mask`

In ours these are BOS, EOS and the id after the last, for a model with one more token; an `HFTokenizer` has its own, by role.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import NotSupported
from .hf_tokenizer import HFTokenizer
from .tokens import BOS, EOS, SPECIAL, UNK, Tokenizer


@dataclass(frozen=True)
class SpecialTokens:
    begin: int
    end: int
    hidden: int | None  # the mask token
    unknown: int | None
    special: frozenset[int]  # ids of special tokens
    size: int  # of the vocabulary

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> SpecialTokens:
        if not isinstance(tokenizer, HFTokenizer):
            return cls(BOS, EOS, len(tokenizer), UNK, frozenset(range(len(SPECIAL))), len(tokenizer))
        roles = tokenizer.roles
        begin, end = roles.get("cls", roles.get("bos", roles.get("eos"))), roles.get("sep", roles.get("eos", roles.get("bos")))
        if begin is None or end is None:
            raise NotSupported(f"{tokenizer!r} has no token that begins or ends a text; its roles are {', '.join(roles) or 'none'}")
        return cls(begin, end, roles.get("mask"), roles.get("unk"), frozenset(roles.values()), len(tokenizer))

    @property
    def mask(self) -> int:
        """The id of the mask token."""
        if self.hidden is None:
            raise NotSupported("this vocabulary has no mask token; take a tokenizer made for masked language modelling")
        return self.hidden

    def words(self) -> Tensor:
        """All ids but those of special tokens."""
        return torch.tensor([i for i in range(self.size) if i not in self.special])
