"""Checkpoints that survive a power failure at any moment: nothing is lost but the last few minutes.

    state/
      latest                    {"name": "step-00000120", "manifest": SHA-256 of its manifest}; written last
      step-00000120/
        manifest.json           size and SHA-256 of every other file
        *.safetensors  *.json   tensors and plain values

A checkpoint is written into a folder with a temporary name, every file and the folder are synced to disk, the folder is renamed
atomically, and only then does `latest` point to it. An interrupted write is never taken for a checkpoint: its name is temporary, or its
hashes do not match. Reading takes what `latest` names, else the newest intact one, and reports what it skipped.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load as parse_tensors
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..errors import BadFile
from ..files import cannot, check_regular, make_folder, make_readable, parse_json, put, read, sync, write

FORMAT, VERSION = "regard.checkpoint", 1
_NAME = re.compile(r"step-(\d{8,})")
_PASSING = ("writing-", "leaving-")


@dataclass
class Checkpoint:
    """The contents of one folder: dictionaries of tensors, and JSON values, each by the name of its file."""

    step: int
    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)  # newer ones that could not be used, with the reason; set by reading


def save(folder: Path, checkpoint: Checkpoint, keep: int = 2) -> Path:
    """Write the checkpoint, point `latest` to it, remove all but the last `keep`. Any disk error is CannotSave."""
    name = f"step-{checkpoint.step:08d}"
    try:
        make_folder(folder)
        for path in folder.iterdir():  # what an interrupted write or removal has left
            if path.is_dir() and path.name.startswith(_PASSING):
                shutil.rmtree(path)
        writing, final = folder / f"writing-{name}", folder / name
        writing.mkdir()
        for stem, tensors in checkpoint.tensors.items():
            held = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
            make_readable(writing / f"{stem}.safetensors", partial(save_file, held))
        for stem, value in checkpoint.values.items():
            (writing / f"{stem}.json").write_text(json.dumps(value), encoding="utf-8")
        files = {path.name: {"size": path.stat().st_size, "sha256": _sum_and_sync(path)} for path in sorted(writing.iterdir())}
        manifest = writing / "manifest.json"
        manifest.write_text(json.dumps({"format": FORMAT, "format_version": VERSION, "step": checkpoint.step, "files": files}, indent=1))
        pointer = {"name": name, "manifest": _sum_and_sync(manifest)}
        sync(writing)
        if final.exists():  # the same step, saved by a run that died before `latest` was moved
            _remove(final)
        os.rename(writing, final)
        sync(folder)
        write(folder / "latest", json.dumps(pointer))
        _prune(folder, keep, name)
    except (OSError, SafetensorError) as error:
        raise cannot(folder / name, error) from error
    return final


def has_checkpoint(folder: Path) -> bool:
    """True if there is one at all, whole or not; nothing is read."""
    return any(_NAME.fullmatch(path.name) for path in _contents(folder))


def load_latest(folder: Path) -> Checkpoint | None:
    """The checkpoint to resume from; None if there is none. If there are some and none is intact, that is an error."""
    names = {int(m[1]): path for path in _contents(folder) if (m := _NAME.fullmatch(path.name))}
    skipped: list[str] = []
    order = [names[step] for step in sorted(names, reverse=True)]
    pointed, manifest_sum = _pointer(folder, skipped)
    if pointed in order:
        order.sort(key=lambda path: path != pointed)  # first, the rest as they were
    for path in order:
        try:
            checkpoint = _read(path, manifest_sum if path == pointed else None)
        except BadFile as error:
            skipped.append(str(error))
            continue
        checkpoint.skipped = skipped
        return checkpoint
    if order or skipped:
        raise BadFile(f"{folder} holds no intact checkpoint: {'; '.join(skipped)}. Delete the folder to start over")
    return None


def save_parameters(path: Path, parameters: Mapping[str, Tensor]) -> None:
    """Write one file of tensors atomically."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in parameters.items()}
    try:
        make_folder(path.parent)
        put(path, lambda draft: save_file(tensors, draft))
    except (OSError, SafetensorError) as error:
        raise cannot(path, error) from error


def read_parameters(path: Path) -> dict[str, Tensor]:
    """Read what `save_parameters` wrote."""
    check_regular(path)
    try:
        return load_file(path)
    except Exception as error:  # the library raises several kinds
        raise BadFile(f"{path}: not a safetensors file: {' '.join(str(error).split())}") from error


def tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The names and shapes of the tensors of a file, without reading them."""
    check_regular(path)
    try:
        with safe_open(path, "pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  it is not a mapping
    except Exception as error:
        raise BadFile(f"{path}: not a safetensors file: {' '.join(str(error).split())}") from error


def _contents(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise BadFile(f"{folder}: cannot be read: {error.strerror or error}") from error


def _read(path: Path, manifest_sum: str | None) -> Checkpoint:
    manifest_bytes = _bytes(path / "manifest.json")
    if manifest_sum is not None and hashlib.sha256(manifest_bytes).hexdigest() != manifest_sum:
        raise BadFile(f"{path.name}: manifest.json is not the one that was written")
    try:
        manifest = parse_json(manifest_bytes, "manifest.json")
        known, files = (manifest["format"], manifest["format_version"]), dict(manifest["files"])
        checkpoint = Checkpoint(int(manifest["step"]))
        sums = {name: (int(about["size"]), about["sha256"]) for name, about in files.items()}
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise BadFile(f"{path.name}: manifest.json cannot be read ({error})") from error
    if known != (FORMAT, VERSION):
        raise BadFile(f"{path.name}: format {known}, this version reads {(FORMAT, VERSION)}")
    for name, (size, expected) in sums.items():
        if name != Path(name).name:
            raise BadFile(f"{path.name}: its manifest names {name!r}, which is not a file of this folder")
        content = _bytes(path / name, size)
        if len(content) != size:
            raise BadFile(f"{path.name}: {name} has {len(content)} bytes, its manifest says {size}")
        if hashlib.sha256(content).hexdigest() != expected:
            raise BadFile(f"{path.name}: {name} has changed since it was written (SHA-256 differs)")
        stem = Path(name).stem
        if name.endswith(".safetensors"):
            try:
                checkpoint.tensors[stem] = parse_tensors(content)
            except Exception as error:  # the library raises several kinds, of which some are its own mistakes
                raise BadFile(f"{path.name}: {name} is not a file of tensors: {error}") from error
        else:
            checkpoint.values[stem] = parse_json(content, f"{path.name}: {name}")
    return checkpoint


def _bytes(path: Path, limit: int | None = None) -> bytes:
    """The content; whatever hinders reading, also permission or a failing disk, is BadFile: then the checkpoint before is taken."""
    try:
        return read(path) if limit is None else read(path, limit)
    except BadFile as error:
        reason = "is missing" if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError) else str(error).partition(": ")[2]
        raise BadFile(f"{path.parent.name}: {path.name} {reason}") from error


def _pointer(folder: Path, skipped: list[str]) -> tuple[Path | None, str | None]:
    if not os.path.lexists(folder / "latest"):
        return None, None
    try:
        pointer = parse_json(_bytes(folder / "latest"), "latest")
        name, manifest_sum = str(pointer["name"]), str(pointer["manifest"])
    except (ValueError, KeyError, TypeError) as error:
        skipped.append(f"latest cannot be read ({error})")
        return None, None
    if not _NAME.fullmatch(name) or not (folder / name).is_dir():
        skipped.append(f"latest names {name!r}, which is not there")
        return None, None
    return folder / name, manifest_sum


def _prune(folder: Path, keep: int, current: str) -> None:
    old = sorted((p for p in folder.iterdir() if _NAME.fullmatch(p.name) and p.name != current), key=lambda p: int(p.name[5:]))
    for path in old[: max(0, len(old) - (keep - 1))]:
        _remove(path)


def _remove(path: Path) -> None:
    leaving = path.with_name(f"leaving-{path.name}")  # a folder half removed must not look like a checkpoint half written
    os.rename(path, leaving)
    shutil.rmtree(leaving)


def _sum_and_sync(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    return digest
