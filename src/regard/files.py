"""Files, written and read: whole or not at all, and never more than is expected of them.

Writing: under a temporary name, synced to disk, renamed, and the folder is synced. So after a kill or a power failure at any moment a file
is the old one or the new one. Reading: regular files only (a FIFO would wait for ever, a device never end), and no larger than a limit.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .errors import BadFile, CannotSave, MissingFile

JSON_LIMIT = 16 << 20  # bytes; each may become some 25 in memory
_WRITING = ".writing"  # the suffix of temporary names
_DRAFT = re.compile(r"\.writing(-\d+)?$")


# -- writing -----------------------------------------------------------------------------------------------------------


def write(path: Path, content: str | bytes, *, new: bool = False) -> None:
    """Write a file atomically. A `new` one never replaces another: then FileExistsError, also if two processes try at the same moment.

    Args:
        path: file to write.
        content: text, written as UTF-8, or bytes.
        new: raise FileExistsError if the file exists.
    """
    data = content.encode() if isinstance(content, str) else content
    put(path, lambda draft: _write_bytes(draft, data), new=new)


def write_json(path: Path, value: Any, *, indent: int | None = None, new: bool = False) -> None:
    """Write a JSON file atomically.

    Args:
        path: file to write.
        value: value of plain types.
        indent: spaces per level; None: one line.
        new: raise FileExistsError if the file exists.
    """
    write(path, json.dumps(value, indent=indent, ensure_ascii=False) + "\n", new=new)


def put(path: Path, make: Callable[[Path], object], *, new: bool = False) -> None:
    """`make(draft)` writes a file under a temporary name; it is synced and renamed to `path`. Errors of the system leave no draft behind.

    Args:
        path: file to write.
        make: function that writes a file of the name it is given.
        new: raise FileExistsError if the file exists.
    """
    draft = path.with_name(f"{path.name}{_WRITING}-{os.getpid()}" if new else f"{path.name}{_WRITING}")
    try:
        make_readable(draft, make)
        sync(draft)
        if new:
            os.link(draft, path)
            os.unlink(draft)
        else:
            os.replace(draft, path)
        sync(path.parent)
    except BaseException:
        with suppress(OSError):  # a draft hinders nobody: the next write replaces it
            draft.unlink()
        raise


@contextmanager
def new_folder(folder: Path, last: str) -> Iterator[Path]:
    """A draft to write files into, which become `folder` when all are written; if anything fails there, nothing is left.

    In a folder that exists the files appear one by one, `last` as the last: what lacks it is not complete.

    Args:
        folder: folder to write.
        last: name of the file without which the others mean nothing.
    """
    here = Path(os.path.abspath(folder))  # a name, also of "."
    exists = here.is_dir()
    draft, placed = here / _WRITING if exists else here.with_name(f"{here.name}{_WRITING}"), list[Path]()
    shutil.rmtree(draft, ignore_errors=True)  # of a process that was killed
    try:
        make_folder(draft)
        yield draft
        for path in sorted(draft.rglob("*")):
            sync(path)
        for path in sorted(draft.iterdir(), key=lambda path: path.name == last) if exists else [draft]:
            placed.append(here / path.name if exists else here)
            os.replace(path, placed[-1])
            sync(placed[-1].parent)
        shutil.rmtree(draft, ignore_errors=True)
    except BaseException:
        for path in (draft, *placed):
            shutil.rmtree(path, ignore_errors=True)
            with suppress(OSError):
                path.unlink()
        raise


def remove_drafts(folder: Path) -> None:
    """Remove what killed processes have left half-written in a folder, which nobody else may be writing to.

    Args:
        folder: folder to clean.
    """
    with suppress(OSError):  # such a file hinders nobody
        for path in folder.iterdir():
            if _DRAFT.search(path.name):
                path.unlink()


def make_readable(path: Path, make: Callable[[Path], object]) -> None:
    """`make(path)` writes a file; its permissions are those of any new file, also where a library would let only its owner read it.

    Args:
        path: file to write.
        make: function that writes a file of the name it is given.
    """
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    make(path)
    path.chmod(mode)


def _write_bytes(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)


def make_folder(path: Path) -> None:
    """Make a folder and those above it; their names are on disk afterwards.

    Args:
        path: folder to make.
    """
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file or a folder is on disk.

    Args:
        path: file or folder.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cannot(path: Path, error: Exception) -> CannotSave:
    """The error of the operating system, and what to do about it.

    Args:
        path: file that could not be written.
        error: error of the operating system, or of a library.
    """
    advice = {
        errno.ENOSPC: "the disk is full: free some space",
        errno.EDQUOT: "the disk quota is used up: free some space",
        errno.EACCES: "permission is denied: choose a folder you may write to",
        errno.EPERM: "permission is denied: choose a folder you may write to",
        errno.EROFS: "the file system is read-only: choose another folder",
        errno.ENOTDIR: "a file has the name of a folder: choose another folder",
        errno.EEXIST: "a file has the name of a folder: choose another folder",
    }.get(_errno(error), "check the disk")
    reason = getattr(error, "strerror", None) or " ".join(str(error).split())
    return CannotSave(f"cannot write {path}: {reason}; {advice}, then start or resume again: what was saved before is untouched")


def _errno(error: Exception) -> int:
    """The number of an error of the system; safetensors writes it at the end of its message."""
    number = getattr(error, "errno", None)
    written = re.search(r"\(os error (\d+)\)", str(error))
    return number if isinstance(number, int) else int(written[1]) if written else 0


# -- reading -----------------------------------------------------------------------------------------------------------


def read(path: Path, limit: int = JSON_LIMIT) -> bytes:
    """The content of a regular file of at most `limit` bytes; anything else is MissingFile or BadFile.

    Args:
        path: file to read.
        limit: maximum size in bytes.
    """
    try:
        with open(_open(path), "rb") as file:
            if (size := os.fstat(file.fileno()).st_size) > limit:
                raise BadFile(f"{path}: {size:,} bytes; expected at most {limit:,}")
            content = file.read(limit + 1)
    except OSError as wrong:
        if isinstance(wrong, BadFile):
            raise
        raise BadFile(f"{path}: cannot be read: {wrong.strerror or wrong}") from wrong
    if len(content) > limit:
        raise BadFile(f"{path}: more than {limit:,} bytes")
    return content


def _open(path: Path) -> int:
    """A descriptor of a regular file that may be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError as wrong:
        raise MissingFile(f"{path}: no such file") from wrong
    except (OSError, ValueError) as wrong:  # ValueError: a null byte in the name
        raise BadFile(f"{path}: cannot be read: {getattr(wrong, 'strerror', None) or wrong}") from wrong
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BadFile(f"{path}: a folder, pipe or device; expected a file")
    return descriptor


def read_json(path: Path, limit: int = JSON_LIMIT) -> Any:
    """The value of a JSON file in UTF-8.

    Args:
        path: file to read.
        limit: maximum size in bytes.
    """
    return parse_json(read(path, limit), path)


def parse_json(content: bytes, where: Path | str) -> Any:
    """A JSON value in UTF-8; BadFile says what is wrong with it.

    Args:
        content: JSON in UTF-8.
        where: name of the source, for error messages.
    """
    try:
        text = content.decode("utf-8")
        value = json.loads(text)
        if "\\ud" in text or "\\uD" in text:  # half of a surrogate pair is not text: what was read must be writable
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeEncodeError as wrong:
        raise BadFile(f"{where}: a string that is not text: {wrong}") from wrong
    except (ValueError, RecursionError, MemoryError) as wrong:
        raise BadFile(f"{where}: not JSON: {str(wrong) or type(wrong).__name__}") from wrong


def check_name(path: Path | str) -> None:
    """Refuse a name that no file can have, or that is not UTF-8 and so cannot be written into a file.

    Args:
        path: name to check.
    """
    if not is_text(str(path)):
        raise BadFile(f"{str(path)!r}: a name that is not UTF-8; rename the file or folder")
    try:
        os.stat(path)
    except ValueError as wrong:
        raise BadFile(f"{str(path)!r}: no name of a file: {wrong}") from wrong
    except OSError as wrong:
        if wrong.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise BadFile(f"{str(path)[:100]}…: {wrong.strerror}") from wrong


def is_text(value: str) -> bool:
    """Return whether it can be written as UTF-8: a name of other bytes, or half of a surrogate pair, cannot.

    Args:
        value: string to check.
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_regular(path: Path) -> None:
    """Refuse what is not a regular file, before a library opens it by name.

    Args:
        path: name to check.
    """
    os.close(_open(path))
