"""Runs and transformers directories: import, export."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from ..models import Classifier
from ..tasks import find_task
from ._command import Command


@dataclass(frozen=True, kw_only=True)
class Import(Command):
    """Make a run of a published checkpoint: a directory with config.json and safetensors, as transformers writes it.

    As in:  regard import downloads/bert-base-uncased --out runs/bert
    """

    folder: Positional[Path]
    """Directory of the checkpoint."""
    out: Path
    """Run directory to make."""

    def run(self) -> None:
        from ..interop import import_checkpoint

        run = import_checkpoint(self.folder, self.out)
        count = sum(parameter.numel() for parameter in run.model.parameters())
        body = run.model.body if isinstance(run.model, Classifier) else run.model
        print(f"{body.facts.name}, a run of the task {run.task}, {count:,} parameters. wrote {self.out}")
        print(f"Next:  {find_task(run.task).next_commands.format(out=self.out)}")


@dataclass(frozen=True, kw_only=True)
class Export(Command):
    """Write a run as a directory that transformers' from_pretrained reads.

    As in:  regard export runs/bert --to huggingface --out published/bert
    """

    folder: Positional[Path]
    """Run directory."""
    out: Path
    """Directory to make."""
    to: Literal["huggingface"] = "huggingface"
    """Format to write."""

    def run(self) -> None:
        from .. import load_run
        from ..interop import export_run

        export_run(load_run(self.folder), self.out)
        written = ", ".join(sorted(path.name for path in self.out.iterdir()))
        print(f"wrote {self.out}: {written}")
