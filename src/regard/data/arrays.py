"""Arrays of NumPy in .npy and .npz files: never pickled objects, and no more memory than the file's own size promises."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from .. import files
from ..errors import BadFile

Array = npt.NDArray[Any]
MAX_BYTES = 1 << 30  # of a file, and of each array in it


def read_npy(path: Path | str) -> Array:
    """The array of a .npy file."""
    content = files.read(Path(path), MAX_BYTES)
    return _array(io.BytesIO(content), len(content), str(path))


def read_npz(path: Path | str, names: Collection[str] | None = None) -> dict[str, Array]:
    """Arrays of an .npz file by name: those of `names` that it has, or all."""
    content = files.read(Path(path), MAX_BYTES)
    found = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                if names is not None and name not in names:
                    continue
                if member.file_size > MAX_BYTES:
                    raise BadFile(f"{path}: {name} takes {member.file_size:,} bytes; expected at most {MAX_BYTES:,}")
                with archive.open(member) as file:
                    found[name] = _array(file, member.file_size, f"{path}: {name}")
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as wrong:
        raise BadFile(f"{path}: not an .npz file, or a damaged one: {wrong}") from wrong
    return found


def npz_names(path: Path | str) -> list[str]:
    """Which arrays an .npz file has."""
    try:
        with zipfile.ZipFile(io.BytesIO(files.read(Path(path), MAX_BYTES))) as archive:
            return [member.filename.removesuffix(".npy") for member in archive.infolist()]
    except zipfile.BadZipFile as wrong:
        raise BadFile(f"{path}: not an .npz file, or a damaged one: {wrong}") from wrong


def _array(file: Any, size: int, where: str) -> Array:
    """One array, after its header was checked: a header may promise more than the file holds."""
    try:
        version = np.lib.format.read_magic(file)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in readers:
            raise BadFile(f"{where}: version {version} of the .npy format; expected 1.0 or 2.0")
        shape, fortran, dtype = readers[version](file)
        if dtype.hasobject:
            raise BadFile(f"{where}: pickled objects, which could run any code when they are read; expected an array of numbers or text")
        count = int(np.prod(shape, dtype=object)) if shape else 1
        if count < 0 or count * dtype.itemsize > size:
            raise BadFile(f"{where}: its header promises {count * dtype.itemsize:,} bytes, and there are {size:,}")
        flat = np.frombuffer(_exactly(file, count * dtype.itemsize, where), dtype=dtype)
        return flat.reshape(shape, order="F" if fortran else "C")
    except BadFile:
        raise
    except (ValueError, TypeError, SyntaxError, OverflowError, EOFError) as wrong:
        raise BadFile(f"{where}: not an array of NumPy: {' '.join(str(wrong).split())[:200]}") from wrong


def _exactly(file: BinaryIO, count: int, where: str) -> bytes:
    content = file.read(count)
    if len(content) != count:
        raise BadFile(f"{where}: ends after {len(content):,} of {count:,} bytes")
    return content
