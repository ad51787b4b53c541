"""A reader of pen strokes: dilated convolutions and CTC (Graves et al. 2006), trained on such strokes as a writer was trained on.

It measures whether generated handwriting is legible: the share of characters it reads correctly, 1 − edit distance / length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ...data.strokes import Writing, read_strokes
from ...tasks.handwriting import HandwritingObjective, StrokeProcessor
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
        there_BL1 = (torch.arange(points_BL3.shape[1]) < n_B[:, None]).unsqueeze(2).to(points_BL3.dtype)
        x_BLD = self.input(points_BL3)
        for block in self.blocks:
            x_BLD = block(x_BLD, there_BL1)
        return F.log_softmax(self.output(torch.relu(x_BLD)), -1)

    @torch.no_grad()
    def read(self, lines: Sequence[Tensor]) -> list[list[int]]:
        """The characters of each line: the likeliest at each point, repeats merged, blanks removed."""
        n_B = torch.tensor([len(line) for line in lines])
        best_BL = self(pad_sequence(list(lines), batch_first=True), n_B).argmax(-1)
        return [[c for c, _ in groupby(row_L[:n].tolist()) if c != BLANK] for row_L, n in zip(best_BL, n_B.tolist(), strict=True)]


class RecogniserObjective(HandwritingObjective):
    """What the training loop asks: the CTC loss per character."""

    metric = Metric("accuracy", higher=True)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Loss:
        points_BL3, text_BM, there_BL = batch
        n_B, count_B = there_BL.sum(1) + 1, (text_BM > 0).sum(1)
        log_LBN = model(points_BL3, n_B).transpose(0, 1)
        total = F.ctc_loss(log_LBN, text_BM, n_B, count_B, blank=BLANK, reduction="sum", zero_infinity=True)
        return Loss(total, int(count_B.sum()))

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        assert isinstance(model, Recogniser)
        return {"accuracy": reading_accuracy(model, self.processor, self.valid)}


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
        objective = RecogniserObjective(raw.train, raw.valid, processor, 32, seed)
        result = fit(model, objective, self.train.replace(seed=seed).to_config(), out, progress=False)
        processor.save(out)
        others = [Writing(a.text, b.points) for a, b in zip(raw.test, raw.test[1:], strict=False)]
        model.eval()
        return {
            "accuracy": reading_accuracy(model, processor, raw.test),
            "accuracy, other texts": reading_accuracy(model, processor, others),
            **training_metrics(result, model, out, "accuracy"),
        }

    def load(self, out: Path) -> tuple[Recogniser, StrokeProcessor]:
        """What was trained in `out`."""
        processor = StrokeProcessor.load(out)
        model = Recogniser(len(processor.characters), self.width)
        load_parameters(model, load_file(out / PARAMETERS))
        return model.eval(), processor
