"""Variants that train language models on running text.

The text is CPython's documentation with every paragraph kept once: topics quote each other, and almost half of any held-out topic would
otherwise be in the training data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ...data import Texts, TokenizedText
from ...data.lm_batches import gather
from ...models import LanguageModel
from ...tasks import Language, LanguageOptions, evaluate
from ...train import TrainOptions
from .training import train_run


def topics() -> dict[str, list[str]]:
    """The paragraphs of each topic of the documentation by its title, each paragraph in the first topic that has it."""
    seen: set[str] = set()
    found: dict[str, list[str]] = {}
    for piece in Texts("python-docs", shares=(0.0, 0.0)).pieces():
        own = [part for part in dict.fromkeys(piece.text.split("\n\n")) if part not in seen]
        seen.update(own)
        found.setdefault(piece.text.partition("\n")[0], []).extend(own)
    return {title: paragraphs for title, paragraphs in found.items() if paragraphs}


def write_documentation(path: Path, without: Set[str] = frozenset()) -> Path:
    """Write the topics as JSON lines, `without` some paragraphs."""
    texts = ["\n\n".join(part for part in paragraphs if part not in without) for paragraphs in topics().values()]
    return write_jsonl(path, [{"text": text} for text in texts if text.strip()])


def write_jsonl(path: Path, objects: Iterable[Mapping[str, str]]) -> Path:
    """Write one JSON object per line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in objects), encoding="utf-8")
    return path


@dataclass(frozen=True, kw_only=True)
class TextVariant:
    """A language model trained on the documentation. Loss on the test topics: in all, and by the number of tokens before."""

    options: LanguageOptions
    train: TrainOptions
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        options = replace(self.options, data=str(write_documentation(out / "text.jsonl")))
        run, training = train_run(Language, options, self.train.replace(seed=seed), out, model=self.model, settings=self.settings)
        contexts = loss_by_context(run.model, Language(options).test_data(run, None), options.context_length)
        return {**evaluate(run).metrics, **training, **contexts}


@torch.no_grad()
def loss_by_context(model: LanguageModel, tokens: TokenizedText, length: int) -> dict[str, float]:
    """Loss per token (nats) by the number of tokens read, over windows of exactly `length` tokens that do not overlap."""
    pairs = zip(tokens.starts.tolist(), tokens.ends.tolist(), strict=True)
    span_B2 = np.array([(at, at + length) for begin, end in pairs for at in range(begin, end - length, length)], dtype=np.int64)
    loss_L = torch.zeros(length)
    for some in np.array_split(span_B2.reshape(-1, 2), max(1, len(span_B2) // 16)):
        batch = gather(tokens, some, apart=False)
        loss_L += F.cross_entropy(model(batch.ids_BL).flatten(0, 1), batch.wanted_BL.flatten(), reduction="none").view(-1, length).sum(0)
    edges = [0, *(2**n for n in range(length.bit_length())), length]
    return {
        f"loss by context, {low + 1} to {high}": float(loss_L[low:high].mean()) / len(span_B2)
        for low, high in pairwise(edges)
        if low < high
    }
