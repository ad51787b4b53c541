"""The metrics as curves in TensorBoard: `tensorboard --logdir runs` shows all runs below a folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import NotSupported


def writer() -> Any:
    """The class that writes event files; an error says how to install it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise NotSupported(
            "TensorBoard is not installed; pip install 'regard[tensorboard]', or leave it out: metrics.jsonl has the same numbers"
        ) from error
    return SummaryWriter


class TensorBoard:
    """train/loss, evaluation/chrf, … over steps. Resuming from `step` hides what was written after it."""

    def __init__(self, folder: Path, step: int = 0):
        self._writer = writer()(str(folder), purge_step=step + 1 if step else None)

    def write(self, event: str, values: Mapping[str, Any]) -> None:
        """Finite numbers of training and evaluation events."""
        if event in ("train", "evaluation"):
            for name, value in values.items():
                if name != "step" and math.isfinite(value):
                    self._writer.add_scalar(f"{event}/{name}", value, values["step"])

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
