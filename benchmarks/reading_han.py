"""HAN against a plain PyTorch form of it: batch × most sentences × most words, padded, as it is usually written. Part of `benchmarks.reading`.

Documents have the lengths of IMDB's reviews (quantiles of 6,000 of them, by our sentence splitter), at most 64 words per sentence. Both read
the same batches of 32 documents of similar length, as training draws them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.models import Classifier, build

from ._common import machine, progress, write

QUANTILES = [0, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 98, 99, 100]  # per cent
SENTENCES = [1, 3, 4, 6, 7, 8, 10, 11, 14, 17, 23, 30, 40, 48, 80]  # per document; the longest has 282
WORDS = [1, 5, 7, 10, 13, 16, 19, 23, 26, 32, 41, 50, 64, 64, 64]  # per sentence; the longest has 773
VOCABULARY, EMBEDDING, WIDTH, HIDDEN, CLASSES, BATCH = 20_000, 100, 50, 100, 2, 32


class PaddedAttention(nn.Module):
    """softmax(u·tanh(W h + b)) over the real states of each row."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.linear, self.query = nn.Linear(width, hidden), nn.Linear(hidden, 1, bias=False)

    def forward(self, h_BLD: Tensor, real_BL: Tensor) -> Tensor:
        scores_BL = self.query(torch.tanh(self.linear(h_BLD))).squeeze(-1)
        weights_BL = scores_BL.masked_fill(~real_BL, -1e9).softmax(-1)
        return (weights_BL.unsqueeze(-1) * h_BLD).sum(1)


class PaddedHAN(nn.Module):
    """Takes ids_BSM, padded with 0. As usual in this form, the backward direction of a row begins with its padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, EMBEDDING, padding_idx=0)
        self.words = nn.GRU(EMBEDDING, WIDTH, batch_first=True, bidirectional=True)
        self.sentences = nn.GRU(2 * WIDTH, WIDTH, batch_first=True, bidirectional=True)
        self.over_words, self.over_sentences = PaddedAttention(2 * WIDTH, HIDDEN), PaddedAttention(2 * WIDTH, HIDDEN)
        self.output = nn.Linear(2 * WIDTH, CLASSES)

    def forward(self, ids_BSM: Tensor) -> Tensor:
        B, S, M = ids_BSM.shape
        real_BSM = ids_BSM > 0
        h_RMD, _ = self.words(self.embedding(ids_BSM.view(B * S, M)))
        s_BSD = self.over_words(h_RMD, real_BSM.view(B * S, M)).view(B, S, -1)
        h_BSD, _ = self.sentences(s_BSD)
        return self.output(self.over_sentences(h_BSD, real_BSM.any(-1)))


def documents(count: int, seed: int = 0) -> list[list[int]]:
    """Words of each sentence of documents."""
    draw = np.random.default_rng(seed)

    def lengths(values: list[int], n: int) -> list[int]:
        return np.interp(draw.uniform(0, 100, n), QUANTILES, values).round().astype(int).tolist()

    return [lengths(WORDS, n) for n in lengths(SENTENCES, count)]


def bucketed(lengths: list[list[int]]) -> list[list[list[int]]]:
    """Batches of documents of similar length."""
    ordered = sorted(lengths, key=sum)
    return [ordered[at : at + BATCH] for at in range(0, len(ordered), BATCH)]


def packed_batch(batch: list[list[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """ids_BL, n_B and segment_BL."""
    n_B = torch.tensor([sum(one) for one in batch])
    ids_BL = torch.randint(1, VOCABULARY, (len(batch), int(n_B.max())))
    segment_BL = torch.zeros_like(ids_BL)
    for row, one in enumerate(batch):
        segment_BL[row, : int(n_B[row])] = torch.arange(len(one)).repeat_interleave(torch.tensor(one))
    return ids_BL, n_B, segment_BL


def padded_batch(batch: list[list[int]], ids_BL: Tensor) -> Tensor:
    """The same tokens as ids_BSM."""
    ids_BSM = torch.zeros(len(batch), max(map(len, batch)), max(max(one) for one in batch), dtype=torch.long)
    for row, one in enumerate(batch):
        at = 0
        for s, n in enumerate(one):
            ids_BSM[row, s, :n] = ids_BL[row, at : at + n]
            at += n
    return ids_BSM


def step_of(model: nn.Module, *inputs: Tensor) -> Callable[[], None]:
    label_B = torch.arange(len(inputs[0])) % CLASSES

    def step() -> None:
        F.cross_entropy(model(*inputs), label_B).backward()
        model.zero_grad(set_to_none=True)

    return step


def main(quick: bool = False) -> None:
    torch.manual_seed(0)
    settings = {"vocab_size": VOCABULARY, "embedding": EMBEDDING, "width": WIDTH, "hidden": HIDDEN, "dropout": 0.0}
    ours, theirs = Classifier(build("han", settings), CLASSES, dropout=0.0).train(), PaddedHAN().train()
    batches = bucketed(documents(BATCH * 8))
    found: dict[str, list[float]] = {"ours": [], "theirs": []}
    rows, rounds = [], 1 if quick else 7
    for number, batch in enumerate(batches):
        inputs = packed_batch(batch)
        padded = padded_batch(batch, inputs[0])
        steps = {"ours": step_of(ours, *inputs), "theirs": step_of(theirs, padded)}
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        for turn in range(rounds + 1):
            for name, step in steps.items():
                start = time.perf_counter()
                step()
                seconds[name] += [time.perf_counter() - start] if turn else []
        for name, values in seconds.items():
            found[name].append(statistics.median(values))
        tokens, fill = int(inputs[1].sum()), int(inputs[1].sum()) / padded.numel()
        mine, other = found["ours"][-1], found["theirs"][-1]
        progress(f"HAN, batch {number + 1} of {len(batches)}: {other / mine:.2f}×, {fill:.0%} of the padded batch is tokens")
        rows.append(
            f"| {len(batch)} × {tokens // len(batch)} | {fill:.0%} | {tokens / other:,.0f} | {tokens / mine:,.0f} | {other / mine:.2f}× |"
        )
    total = sum(sum(sum(one) for one in batch) for batch in batches)
    mine, other = sum(found["ours"]), sum(found["theirs"])
    rows.append(f"| all | | {total / other:,.0f} | {total / mine:,.0f} | **{other / mine:.2f}×** |")
    head = [
        "## Training HAN on documents",
        "",
        "Tokens per second, forward and backward pass, float32; IMDB's lengths, 100 + 2 × 50 wide. The peer is a plain PyTorch HAN, padded to the "
        f"batch's most sentences and most words; the same batches in one run, medians of {rounds} turns. {machine()}.",
        "",
        "| documents × tokens | tokens in the padded batch | plain PyTorch | regard | faster |",
        "|---|---|---|---|---|",
    ]
    write("reading_han", [*head, *rows], quick)
