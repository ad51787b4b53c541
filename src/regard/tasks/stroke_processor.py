"""Processor of pen strokes: the characters that a run knows, the unit of length, and lines of points as batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..data.strokes import Writing
from ..errors import BadFile
from ..files import read_json, write_json

FILE = "strokes.json"


@dataclass(frozen=True)
class StrokeProcessor:
    """Characters and the unit of length: points are divided by `scale`, so that offsets have a standard deviation of one."""

    characters: str
    scale: float

    @classmethod
    def of(cls, writings: Sequence[Writing], text: bool) -> StrokeProcessor:
        scale = float(np.concatenate([one.points[:, :2] for one in writings]).std())
        return cls("".join(sorted({letter for one in writings for letter in one.text})) if text else "", max(scale, 1e-6))

    def ids(self, text: str) -> list[int]:
        """Characters from 1; 0 stands for one that was not in the training data."""
        return [self.characters.find(letter) + 1 for letter in text]

    def points(self, writing: Writing) -> Tensor:
        return torch.from_numpy(writing.points / np.array([self.scale, self.scale, 1], dtype=np.float32))

    def save(self, folder: Path) -> None:
        write_json(folder / FILE, {"characters": self.characters, "scale": self.scale})

    @classmethod
    def load(cls, folder: Path) -> StrokeProcessor:
        plain = read_json(folder / FILE)
        if not isinstance(plain, dict) or not isinstance(plain.get("characters"), str) or not isinstance(plain.get("scale"), float):
            raise BadFile(f"{folder / FILE}: expected characters, a text, and scale, a number")
        if len(set(plain["characters"])) != len(plain["characters"]) or not 0 < plain["scale"] < 1e9:
            raise BadFile(
                f"{folder / FILE}: characters that repeat, or a scale of {plain['scale']}; expected each once, and a positive number"
            )
        return cls(plain["characters"], plain["scale"])


class PenBatch(NamedTuple):
    """Lines of one batch: points_BL3, text_BM with 0 after each text, and which of the points after the first are there."""

    points_BL3: Tensor
    text_BM: Tensor
    there_BL: Tensor
    points: int  # that are there


def collate(writings: Sequence[Writing], processor: StrokeProcessor) -> PenBatch:
    points = [processor.points(one) for one in writings]
    n_B = torch.tensor([len(one) for one in points])
    points_BL3 = pad_sequence(points, batch_first=True)
    text_BM = pad_sequence([torch.tensor([*processor.ids(one.text), 0]) for one in writings], batch_first=True)
    there_BL = torch.arange(points_BL3.shape[1] - 1) < n_B[:, None] - 1
    return PenBatch(points_BL3, text_BM, there_BL, int(there_BL.sum()))
