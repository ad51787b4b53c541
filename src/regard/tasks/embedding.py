"""Texts as vectors of length 1, to be compared by dot products, and the nearest of them.

a sentence encoder, a document model    the vector that it pools (`TextModel.sentence_embeddings`)
an encoder, a language model            the mean of the last layer's features over a text's tokens; what else an imported sentence encoder asks for

`regard embed` and /v1/embeddings of `regard serve` compute them here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from ..data import Tokenizer
from ..decode import PromptEncoder
from ..errors import NotSupported
from ..layers import max_pool, mean_pool
from ..models import LanguageModel, TextEncoder, TextModel, body_of, device_of, eval_mode
from ..runs import Run
from .sentence_transformers import SentencePooling
from .special_tokens import frame
from .text_processor import TextProcessor

BATCH_TOKENS = 2048  # padded tokens per pass: of a server, running completions wait for one pass at most
CHUNK = 4096  # texts that are sorted by length together
MODES = ("mean", "cls", "max", "last")
Vectors = npt.NDArray[np.float32]


class EncodedText(NamedTuple):
    ids: list[int]
    hidden: int = 0  # tokens at the beginning that the pooling leaves out
    segments: tuple[int, ...] = ()  # tokens of each sentence, for models of documents


class Embedder:
    """Encodes texts and computes their vectors. Only `vectors` touches the model.

    Args:
        model: model whose features, or sentence embeddings, become vectors.
        tokenizer: tokenizer of the model.
        pooling: pooling of the features of an encoder or a language model; models that pool by themselves need none.
    """

    def __init__(self, model: LanguageModel | TextModel, tokenizer: Tokenizer, pooling: SentencePooling = SentencePooling()):  # noqa: B008  frozen
        self.model, self.tokenizer, self.pooling = model, tokenizer, pooling
        self.max_length = min(model.max_length, pooling.max_length or model.max_length)
        if pooling.mode not in MODES:
            raise NotSupported(f"this sentence encoder pools by {pooling.mode}, which is not computed here; known are {', '.join(MODES)}")
        self._prompts = PromptEncoder(tokenizer, model.config.vocab_size) if isinstance(model, LanguageModel) else None
        if isinstance(model, TextModel) and 1 not in model.texts and type(model).sentence_embeddings is TextModel.sentence_embeddings:
            raise NotSupported(f"{model.facts.name} compares two texts and makes no vector of one; infersent, for example, does")

    def encode(self, text: str | Sequence[int], longest: int | None = None) -> EncodedText:
        """Token ids, with the special tokens of training around a text, at most `longest` if given."""
        most = 1 << 60 if longest is None else longest
        if self._prompts is not None:
            ids, hidden = self._prompts.encode(text)
            return EncodedText(ids[:most], hidden)
        if isinstance(text, str):
            ids, segments = frame(self.tokenizer, [text], most, self.model)
            return EncodedText(ids, 0, tuple(segments))
        if any(not 0 <= token < len(self.tokenizer) for token in text):
            raise NotSupported(f"ids from {min(text)} to {max(text)}; the vocabulary is 0 to {len(self.tokenizer) - 1}")
        return EncodedText(list(text)[:most], 0, (len(text),))

    def truncate(self, text: str) -> tuple[EncodedText, bool]:
        """The first tokens, as many as the model reads, and whether the text had more."""
        whole = self.encode(text, self.max_length + 1)
        return (whole, False) if len(whole.ids) <= self.max_length else (self.encode(text, self.max_length), True)

    def batches(self, texts: Sequence[EncodedText]) -> Iterator[list[int]]:
        """Indices of texts for one pass each, of similar lengths."""
        batch: list[int] = []
        for at in sorted(range(len(texts)), key=lambda at: len(texts[at].ids)):
            if batch and (len(batch) + 1) * len(texts[at].ids) > BATCH_TOKENS:
                yield batch
                batch = []
            batch.append(at)
        if batch:
            yield batch

    @torch.no_grad()
    def vectors(self, texts: Sequence[EncodedText]) -> Tensor:
        """y_BD, of length 1. Padding is at the end, where a causal model does not see it and the others are told about it."""
        device = device_of(self.model)
        n_B = torch.tensor([len(text.ids) for text in texts], device=device)
        longest = max(len(text.ids) for text in texts)
        ids_BL = torch.tensor([[*text.ids, *[0] * (longest - len(text.ids))] for text in texts], device=device)
        if isinstance(self.model, TextModel) and not isinstance(self.model, TextEncoder):
            return self.model.sentence_embeddings(ids_BL, n_B, _segment_numbers(texts, ids_BL)).float().cpu()
        x_BLD = self.model.features(ids_BL) if isinstance(self.model, LanguageModel) else self.model.features(ids_BL, n_B)
        hidden_B = torch.tensor([text.hidden if len(text.ids) > text.hidden else 0 for text in texts], device=device)
        return F.normalize(self._pooled(x_BLD.float(), n_B, hidden_B), dim=-1).cpu()

    def _pooled(self, x_BLD: Tensor, n_B: Tensor, hidden_B: Tensor) -> Tensor:
        row_B = torch.arange(len(n_B), device=n_B.device)
        if self.pooling.mode in ("cls", "last"):
            return x_BLD[row_B, hidden_B if self.pooling.mode == "cls" else n_B - 1]
        at_BL = torch.arange(x_BLD.shape[1], device=n_B.device) + hidden_B[:, None]  # without the hidden tokens
        x_BLD = x_BLD[row_B[:, None], at_BL.clamp(max=x_BLD.shape[1] - 1)] if bool(hidden_B.any()) else x_BLD
        return (mean_pool if self.pooling.mode == "mean" else max_pool)(x_BLD, n_B - hidden_B)


def _segment_numbers(texts: Sequence[EncodedText], ids_BL: Tensor) -> Tensor:
    segment_BL = torch.zeros_like(ids_BL)
    for row, text in enumerate(texts):
        numbers_T = torch.arange(len(text.segments)).repeat_interleave(torch.tensor(text.segments))
        segment_BL[row, : len(numbers_T)] = numbers_T.to(ids_BL.device)
    return segment_BL


def embedder_of(run: Run[Any]) -> Embedder:
    """The part of a run's model that computes vectors; of a classifier its body."""
    body = body_of(run.model)
    if not isinstance(body, LanguageModel | TextModel) or not isinstance(run.processor, TextProcessor):
        raise NotSupported(
            f"{run.folder}: a {body.facts.name} makes no vector of a text; sentence encoders, encoders and language models do"
        )
    try:
        return Embedder(body, run.processor.tokenizer, run.processor.pooling)
    except NotSupported as wrong:
        raise NotSupported(f"{run.folder}: {wrong}") from wrong


def embed(run: Run[Any], texts: Iterable[str], *, note: Callable[[int, int], None] | None = None) -> Iterator[tuple[list[str], Vectors]]:
    """Texts with their vectors, some thousand at a time, in order: memory does not grow with their number.

    Args:
        run: run of an encoder or a language model; of a classifier its body is used.
        texts: texts, read as they are needed.
        note: called after each pass with the number of texts done, and of those longer than the model reads.
    """
    embedder, rest, done, cut = embedder_of(run), iter(texts), 0, 0
    with eval_mode(embedder.model):
        while chunk := list(islice(rest, CHUNK)):
            encoded, longer = zip(*map(embedder.truncate, chunk), strict=True)
            cut += sum(longer)
            found: dict[int, Vectors] = {}
            for batch in embedder.batches(encoded):
                vectors_BD = embedder.vectors([encoded[at] for at in batch]).numpy()
                found |= zip(batch, vectors_BD, strict=True)
                done += len(batch)
                if note is not None:
                    note(done, cut)
            yield chunk, np.stack([found[at] for at in range(len(chunk))])


def nearest(queries_QD: Vectors, vectors_ND: Vectors, k: int, *, own: int | None = None) -> tuple[npt.NDArray[np.int64], Vectors]:
    """For each query the k rows with the largest dot products, best first, and these; computed in tiles, N × Q is never stored.

    Args:
        queries_QD: vectors to find neighbours of.
        vectors_ND: vectors to search.
        k: neighbours per query; fewer if there are not as many vectors.
        own: row of the first query among the vectors, if they hold the queries: none is its own neighbour.

    Shape: queries_QD, vectors_ND → rows (Q, k), dot products (Q, k).
    """
    k = min(k, len(vectors_ND) - (own is not None))
    if k < 1:
        return np.zeros((len(queries_QD), 0), np.int64), np.zeros((len(queries_QD), 0), np.float32)
    rows, scores = [], []
    for at in range(0, len(queries_QD), 1024):
        query_QD = torch.from_numpy(np.ascontiguousarray(queries_QD[at : at + 1024]))
        best_QK, row_QK = query_QD.new_zeros(len(query_QD), 0), torch.zeros(len(query_QD), 0, dtype=torch.long)
        for start in range(0, len(vectors_ND), 8192):
            dots_QN = query_QD @ torch.from_numpy(np.ascontiguousarray(vectors_ND[start : start + 8192])).T
            if own is not None:
                self_Q = torch.arange(own + at, own + at + len(query_QD)) - start
                inside_Q = (self_Q >= 0) & (self_Q < dots_QN.shape[1])
                dots_QN[inside_Q.nonzero()[:, 0], self_Q[inside_Q]] = -torch.inf
            together, number = torch.cat([best_QK, dots_QN], 1), torch.arange(start, start + dots_QN.shape[1]).expand(len(query_QD), -1)
            best_QK, chosen_QK = together.topk(min(k, together.shape[1]), 1)
            row_QK = torch.cat([row_QK, number], 1).gather(1, chosen_QK)
        rows.append(row_QK.numpy())
        scores.append(best_QK.numpy())
    return np.concatenate(rows), np.concatenate(scores)
