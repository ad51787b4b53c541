"""A run directory: everything that is needed to use, go on with, or look at a trained model, whatever the task.

config.json          format_version, the task, its settings, the model's name and settings, how it was trained
tokenizer.json       the vocabulary
model.safetensors    the chosen weights
metrics.jsonl        what happened, a line an event
state/               checkpoints, to resume from
tokens/              running text as numbers, made anew if it is gone
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from safetensors import SafetensorError
from safetensors.torch import load_file

from ..data import Tokenizer, Tokenizers
from ..errors import BadConfig, BadFile, MissingFile, NotSupported, RunExists
from ..models import Labeller, LanguageModel, Model, TextEncoder, Translator, build, config_of
from ..train import TrainConfig
from ..train.checkpoint import load_latest
from ..train.weights import load_weights

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FORMAT = 1
Settings = TypeVar("Settings", bound="DataclassInstance")
Kind = TypeVar("Kind", bound=Model, covariant=True)
KINDS = {  # in words, and what to do for one
    Translator: ("translator", "regard train translation"),
    LanguageModel: ("language model", "regard train language"),
    TextEncoder: ("text encoder", "regard train masked"),
    Labeller: ("classifier", "regard train classify"),
}


@dataclass(frozen=True)
class Run(Generic[Kind]):
    """A trained model as it lies on disk."""

    folder: Path
    config: dict[str, Any]
    model: Kind
    tokenizers: Tokenizers

    @property
    def task(self) -> str:
        """translation, language, masked, classify or label."""
        return str(self.config["task"])

    @property
    def tokenizer(self) -> Tokenizer:
        """Of a run with one text; a translator has another for what it writes, maybe."""
        return self.tokenizers.source

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of what a classifier tells apart."""
        return tuple(self.config["settings"].get("labels", ()))

    def settings(self, kind: type[Settings]) -> Settings:
        """What the task was told, as the value it was told by."""
        known = {field.name for field in fields(kind)}
        plain: dict[str, Any] = {name: value for name, value in self.config["settings"].items() if name in known}
        return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()})

    @overload
    @classmethod
    def load(cls, folder: Path | str) -> Run[Model]: ...

    @overload
    @classmethod
    def load(cls, folder: Path | str, kind: type[Kind]) -> Run[Kind]: ...

    @classmethod
    def load(cls, folder: Path | str, kind: Any = Model) -> Any:
        """The model with its chosen weights, ready to use. With `kind` it is one of these, or the body of a classifier that is; or an error."""
        folder = Path(folder)
        config = read_config(folder)
        model = load_model(folder, config)
        return Run[Any](folder, config, model.eval(), Tokenizers.load(folder / "tokenizer.json")).of(kind)

    def of(self, kind: type[Any]) -> Run[Any]:
        """The same run for those who need a model of this kind: it is one, or the body of a classifier is."""
        if isinstance(self.model, kind):
            return self
        if isinstance(self.model, Labeller) and isinstance(self.model.body, kind):
            return replace(self, model=self.model.body)
        name, made_by = KINDS.get(kind, (kind.__name__, "another model"))
        has = next((said for part, (said, _) in KINDS.items() if isinstance(self.model, part)), type(self.model).__name__)
        raise NotSupported(f"{self.folder}: a run of the task {self.task}, whose model is a {has}; this needs a {name}: {made_by}")


def load_model(folder: Path, config: Mapping[str, Any]) -> Model:
    """The model that a run's config describes, with its chosen weights."""
    model = build(config["model"]["name"], config["model"]["config"])
    if config["settings"].get("labels"):
        model = Labeller(model, len(config["settings"]["labels"]), each=config["task"] == "label")
    weights = folder / "model.safetensors"
    if not weights.exists():
        again = f"regard train {config['task']} --out {folder} --resume"
        raise MissingFile(f"{weights}: no such file; the run has not finished. Go on with it: {again}")
    try:
        load_weights(model, load_file(weights), str(weights))
    except (OSError, SafetensorError) as wrong:
        raise BadFile(f"{weights}: not a file of weights: {wrong}") from wrong
    return model


def read_config(folder: Path) -> dict[str, Any]:
    """What `write_config` wrote."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as wrong:
        raise MissingFile(f"{path}: no such file, so {folder} is not a run; `regard train translation --out {folder}` makes one") from wrong
    except (OSError, ValueError) as wrong:
        raise BadFile(f"{path}: not JSON: {wrong}") from wrong
    if not isinstance(config, dict) or config.get("format_version") != FORMAT:
        raise BadFile(f"{path}: expected an object with format_version {FORMAT}")
    for part in ("task", "settings", "model", "train"):
        if part not in config:
            raise BadFile(f"{path}: lacks {part!r}")
    return config


def begin_run(
    out: Path,
    task: str,
    settings: dict[str, Any],
    model: Model,
    train: TrainConfig,
    tokenizers: Tokenizers,
    *,
    resume: bool,
) -> None:
    """What is known before the first step: config.json and tokenizer.json. Of several processes the first one writes.

    Refuses, before a file is touched, to write over another run, and to go on with a run on other data than it began with.
    """
    if os.environ.get("RANK", "0") != "0":
        return
    if resume and (out / "config.json").exists():
        before, now = read_config(out)["settings"].get("digest"), settings.get("digest")
        if before is not None and before != now:
            raise BadConfig(
                f"the data are not those that {out} began with, so it would not end as it should; give it the same, "
                "or begin another run with --base"
            )
    if not resume:
        unused(out)
    write_config(out, task, settings, config_of(model), train.to_json())
    tokenizers.save(out / "tokenizer.json")


def unused(out: Path) -> None:
    """Refuse a folder that holds a run already."""
    if (out / "model.safetensors").exists() or ((out / "state").exists() and load_latest(out / "state") is not None):
        raise RunExists(f"{out} already holds a run; resume it, or choose another folder")


def write_config(folder: Path, task: str, settings: dict[str, Any], model: tuple[str, dict[str, Any]], train: dict[str, Any]) -> None:
    """`config.json`, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"format_version": FORMAT, "task": task, "settings": settings, "model": {"name": model[0], "config": model[1]}, "train": train}
    draft = folder / "config.json.writing"
    draft.write_text(json.dumps(config, indent=2, ensure_ascii=False), encoding="utf-8")
    draft.replace(folder / "config.json")
