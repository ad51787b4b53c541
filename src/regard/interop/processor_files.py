"""Files of a transformers directory besides the model: how those of a family's processor are read and written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ..models import Model
from ..runs import Run


class ProcessorFiles(Protocol):
    """Files of a processor, which turns inputs into tensors, as transformers has them: a tokenizer, a preprocessor."""

    def read(self, folder: Path, described: Mapping[str, Any], model: Model) -> Any:
        """The processor of a run in memory; `described` is config.json."""
        ...

    def facts(self, run: Run[Any]) -> tuple[Sequence[str], Mapping[str, Any]]:
        """Names of the classes, and settings of generation, which are written into the model's files."""
        ...

    def write(self, run: Run[Any], out: Path) -> None:
        """The files beside config.json and model.safetensors."""
        ...
