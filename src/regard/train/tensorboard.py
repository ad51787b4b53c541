"""The numbers of metrics.jsonl as curves in TensorBoard: `tensorboard --logdir runs` shows all runs below a folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import NotSupported


def writer() -> Any:
    """The class that writes event files, or one sentence on how to get it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise NotSupported(
            "TensorBoard is not installed; pip install 'regard[tensorboard]', or go without: metrics.jsonl has the same"
        ) from error
    return SummaryWriter


class TensorBoard:
    """train/loss, evaluation/chrf, … over steps. Going on from `step` hides what an earlier process wrote after it."""

    def __init__(self, folder: Path, step: int = 0):
        self._writer = writer()(str(folder), purge_step=step + 1 if step else None)

    def write(self, event: str, values: Mapping[str, Any]) -> None:
        """Lines of training and evaluation; numbers that are finite."""
        if event in ("train", "evaluation"):
            for name, value in values.items():
                if name != "step" and math.isfinite(value):
                    self._writer.add_scalar(f"{event}/{name}", value, values["step"])

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
