"""Texts as vectors: the mean of the last layer's features over a text's tokens, scaled to length 1, to be compared by dot products."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data import Tokenizer
from ..data.hf_tokenizer import SpecialTokens
from ..decode import PromptEncoder
from ..errors import NotSupported
from ..models import LanguageModel, TextEncoder, device_of

BATCH_TOKENS = 2048  # padded tokens per pass: running completions wait for one pass at most


class Embedder:
    """Encodes texts and computes their vectors, with a language model or an encoder. Only `vectors` touches the model."""

    def __init__(self, model: LanguageModel | TextEncoder, tokenizer: Tokenizer):
        self.model, self.tokenizer = model, tokenizer
        self._prompts = PromptEncoder(tokenizer, model.config.vocab_size) if isinstance(model, LanguageModel) else None
        self._special = SpecialTokens.of(tokenizer) if self._prompts is None else None

    def encode(self, text: str | Sequence[int]) -> tuple[list[int], int]:
        """Token ids, with the special tokens of training around a text, and how many at the beginning the mean leaves out."""
        if self._prompts is not None:
            return self._prompts.encode(text)
        assert self._special is not None
        if isinstance(text, str):
            return [self._special.begin, *self.tokenizer.encode(text), self._special.end], 0
        if any(not 0 <= token < len(self.tokenizer) for token in text):
            raise NotSupported(f"ids from {min(text)} to {max(text)}; the vocabulary is 0 to {len(self.tokenizer) - 1}")
        return list(text), 0

    def batches(self, texts: Sequence[tuple[list[int], int]]) -> Iterator[list[int]]:
        """Indices of texts for one pass each, of similar lengths."""
        batch: list[int] = []
        for at in sorted(range(len(texts)), key=lambda at: len(texts[at][0])):
            if batch and (len(batch) + 1) * len(texts[at][0]) > BATCH_TOKENS:
                yield batch
                batch = []
            batch.append(at)
        if batch:
            yield batch

    @torch.no_grad()
    def vectors(self, texts: Sequence[tuple[list[int], int]]) -> Tensor:
        """y_BD, of length 1. Padding is at the end, where a causal model does not see it and an encoder is told about it."""
        device = device_of(self.model)
        n_B = torch.tensor([len(ids) for ids, _ in texts], device=device)
        skipped_B = torch.tensor([hidden if len(ids) > hidden else 0 for ids, hidden in texts], device=device)
        longest = max(len(ids) for ids, _ in texts)
        ids_BL = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids, _ in texts], device=device)
        x_BLD = self.model.features(ids_BL) if isinstance(self.model, LanguageModel) else self.model.features(ids_BL, n_B)
        at_L = torch.arange(longest, device=device)
        counted_BL = (at_L >= skipped_B[:, None]) & (at_L < n_B[:, None])
        x_BLD = x_BLD.float().masked_fill(~counted_BL[..., None], 0)
        return F.normalize(x_BLD.sum(1) / counted_BL.sum(1, keepdim=True), dim=-1).cpu()


def to_base64(vector_D: Tensor) -> str:
    """As OpenAI's clients ask for: float32, little-endian."""
    return base64.b64encode(vector_D.numpy().astype("<f4").tobytes()).decode()
