"""The run directory: everything needed to use, resume or inspect a trained model, whatever the task. Nothing else reads or writes its files.

config.json          format_version; the task and its options; the model; the training options; what it was initialised from; the data's digest
model.safetensors    the chosen parameters
metrics.jsonl        what happened during training, one JSON object per line
state/               checkpoints to resume from
and what the task's processor needs to turn inputs into tensors: tokenizer.json, labels.json, …

    config = RunConfig(task="language", options=…, model="gpt2", settings=…, train=…)
    create(out, config, processor)        before the first step
    run = load_run(out, config, task)     afterwards; `tasks.load_run(out)` finds the task by its name
"""

from __future__ import annotations

import copy
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file

from .errors import BadConfig, BadFile, CannotSave, MissingFile, RunExists, UnknownName
from .models import Model
from .train.checkpoint import save_parameters
from .train.parameters import load_parameters, parameters_of

FORMAT = 2
CONFIG, PARAMETERS = "config.json", "model.safetensors"
Kind = TypeVar("Kind", bound=Model, covariant=True)
Options = TypeVar("Options")


class Processor(Protocol):
    """What turns a task's inputs into tensors and is saved with a run: a tokenizer, label names, an image transform."""

    def save(self, folder: Path) -> None: ...


class Loader(Protocol):
    """What a task does to bring a run back."""

    def load_processor(self, folder: Path) -> Any: ...

    def build(self, model: str, settings: Mapping[str, Any], processor: Any) -> Model: ...


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What config.json holds, and what `--print-config` prints and `--config FILE` reads."""

    task: str
    options: dict[str, Any] = field(default_factory=dict)  # of the task
    model: str = ""
    settings: dict[str, Any] = field(default_factory=dict)  # of the model
    train: dict[str, Any] = field(default_factory=dict)  # `train.TrainOptions`
    init_from: str | None = None  # the run whose parameters it began with
    from_scratch: bool = False  # only the shape and the vocabulary of that run
    digest: str | None = None  # of the data
    skipped: str = ""  # malformed lines of the data, in words

    def to_json(self) -> dict[str, Any]:
        """As config.json spells it."""
        plain = asdict(self)
        plain["model"] = {"name": plain["model"], "config": plain.pop("settings")}
        return {"format_version": FORMAT} | plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any], where: Path | str) -> RunConfig:
        """What `to_json` wrote, or a part of it that a user wrote."""
        plain = {name: value for name, value in plain.items() if name != "format_version"}
        model = plain.pop("model", {})
        if not isinstance(model, dict) or not {"name", "config"} >= model.keys():
            raise BadFile(f"{where}: model is {model!r}; expected its name and its config")
        plain |= {"model": model.get("name", ""), "settings": model.get("config", {})}
        return parse_options(cls, plain, f"{where}")

    def to_toml(self) -> str:
        """The same for `--config FILE`: what is None, empty or found out during training is left out."""
        plain = self.to_json()
        for name in ("format_version", "digest", "skipped"):
            del plain[name]
        return _toml(plain)


def parse_options(kind: type[Options], plain: Mapping[str, Any], where: str) -> Options:
    """A dataclass from the plain values of a file, checked by its annotations."""
    import msgspec

    known = list(getattr(kind, "__dataclass_fields__", {}))
    for name in plain:
        if name not in known:
            raise UnknownName(f"option of {where}", str(name), known)
    try:
        return msgspec.convert(dict(plain), kind)
    except msgspec.ValidationError as wrong:
        raise BadConfig(f"{where}: {wrong}") from wrong


def to_plain(options: Any) -> dict[str, Any]:
    """A dataclass or a mapping as JSON has it; None is empty."""
    if options is None:
        return {}
    found: dict[str, Any] = json.loads(json.dumps(dict(options) if isinstance(options, Mapping) else asdict(options)))
    return found


def _toml(table: Mapping[str, Any], path: str = "") -> str:
    lines = [f"{name} = {_toml_value(value)}" for name, value in table.items() if value is not None and not isinstance(value, dict)]
    parts = [_toml(value, f"{path}{name}.") for name, value in table.items() if isinstance(value, dict) and value]
    head = [f"[{path[:-1]}]"] if path and lines else []
    return "\n".join(["\n".join([*head, *lines]), *parts]).strip("\n") + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False)  # strings, numbers and booleans are written alike in JSON and TOML


def read_config_file(path: Path) -> RunConfig:
    """A TOML file with the keys of config.json, or a config.json itself."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8")) if path.suffix == ".json" else tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as wrong:
        raise MissingFile(f"{path}: no such file; `regard train TASK --print-config` prints one") from wrong
    except (OSError, ValueError) as wrong:
        raise BadFile(f"{path}: not {'JSON' if path.suffix == '.json' else 'TOML'}: {wrong}") from wrong
    if not isinstance(plain, dict) or not isinstance(plain.get("task"), str):
        raise BadFile(f"{path}: expected a task by name, as in `regard train TASK --print-config`")
    return RunConfig.from_json(plain, path)


# -- on disk -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run(Generic[Kind]):
    """A trained model with what belongs to it. `folder` is where it lies, also if it is not a run of ours."""

    folder: Path
    config: RunConfig
    model: Kind
    processor: Any

    @property
    def task(self) -> str:
        """The name of its task."""
        return self.config.task

    def with_model(self, model: Model) -> Run[Any]:
        """The same with another model."""
        return Run(self.folder, self.config, model, self.processor)


def read_json(folder: Path | str) -> dict[str, Any]:
    """config.json of a run of ours (with format_version), or of a transformers directory (with model_type)."""
    path = Path(folder) / CONFIG
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as wrong:
        raise MissingFile(
            f"{path}: no such file, so {folder} is not a run, nor a transformers directory; `regard train TASK --out {folder}` makes a run"
        ) from wrong
    except NotADirectoryError as wrong:
        raise BadFile(f"{folder} is a file; name the directory that holds {CONFIG}") from wrong
    except (OSError, ValueError, RecursionError) as wrong:
        raise BadFile(f"{path}: not JSON: {wrong}") from wrong
    if not isinstance(plain, dict) or not {"format_version", "model_type"} & plain.keys():
        raise BadFile(f"{path}: expected an object with format_version (a run of ours) or model_type (a transformers directory)")
    return plain


def read_config(folder: Path | str, plain: Mapping[str, Any] | None = None) -> RunConfig:
    """The config of a run; `plain` is what `read_json` gave, if that has been called."""
    plain, path = read_json(folder) if plain is None else plain, Path(folder) / CONFIG
    if plain.get("format_version") != FORMAT:
        raise BadFile(f"{path}: format_version {plain.get('format_version')!r}; this version of regard reads {FORMAT}")
    return RunConfig.from_json(plain, path)


def load_run(folder: Path | str, config: RunConfig, task: Loader) -> Run[Model]:
    """The run with its chosen parameters, ready to use."""
    folder = Path(folder)
    processor = task.load_processor(folder)
    model = task.build(config.model, config.settings, processor)
    path = folder / PARAMETERS
    if not path.exists():
        raise MissingFile(f"{path}: no such file; training has not finished. Resume it: regard train {config.task} --out {folder} --resume")
    try:
        load_parameters(model, load_file(path), str(path))
    except (OSError, SafetensorError) as wrong:
        raise BadFile(f"{path}: not a safetensors file: {wrong}") from wrong
    return Run(folder, config, model.eval(), processor)


def check_unused(folder: Path) -> None:
    """Refuse a folder that holds a run already."""
    if (folder / CONFIG).exists() or (folder / PARAMETERS).exists():
        raise RunExists(f"{folder} already holds a run; resume it with --resume, or choose another folder")


def create(folder: Path, config: RunConfig, processor: Processor) -> None:
    """A run that is about to be trained. Of several processes the first one writes."""
    if first_process():
        check_unused(folder)
        write_config(folder, config, new=True)
        processor.save(folder)


def first_process() -> bool:
    """Whether this process writes: of several that torchrun started only the first does."""
    return os.environ.get("RANK", "0") == "0"


def save(run: Run[Any], folder: Path | str) -> Path:
    """Write a run whose model is in memory."""
    folder = Path(folder)
    check_unused(folder)
    write_config(folder, run.config, new=True)
    run.processor.save(folder)
    save_parameters(folder / PARAMETERS, parameters_of(run.model))
    return folder


def write_config(folder: Path, config: RunConfig, *, new: bool = False) -> None:
    """config.json, whole or not at all; a `new` one never replaces another, even if two processes try at the same moment."""
    path, draft = folder / CONFIG, folder / f"{CONFIG}.writing-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(config.to_json(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        if new:
            os.link(draft, path)
            draft.unlink()
        else:
            draft.replace(path)
    except FileExistsError as wrong:
        draft.unlink(missing_ok=True)
        raise RunExists(f"{folder} already holds a run; resume it with --resume, or choose another folder") from wrong
    except OSError as wrong:
        raise CannotSave(f"cannot write {path}: {wrong.strerror or wrong}; choose another folder") from wrong


def checkpoints(folder: Path | str) -> list[int]:
    """The steps of which a run still has checkpoints, in order."""
    return sorted(int(path.parent.name.removeprefix("step-")) for path in Path(folder, "state").glob(f"step-*[0-9]/{PARAMETERS}"))


def load_checkpoint(run: Run[Kind], step: int) -> Kind:
    """A copy of the model with its parameters at this step."""
    path = run.folder / "state" / f"step-{step:08d}" / PARAMETERS
    model = copy.deepcopy(run.model)
    try:
        load_parameters(model, load_file(path), str(path))
    except (OSError, SafetensorError) as wrong:
        raise BadFile(f"{path}: not a safetensors file: {wrong}") from wrong
    return model.eval()
