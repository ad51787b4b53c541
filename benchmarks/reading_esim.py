"""ESIM against a plain PyTorch form of it: padded, in random batches. Part of `benchmarks.reading`.

One pass over the same examples with the same batch size and the same parameters, forward and backward pass. Ours goes through the objective that
`regard train classify` uses: batches of similar lengths, real tokens only. The peer is what one writes first: `nn.LSTM` over padded batches, masks in
the attention and in the poolings, batches in random order. Sides take turns. Lengths are drawn like those of the data sets named.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.data import Ragged
from regard.machine import keep_memory
from regard.models import Classifier, build
from regard.tasks import Classify, ClassifyOptions
from regard.tasks.label_encoding import EncodedExamples

from ._common import machine, progress, write

VOCABULARY, CLASSES = 5000, 3
Lengths = Callable[[np.random.Generator, int], np.ndarray]


@dataclass(frozen=True)
class Case:
    """A model and its peer on some lengths: `pass_of_ours` and `pass_of_peer` return a function that makes one pass over the examples."""

    name: str
    examples: int
    pass_of_ours: Callable[[int], Callable[[], None]]
    pass_of_peer: Callable[[int], Callable[[], None]]


def sick_lengths(generator: np.random.Generator, count: int) -> np.ndarray:
    """Words per sentence: 9.7 on average, from 3 to 32."""
    return np.clip(np.round(generator.lognormal(2.2, 0.38, count)), 3, 32).astype(int)


def snli_premises(generator: np.random.Generator, count: int) -> np.ndarray:
    """14 on average, up to 80."""
    return np.clip(np.round(generator.lognormal(2.55, 0.42, count)), 3, 80).astype(int)


def snli_hypotheses(generator: np.random.Generator, count: int) -> np.ndarray:
    """8 on average."""
    return np.clip(np.round(generator.lognormal(2.05, 0.38, count)), 2, 60).astype(int)


# -- ESIM --------------------------------------------------------------------------------------------------------------


class PlainESIM(nn.Module):
    """As in the paper, padded."""

    def __init__(self, embedding: int, width: int, dropout: float):
        super().__init__()
        self.token, self.dropout = nn.Embedding(VOCABULARY, embedding), nn.Dropout(dropout)
        self.read = nn.LSTM(embedding, width, batch_first=True, bidirectional=True)
        self.compare, self.compose = nn.Linear(8 * width, width), nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.hidden, self.output = nn.Linear(8 * width, width), nn.Linear(width, CLASSES)

    def forward(self, first_BL: Tensor, n_first: Tensor, second_BM: Tensor, n_second: Tensor) -> Tensor:
        a, b = (self.read(self.dropout(self.token(ids)))[0] for ids in (first_BL, second_BM))
        real_a, real_b = (torch.arange(x.shape[1]) < n[:, None] for x, n in ((a, n_first), (b, n_second)))
        scores = a @ b.mT
        soft_a = scores.masked_fill(~real_b[:, None], -torch.inf).softmax(2) @ b
        soft_b = scores.masked_fill(~real_a[:, :, None], -torch.inf).softmax(1).mT @ a
        pooled = []
        for x, soft, real in ((a, soft_a, real_a), (b, soft_b, real_b)):
            m = torch.relu(self.compare(torch.cat([x, soft, x - soft, x * soft], -1)))
            v, where = self.compose(self.dropout(m))[0], real[..., None]
            pooled += [(v * where).sum(1) / where.sum(1), v.masked_fill(~where, -torch.inf).amax(1)]
        return self.output(self.dropout(torch.tanh(self.hidden(self.dropout(torch.cat(pooled, -1))))))


def esim(name: str, first: Lengths, second: Lengths, width: int, batch_size: int, count: int) -> Case:
    generator = np.random.default_rng(0)
    pairs = [
        [generator.integers(4, VOCABULARY, n) for n in both] for both in zip(first(generator, count), second(generator, count), strict=True)
    ]
    label_E = generator.integers(0, CLASSES, count)

    def pass_of_ours(seed: int) -> Callable[[], None]:
        ids = [[1, *a, 2, *b, 2] for a, b in pairs]
        segments = [[len(a) + 2, len(b) + 1] for a, b in pairs]
        some = EncodedExamples(
            Ragged.of(ids), Ragged.of(segments), Ragged.of([[]] * count), Ragged.of([[n] for n in label_E]), np.arange(count)
        )
        model = Classifier(
            build("esim", vocab_size=VOCABULARY, embedding=width, width=width, hidden=width, dropout=0.5), CLASSES, dropout=0.5
        )
        task, generator = Classify(ClassifyOptions(batch_size=batch_size)), torch.Generator()

        def run() -> None:
            model.train()
            for item in task.plan(some, 0, seed):
                task.loss(model, task.batch(item, generator)).total.backward()
                model.zero_grad(set_to_none=True)

        return run

    def pass_of_peer(seed: int) -> Callable[[], None]:
        model = PlainESIM(width, width, 0.5)

        def run() -> None:
            model.train()
            for index in _random_batches(count, batch_size, seed):
                sides = []
                for side in range(2):
                    rows = [torch.tensor([*pairs[n][side], 2]) for n in index]
                    sides += [nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])]
                F.cross_entropy(model(*sides), torch.from_numpy(label_E[index])).backward()
                model.zero_grad(set_to_none=True)

        return run

    return Case(name, count, pass_of_ours, pass_of_peer)


def _random_batches(count: int, size: int, seed: int) -> Iterator[np.ndarray]:
    order = np.random.default_rng(seed).permutation(count)
    return iter(order[at : at + size] for at in range(0, count, size))


# -- all of them -------------------------------------------------------------------------------------------------------


def cases(quick: bool) -> list[Case]:
    size = 256 if quick else 1024
    return [
        esim("ESIM, lengths of SICK, 128 units, batches of 32", sick_lengths, sick_lengths, 128, 32, size),
        esim("ESIM, lengths of SNLI, 300 units, batches of 32 (the paper)", snli_premises, snli_hypotheses, 300, 32, size // 2),
    ]


def seconds(step: Callable[[], None]) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


def main(quick: bool = False) -> None:
    keep_memory()
    turns = 2 if quick else 7
    rows = []
    for case in cases(quick):
        torch.manual_seed(0)
        ours, peer = case.pass_of_ours(0), case.pass_of_peer(0)
        ours(), peer()  # warm up
        found: dict[str, list[float]] = {"ours": [], "peer": []}
        for _ in range(turns):
            found["ours"].append(seconds(ours))
            found["peer"].append(seconds(peer))
        mine, other = (case.examples / statistics.median(found[side]) for side in ("ours", "peer"))
        progress(f"{case.name}: {mine:.0f} against {other:.0f} pairs per second")
        rows.append(f"| {case.name} | {other:,.0f} | {mine:,.0f} | **{mine / other:.2f}×** |")
    head = [
        "## Training ESIM on pairs",
        "",
        "Pairs per second of CPU time, forward and backward pass, float32; one pass over the same pairs, batches as training draws them against random "
        f"ones, medians of {turns} turns. {machine()}.",
        "",
        "| case | plain PyTorch, padded | regard | faster |",
        "|---|---|---|---|",
    ]
    write("reading_esim", [*head, *rows], quick)
