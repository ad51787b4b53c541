"""Commands that make a run of another one, or exchange runs with transformers: swap, import, export."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Literal

from tyro.conf import Positional

from ..errors import NotSupported, count
from ._command import Command


@dataclass(frozen=True, kw_only=True)
class Swap(Command):
    """Replace the attention of a run with another mechanism.

    All other parameters are copied; `regard train TASK --init-from NEW` trains the result further.

    As in:  regard swap runs/book performer --out runs/book-performer
            regard swap runs/book "softmax,local(radius=64)" --out runs/book-local
            regard swap runs/book linear --layers 0 2 --out runs/book-mixed
    """

    folder: Positional[Path]
    """Run directory, or a transformers directory."""
    attention: Positional[str]
    """Mechanism from `regard list`, as in linear or local(radius=64); several with commas between them are for the layers in turn."""
    out: Path
    """Run directory to create."""
    layers: tuple[int, ...] = ()
    """Numbers of the layers to change, from 0; all if not given."""

    def run(self) -> None:
        from .. import load_run, runs
        from ..layers.spec import split_names
        from ..models import Headed, config_of

        run = load_run(self.folder)
        if isinstance(run.model, Headed):
            raise NotSupported(f"{self.folder}: swap the attention of the run that it was trained from, then train it again")
        runs.check_unused(self.out)
        names = split_names(self.attention)
        model = run.model.with_attention(tuple(names), layers=self.layers or None)
        before, after = ({name for name, _ in each.named_parameters()} for each in (run.model, model))
        name, settings = config_of(model)
        config = replace(run.config, model=name, settings=settings, init_from=str(self.folder))
        runs.save(replace(run, config=config, model=model), self.out)
        new = sum(parameter.numel() for name, parameter in model.named_parameters() if name in after - before)
        changed = count(len(self.layers) or len(model.attentions()), "layer")
        print(f"Attention replaced by {', '.join(names)} in {changed} of {self.folder}; {new:,} new parameters. wrote {self.out}")
        print(
            f"Next:  regard train {run.task} --init-from {quote(str(self.out))} --out {quote(f'{self.out}-trained')}        regard evaluate {quote(str(self.out))}"
        )


@dataclass(frozen=True, kw_only=True)
class Import(Command):
    """Turn a Transformers checkpoint into a run.

    A checkpoint is a directory with config.json and safetensors, as transformers writes it.

    As in:  regard import downloads/bert-base-uncased --out runs/bert
    """

    folder: Positional[Path]
    """Directory of the checkpoint."""
    out: Path
    """Run directory to create."""

    def run(self) -> None:
        from ..interop import import_checkpoint
        from ..models import body_of
        from ..tasks import find_task

        run = import_checkpoint(self.folder, self.out)
        count = sum(parameter.numel() for parameter in run.model.parameters())
        body = body_of(run.model)
        print(f"{body.facts.name}, a run of the task {run.task}, {count:,} parameters. wrote {self.out}")
        print(f"Next:  {find_task(run.task).next_commands.format(out=self.out)}")


@dataclass(frozen=True, kw_only=True)
class Export(Command):
    """Write a run as a Transformers checkpoint.

    The directory is read by from_pretrained in transformers.

    As in:  regard export runs/bert --to huggingface --out published/bert
    """

    folder: Positional[Path]
    """Run directory."""
    out: Path
    """Directory to create."""
    to: Literal["huggingface"] = "huggingface"
    """Format to write."""

    def run(self) -> None:
        from .. import load_run
        from ..interop import export

        export(load_run(self.folder), self.out)
        written = ", ".join(sorted(path.name for path in self.out.iterdir()))
        print(f"wrote {self.out}: {written}")
