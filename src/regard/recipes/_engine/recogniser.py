"""A reader of pen strokes: dilated convolutions and CTC (Graves et al. 2006), trained on such strokes as a writer was trained on.

It measures whether generated handwriting is legible: the share of characters it reads correctly, 1 − edit distance / length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ...data.strokes import Writing, read_strokes
from ...tasks.handwriting import HandwritingOptions, HandwritingTask, PenBatch, StrokeProcessor
from ...tasks.measuring import TaskObjective
from ...train import Loss, Metric, TrainOptions, fit
from ...train.parameters import load_parameters
from .variants import training_metrics

PARAMETERS, BLANK = "model.safetensors", 0


class ConvBlock(nn.Module):
    """x + conv(relu(norm(x))), over 5 points `dilation` apart."""

    def __init__(self, width: int, dilation: int):
        super().__init__()
        self.norm, self.conv = nn.LayerNorm(width), nn.Conv1d(width, width, 5, padding=2 * dilation, dilation=dilation)

    def forward(self, x_BLD: Tensor, there_BL1: Tensor) -> Tensor:
        inside_BLD = torch.relu(self.norm(x_BLD)) * there_BL1  # points after the end of a line are zeros, whatever the batch
        return x_BLD + self.conv(inside_BLD.mT).mT


class Recogniser(nn.Module):
    """points_BL3 to log-probabilities of characters and of no character (0) at each point, which sees 60 points around it."""

    def __init__(self, characters: int, width: int):
        super().__init__()
        self.input = nn.Linear(3, width)
        self.blocks = nn.ModuleList(ConvBlock(width, dilation) for dilation in (1, 1, 2, 4, 8))
        self.output = nn.Linear(width, characters + 1)

    def forward(self, points_BL3: Tensor, n_B: Tensor) -> Tensor:
        there_BL1 = (torch.arange(points_BL3.shape[1], device=n_B.device) < n_B[:, None]).unsqueeze(2).to(points_BL3.dtype)
        x_BLD = self.input(points_BL3)
        for block in self.blocks:
            x_BLD = block(x_BLD, there_BL1)
        return F.log_softmax(self.output(torch.relu(x_BLD)), -1)

    @torch.no_grad()
    def read(self, lines: Sequence[Tensor]) -> list[list[int]]:
        """The characters of each line: the likeliest at each point, repeats merged, blanks removed."""
        n_B = torch.tensor([len(line) for line in lines])
        return read_characters(self(pad_sequence(list(lines), batch_first=True), n_B), n_B)


def read_characters(log_BLN: Tensor, n_B: Tensor) -> list[list[int]]:
    """Characters of each line: the likeliest at each point, repeats merged, blanks removed."""
    rows = zip(log_BLN.argmax(-1).tolist(), n_B.tolist(), strict=True)
    return [[c for c, _ in groupby(row[:n]) if c != BLANK] for row, n in rows]


class Recognition(HandwritingTask):
    """Lines of strokes, read: the CTC loss per character, and the share of characters that are read correctly."""

    metric = Metric("accuracy", higher=True)
    loss_unit = "characters"

    def loss(self, model: Any, batch: PenBatch) -> Loss:
        n_B, count_B = batch.there_BL.sum(1) + 1, (batch.text_BM > 0).sum(1)
        log_BLN = model(batch.points_BL3, n_B)
        total = F.ctc_loss(log_BLN.transpose(0, 1), batch.text_BM, n_B, count_B, blank=BLANK, reduction="sum", zero_infinity=True)
        return Loss(total, int(count_B.sum()), outputs=log_BLN)

    def answers(self, outputs: Tensor, batch: PenBatch) -> list[int]:
        """Edits between what is read and each text."""
        read = read_characters(outputs, batch.there_BL.sum(1) + 1)
        return [edit_distance(a, [c for c in b if c]) for a, b in zip(read, batch.text_BM.tolist(), strict=True)]

    def metrics(self, sums: Mapping[str, float], answers: Sequence[int], examples: Sequence[Writing]) -> dict[str, float]:
        return {"accuracy": max(0.0, 1 - sum(answers) / sums["count"])}


def reading_accuracy(model: Recogniser, processor: StrokeProcessor, writings: Sequence[Writing]) -> float:
    """The share of characters that are read correctly: 1 − edits / characters, not below 0."""
    read = model.read([processor.points(one) for one in writings])
    wanted = [processor.ids(one.text) for one in writings]
    edits = sum(edit_distance(a, b) for a, b in zip(read, wanted, strict=True))
    return max(0.0, 1 - edits / sum(map(len, wanted)))


def edit_distance(a: Sequence[int], b: Sequence[int]) -> int:
    """Insertions, deletions and substitutions between two sequences."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


@dataclass(frozen=True, kw_only=True)
class RecogniserVariant:
    """A recogniser trained on some strokes; its accuracy on strokes of other texts and writers, and on texts that are not theirs."""

    data: str
    train: TrainOptions
    width: int = 80

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        raw = read_strokes(self.data)
        processor = StrokeProcessor.of(raw.train, text=True)
        model = Recogniser(len(processor.characters), self.width)
        objective = TaskObjective(Recognition(HandwritingOptions(), processor), raw, model, seed)  # type: ignore[arg-type]
        result = fit(model, objective, self.train.replace(seed=seed), out, progress=False)
        processor.save(out)
        others = [Writing(a.text, b.points) for a, b in zip(raw.test, raw.test[1:], strict=False)]
        model.eval()
        return {
            "accuracy": reading_accuracy(model, processor, raw.test),
            "accuracy, other texts": reading_accuracy(model, processor, others),
            **training_metrics(result, model, out, "accuracy"),
        }

    def load(self, out: Path) -> tuple[Recogniser, StrokeProcessor]:
        """Load the recogniser that was trained in `out`."""
        processor = StrokeProcessor.load(out)
        model = Recogniser(len(processor.characters), self.width)
        load_parameters(model, load_file(out / PARAMETERS))
        return model.eval(), processor
