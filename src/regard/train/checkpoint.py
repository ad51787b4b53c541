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

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save_file
from torch import Tensor

from ..errors import BadFile, CannotSave

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
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():  # what an interrupted write or removal has left
            if path.is_dir() and path.name.startswith(_PASSING):
                shutil.rmtree(path)
        writing, final = folder / f"writing-{name}", folder / name
        writing.mkdir()
        for stem, tensors in checkpoint.tensors.items():
            save_file({key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}, writing / f"{stem}.safetensors")
        for stem, value in checkpoint.values.items():
            (writing / f"{stem}.json").write_text(json.dumps(value), encoding="utf-8")
        files = {path.name: {"size": path.stat().st_size, "sha256": _sum_and_sync(path)} for path in sorted(writing.iterdir())}
        manifest = writing / "manifest.json"
        manifest.write_text(json.dumps({"format": FORMAT, "format_version": VERSION, "step": checkpoint.step, "files": files}, indent=1))
        pointer = {"name": name, "manifest": _sum_and_sync(manifest)}
        _sync(writing)
        if final.exists():  # the same step, saved by a run that died before `latest` was moved
            _remove(final)
        os.rename(writing, final)
        _sync(folder)
        replace_text(folder / "latest", json.dumps(pointer))
        _prune(folder, keep, name)
    except (OSError, SafetensorError) as error:
        raise cannot(folder / name, error) from error
    return final


def has_checkpoint(folder: Path) -> bool:
    """Whether there is one at all, whole or not; nothing is read."""
    return folder.is_dir() and any(_NAME.fullmatch(path.name) for path in folder.iterdir())


def load_latest(folder: Path) -> Checkpoint | None:
    """The checkpoint to resume from; None if there is none. If there are some and none is intact, that is an error."""
    names = {int(m[1]): path for path in (folder.iterdir() if folder.is_dir() else ()) if (m := _NAME.fullmatch(path.name))}
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
        raise BadFile(f"{folder} holds no intact checkpoint: {'; '.join(skipped)}. Remove the folder to start again")
    return None


def replace_text(path: Path, text: str) -> None:
    """Write atomically: the file holds the old text or the new one, never a part."""
    passing = path.with_name(f"{path.name}.writing")
    passing.write_text(text, encoding="utf-8")
    move(passing, path)


def save_parameters(path: Path, parameters: Mapping[str, Tensor]) -> None:
    """Write one file of tensors atomically."""
    passing = path.with_name(f"{path.name}.writing")
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in parameters.items()}, passing)
        move(passing, path)
    except (OSError, SafetensorError) as error:
        raise cannot(path, error) from error


def move(source: Path, target: Path) -> None:
    """Sync to disk, then rename over the target."""
    _sync(source)
    os.replace(source, target)
    _sync(target.parent)


def _read(path: Path, manifest_sum: str | None) -> Checkpoint:
    manifest_bytes = _bytes(path / "manifest.json")
    if manifest_sum is not None and hashlib.sha256(manifest_bytes).hexdigest() != manifest_sum:
        raise BadFile(f"{path.name}: manifest.json is not the one that was written")
    try:
        manifest = json.loads(manifest_bytes)
        known, files = (manifest["format"], manifest["format_version"]), dict(manifest["files"])
        checkpoint = Checkpoint(int(manifest["step"]))
        sums = {name: (about["size"], about["sha256"]) for name, about in files.items()}
    except (ValueError, KeyError, TypeError) as error:
        raise BadFile(f"{path.name}: manifest.json cannot be read ({error})") from error
    if known != (FORMAT, VERSION):
        raise BadFile(f"{path.name}: format {known}, this version reads {(FORMAT, VERSION)}")
    for name, (size, expected) in sums.items():
        if name != Path(name).name:
            raise BadFile(f"{path.name}: its manifest names {name!r}, which is not a file of this folder")
        content = _bytes(path / name)
        if len(content) != size:
            raise BadFile(f"{path.name}: {name} has {len(content)} bytes, its manifest says {size}")
        if hashlib.sha256(content).hexdigest() != expected:
            raise BadFile(f"{path.name}: {name} has changed since it was written (SHA-256 differs)")
        stem = Path(name).stem
        if name.endswith(".safetensors"):
            checkpoint.tensors[stem] = parse_tensors(content)
        else:
            checkpoint.values[stem] = json.loads(content)
    return checkpoint


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise BadFile(f"{path.parent.name}: {path.name} is missing") from error


def _pointer(folder: Path, skipped: list[str]) -> tuple[Path | None, str | None]:
    if not (folder / "latest").exists():
        return None, None
    try:
        pointer = json.loads((folder / "latest").read_text(encoding="utf-8"))
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


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cannot(path: Path, error: Exception) -> CannotSave:
    """The error of the operating system, and what to do about it."""
    advice = {
        errno.ENOSPC: "the disk is full: free some space",
        errno.EDQUOT: "the disk quota is used up: free some space",
        errno.EACCES: "permission is denied: choose a folder you may write to",
        errno.EPERM: "permission is denied: choose a folder you may write to",
        errno.EROFS: "the file system is read-only: choose another folder",
    }.get(getattr(error, "errno", None) or 0, "check the disk")
    return CannotSave(f"cannot save {path}: {error}; {advice}, then resume: what was saved before is untouched")
