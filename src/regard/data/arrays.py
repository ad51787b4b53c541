"""Arrays of numbers in files: IDX (the MNIST family), .npy and .npz; `.gz` of the first two. Never pickled objects.

Sizes are read from the headers and checked before memory is taken for them: a header that promises more than `MAX_BYTES`, or other than
what the file holds, is refused with the name of the file.
"""

from __future__ import annotations

import gzip
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from .. import files
from ..errors import BadFile

MAX_BYTES = 4 << 30
Array = npt.NDArray[Any]
IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_NPY_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_DAMAGE = (
    *(OSError, EOFError, ValueError, struct.error, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError, KeyError),
    *(SyntaxError, tokenize.TokenError),  # of numpy's reading of .npy headers
)


def read_array(path: Path) -> Array:
    """The array of an IDX or .npy file, perhaps compressed (.gz)."""
    with _open(path) as file:
        start = file.read(4)
        if start[:2] == b"\0\0" and len(start) == 4 and start[2] in IDX_TYPES:
            sizes = struct.unpack(f">{start[3]}I", file.read(4 * start[3]))
            return _values(file, np.dtype(IDX_TYPES[start[2]]), sizes, str(path))
        if start == b"\x93NUM":
            return _npy(file, start, str(path))
    raise BadFile(f"{path}: neither IDX nor .npy; expected an array of numbers in one of these formats")


def read_arrays(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file by name."""
    files.check_regular(path)
    with _damage(path), zipfile.ZipFile(path) as archive:
        members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
        if sum(member.file_size for member in members) > MAX_BYTES:
            raise BadFile(f"{path}: arrays of {sum(member.file_size for member in members):,} bytes; expected at most {MAX_BYTES:,}")
        found = {}
        for member in members:
            with archive.open(member) as file:
                found[member.filename.removesuffix(".npy")] = _npy(file, file.read(4), f"{path}: {member.filename}")
        return found


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    files.check_regular(path)
    with _damage(path), path.open("rb") as plain:
        if plain.read(2) == b"\x1f\x8b":
            plain.seek(0)
            with gzip.open(plain) as file:
                yield file  # type: ignore[misc]
        else:
            plain.seek(0)
            yield plain


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except BadFile:
        raise
    except _DAMAGE as wrong:
        raise BadFile(f"{path}: damaged, or not what its name says: {' '.join(str(wrong).split()) or type(wrong).__name__}") from wrong


def _npy(file: IO[bytes], start: bytes, where: str) -> Array:
    """The array after the first four bytes of an .npy header."""
    magic = start + file.read(4)
    if magic[:6] != b"\x93NUMPY" or (version := tuple(magic[6:8])) not in _NPY_HEADERS:
        raise BadFile(f"{where}: no .npy array of format 1 or 2")
    sizes, by_columns, dtype = _NPY_HEADERS[version](file)
    if dtype.hasobject:
        raise BadFile(f"{where}: pickled Python objects, which may run code when read; save plain numbers")
    array = _values(file, dtype, sizes, where)
    return array.reshape(sizes[::-1]).T if by_columns else array


def _values(file: IO[bytes], dtype: np.dtype[Any], sizes: tuple[int, ...], where: str) -> Array:
    """Read as many values as the header promises: no more, and no fewer."""
    expected = math.prod(sizes) * dtype.itemsize
    if expected > MAX_BYTES or len(sizes) > 8 or min(sizes, default=0) < 0:
        raise BadFile(f"{where}: an array of {' × '.join(map(str, sizes))} {dtype.name}; expected at most {MAX_BYTES:,} bytes")
    parts, rest = [], expected
    while rest and (part := file.read(min(rest, 1 << 24))):  # memory grows with what is there, not with what is promised
        parts.append(part)
        rest -= len(part)
    if rest or file.read(1):
        held = "more" if not rest else f"{expected - rest:,}"
        raise BadFile(f"{where}: its header says {' × '.join(map(str, sizes))} {dtype.name}, {expected:,} bytes, and it holds {held}")
    array = np.frombuffer(b"".join(parts), dtype).reshape(sizes)
    return array.astype(dtype.newbyteorder("=")) if dtype.byteorder == ">" else array
