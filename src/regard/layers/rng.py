"""The state of the random number generators before a call, so that the call can be repeated with the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


class RngSnapshot:
    """The state of every generator a module may draw from: PyTorch's own and those that its parts hold."""

    def __init__(self, module: nn.Module):
        own = {id(x): x for part in module.modules() for x in vars(part).values() if isinstance(x, torch.Generator)}
        on_gpu = torch.cuda.default_generators if torch.cuda.is_available() and torch.cuda.is_initialized() else ()
        self._generators = [torch.default_generator, *on_gpu, *own.values()]
        self._states = self._now()

    def restore(self) -> None:
        """Set all generators back to the snapshot."""
        self._set(self._states)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Afterwards all generators are where they were on entry, whatever is drawn inside."""
        now = self._now()
        try:
            yield
        finally:
            self._set(now)

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Inside, the numbers drawn after the snapshot are drawn once more; afterwards all generators are where they were on entry."""
        with self.kept():
            self.restore()
            yield

    def _now(self) -> list[torch.Tensor]:
        return [generator.get_state() for generator in self._generators]

    def _set(self, states: list[torch.Tensor]) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)
