"""Contents of the config.json of a run: the task, the model, how it is trained; as JSON, as TOML for `--config FILE`, and checked when read."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from . import files
from .errors import BadConfig, BadFile, MissingFile, UnknownName

FORMAT = 2
Options = TypeVar("Options")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Contents of config.json, which `--print-config` prints and `--config FILE` reads.

    Args:
        task: name of the task.
        model: name of the model.
    """

    task: str
    options: dict[str, Any] = field(default_factory=dict)  # options of the task
    model: str = ""
    settings: dict[str, Any] = field(default_factory=dict)  # settings of the model
    train: dict[str, Any] = field(default_factory=dict)  # `train.TrainOptions`
    init_from: str | None = None  # the run whose parameters it began with
    from_scratch: bool = False  # only the shape and the vocabulary of that run
    digest: str | None = None  # hash of the data
    skipped: str = ""  # malformed lines of the data, in words

    def __post_init__(self) -> None:
        for name, value in {**self.options, **self.settings, **self.train, "init_from": self.init_from}.items():
            if not files.is_text(json.dumps(value, ensure_ascii=False, default=str)):
                raise BadConfig(f"{name} is {value!r}, which is not UTF-8, so config.json cannot hold it; rename the file or folder")

    def to_json(self) -> dict[str, Any]:
        """Plain values for config.json."""
        plain = asdict(self)
        plain["model"] = {"name": plain["model"], "config": plain.pop("settings")}
        return {"format_version": FORMAT} | plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any], where: Path | str) -> RunConfig:
        """Read what `to_json` wrote, or a part of it that a user wrote."""
        plain = {name: value for name, value in plain.items() if name != "format_version"}
        model = plain.pop("model", {})
        if not isinstance(model, dict) or not {"name", "config"} >= model.keys():
            raise BadFile(f"{where}: model is {model!r}; expected its name and its config")
        plain |= {"model": model.get("name", ""), "settings": model.get("config", {})}
        return parse_options(cls, plain, f"{where}")

    def to_toml(self) -> str:
        """TOML for `--config FILE`: what is None, empty or found out during training is left out."""
        plain = self.to_json()
        for name in ("format_version", "digest", "skipped"):
            del plain[name]
        return _toml(plain)


def parse_options(kind: type[Options], plain: Mapping[str, Any], where: str) -> Options:
    """A dataclass from the plain values of a file, checked by its annotations.

    Args:
        kind: dataclass to make.
        plain: values by name.
        where: place to name in errors.
    """
    import msgspec

    from .bounds import out_of_bounds

    known = list(getattr(kind, "__dataclass_fields__", {}))
    for name in plain:
        if name not in known:
            raise UnknownName(f"option of {where}", str(name), known)
    try:
        return msgspec.convert(dict(plain), kind)
    except msgspec.ValidationError as wrong:
        raise BadConfig(f"{where}: {out_of_bounds(kind, plain) or wrong}") from wrong


def to_plain(options: Any) -> dict[str, Any]:
    """A dataclass or a mapping as JSON has it; None is empty.

    Args:
        options: dataclass or mapping.
    """
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
    """A TOML file with the keys of config.json, or a config.json itself.

    Args:
        path: file to read.
    """
    try:
        content = files.read(path)
        plain = files.parse_json(content, path) if path.suffix == ".json" else tomllib.loads(content.decode("utf-8"))
    except MissingFile as wrong:
        raise MissingFile(f"{path}: no such file; `regard train TASK --print-config` prints one") from wrong
    except (ValueError, RecursionError) as wrong:
        raise wrong if isinstance(wrong, BadFile) else BadFile(f"{path}: not TOML: {wrong}") from wrong
    if not isinstance(plain, dict) or not isinstance(plain.get("task"), str):
        raise BadFile(f"{path}: expected a task by name, as in `regard train TASK --print-config`")
    return RunConfig.from_json(plain, path)
