"""Windows of tokens for a language model: every token is predicted once per epoch, from those before it in its window.

    tokens    BOS t₁ t₂ … EOS BOS t₁ …                 a window reads tokens i … j − 1 and predicts tokens i + 1 … j;
    windows   |‥‥|‥‥‥‥‥‥|‥‥‥‥‥‥|‥‥‥‥‥‥|‥‥|             the next one starts at j

All have the same length but the first and the last, because each epoch moves the boundaries, so that tokens get other contexts. The
boundaries and the order of an epoch depend on (seed, epoch) alone. BOS is never predicted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..errors import NotSupported
from .batches import Numbers
from .cache import TokenizedText
from .tokens import PAD

NONE = -1  # in `wanted_BL`: nothing to predict here


@dataclass
class LMBatch:
    """Input tokens, and the token to predict at each position.

    Args:
        ids_BL: input tokens.
        wanted_BL: tokens to predict.
        document_BL: number of the document of each token; None: one document per row.
    """

    ids_BL: Tensor
    wanted_BL: Tensor  # the token after each; NONE where there is nothing to predict
    document_BL: Tensor | None = None  # numbers of documents, where a row holds more than one

    def __len__(self) -> int:
        return len(self.ids_BL)

    @property
    def shape(self) -> tuple[int, int]:
        return self.ids_BL.shape[0], self.ids_BL.shape[1]

    def to(self, device: torch.device | str) -> LMBatch:
        return replace(self, **{name: x.to(device, non_blocking=True) for name, x in vars(self).items() if x is not None})


class LMBatches:
    """The windows of every epoch, in batches. With `apart`, a row of several documents has their numbers in `document_BL`.

    Args:
        tokens: documents as ids.
        length: tokens per window.
        batch: windows per batch.
        seed: seed of the order.
        apart: number the documents of a row, so that they do not attend to each other.
    """

    def __init__(self, tokens: TokenizedText, length: int, batch: int, *, seed: int = 0, apart: bool = True):
        if length < 1 or batch < 1:
            raise NotSupported(f"length={length}, batch={batch}: expected at least 1 of each")
        if len(tokens) < 2:
            raise NotSupported(f"{len(tokens)} tokens: expected at least 2, one to predict and one before it")
        self.tokens, self.length, self.size, self.seed, self.apart = tokens, length, batch, seed, apart

    def plan(self, epoch: int) -> list[Numbers]:
        """The spans [from, to) of tokens that each batch of the epoch reads, in order, for all processes together."""
        generator = np.random.default_rng([self.seed, epoch])
        last = len(self.tokens) - 1  # is predicted, never read
        first = int(generator.integers(0, self.length)) - self.length  # where the first window would start
        count = -(-(last - first) // self.length)
        order = generator.permutation(count)
        begin = first + order[(first + (order + 1) * self.length) > 0] * self.length  # the first may be empty
        span_N2 = np.stack([np.maximum(begin, 0), np.minimum(begin + self.length, last)], axis=1)
        return [span_N2[n : n + self.size] for n in range(0, len(span_N2), self.size)]

    def batch(self, span_B2: Numbers) -> LMBatch:
        """The tokens of the spans [from, to) that a plan names."""
        return gather(self.tokens, span_B2, apart=self.apart)


def gather(tokens: TokenizedText, span_B2: Numbers, *, asked_B: Numbers | None = None, apart: bool = True) -> LMBatch:
    """The batch of the spans [from, to). `asked_B`: the first token of each row that is predicted."""
    begin, end = span_B2[:, :1], span_B2[:, 1:]
    place = begin + np.arange(int((end - begin).max()))
    real = place < end
    place = np.minimum(place, end - 1)
    ids = np.where(real, tokens.ids[place], PAD).astype(np.int64)
    wanted, asked = tokens.ids[place + 1].astype(np.int64), real
    if asked_B is not None:
        asked = asked & (place >= asked_B[:, None])
    document_BL = None
    if tokens.documents > 1:
        document, after = (np.searchsorted(tokens.starts, where, side="right") for where in (place, place + 1))
        asked = asked & (document == after)  # the start of a document is not predicted
        document -= document[:, :1]
        if apart and document[:, -1].any():  # otherwise every row is of one document
            document_BL = torch.from_numpy(document)
    wanted[~asked] = NONE
    return LMBatch(torch.from_numpy(ids), torch.from_numpy(wanted), document_BL)


def sliding_windows(tokens: TokenizedText, length: int, stride: int, documents: bool) -> tuple[Numbers, Numbers]:
    """Spans [from, to) of windows that overlap, and the first token each one scores the successor of.

    Args:
        tokens: Text as token ids.
        length: Tokens per window.
        stride: Tokens between the starts of two windows.
        documents: Each document by itself.
    """
    spans, asked = [], []
    for begin, end in zip(tokens.starts.tolist(), tokens.ends.tolist(), strict=True) if documents else [(0, len(tokens))]:
        last = end - 1  # is only predicted
        if last <= begin:
            continue
        reached = begin
        for start in range(begin, max(last - length, begin) + stride, stride):
            spans.append((start, min(start + length, last)))
            asked.append(reached)
            reached = spans[-1][1]
            if reached == last:
                break
    return np.array(spans, dtype=np.int64).reshape(-1, 2), np.array(asked, dtype=np.int64)
