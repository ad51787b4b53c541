"""Text as token ids on disk, made once: two or four bytes a token, mapped into memory, so that a corpus may be larger than it.

    FOLDER/NAME/manifest.json                of which text (hash), by which tokenizer (hash), how many tokens, documents and bytes
    FOLDER/NAME/{train,valid,test}.ids       BOS, a document's tokens, EOS; the next document (as `Frame` of the tokenizer says)
    FOLDER/NAME/{train,valid,test}.starts    where each document begins

NAME is a hash of text, tokenizer and parts: another text has another folder, and what is there is never changed. It is written under a
passing name and moved in one step; of several processes one writes, and the others wait. Files whose names, sizes and times are those in
the manifest are not read again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ..errors import CannotSave
from .frames import Frame
from .splits import Part
from .text import PARTS, Piece, Texts, hash_of
from .tokens import Tokenizer

FORMAT, VERSION = "regard.tokens", 1
AT_ONCE = 1 << 22  # characters that are encoded together


@dataclass(frozen=True)
class Tokens:
    """Documents as ids, end to end; document i is `ids[starts[i] : starts[i + 1]]`, from BOS to EOS (a text cut by place lacks EOS)."""

    ids: npt.NDArray[Any]
    starts: npt.NDArray[np.int64]
    bytes: int  # of the text in UTF-8
    unknown: int = 0  # tokens that stand for something the vocabulary lacks

    @property
    def documents(self) -> int:
        return len(self.starts)

    @property
    def ends(self) -> npt.NDArray[np.int64]:
        return np.append(self.starts[1:], len(self.ids))

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def of(cls, texts: list[str], tokenizer: Tokenizer) -> Tokens:
        """Documents that are at hand."""
        frame = Frame.of(tokenizer)
        rows = [[frame.begin, *ids, frame.end] for ids in tokenizer.encode_all(texts)]
        ids = np.array([i for row in rows for i in row], dtype=_dtype(tokenizer))
        starts = np.cumsum([0, *map(len, rows)])[:-1].astype(np.int64)
        return cls(ids, starts, sum(len(text.encode()) for text in texts), int((ids == frame.unknown).sum()))


@dataclass(frozen=True)
class Encoded:
    """Tokens to train on, to choose by and to report on; a part may have no documents."""

    train: Tokens
    valid: Tokens
    test: Tokens
    digest: str  # of the text
    skipped: str  # what was left out of it, in words; or nothing


def encoded(texts: Texts, tokenizer: Tokenizer, folder: Path | str) -> Encoded:
    """The three parts of the texts as tokens: from `folder` if they are there, else made and put there."""
    folder = Path(folder)
    key = {"tokenizer": hash_of(json.dumps(tokenizer.to_json())), "options": texts.options}
    signature = texts.signature
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for place in sorted(folder.glob("[!w]*/manifest.json")):  # none that is being written: it will be moved
            manifest = _manifest(place)
            if manifest and manifest["key"] == key and manifest["files"] == signature:
                return _opened(place.parent, manifest)
        digest = texts.survey.digest
        final = folder / hash_of(json.dumps([FORMAT, VERSION, key, digest]))[:16]
        with _alone(folder / "lock"):
            manifest = _manifest(final / "manifest.json")
            if manifest is None:
                manifest = {"format": FORMAT, "format_version": VERSION, "key": key, "digest": digest, "files": signature}
                manifest["skipped"] = str(texts.skipped) if len(texts.skipped) else ""
                _make(texts, tokenizer, final, manifest)
            elif manifest["files"] != signature:  # the same text in files of other names or times
                manifest["files"] = signature
                _put(final / "manifest.json", manifest)
        return _opened(final, manifest)
    except OSError as wrong:
        raise CannotSave(f"cannot keep tokens in {folder}: {wrong.strerror or wrong}; choose another place for them") from wrong


def _make(texts: Texts, tokenizer: Tokenizer, final: Path, manifest: dict[str, Any]) -> None:
    writing = final.with_name(f"writing-{os.getpid()}")
    for old in (*final.parent.glob("writing-*"), final):  # left by a process that was killed, as nobody else writes now; or damaged
        shutil.rmtree(old, ignore_errors=True)
    writing.mkdir()
    manifest["parts"] = _write(texts, tokenizer, writing)
    _put(writing / "manifest.json", manifest)
    writing.rename(final)


def _put(path: Path, manifest: dict[str, Any]) -> None:
    draft = path.with_suffix(".writing")
    draft.write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    draft.replace(path)


def _write(texts: Texts, tokenizer: Tokenizer, folder: Path) -> dict[str, Any]:
    writers = {part: _Writer(folder, part, tokenizer) for part in PARTS}
    waiting: list[Piece] = []
    for piece in texts.pieces():
        waiting.append(piece)
        if sum(len(one.text) for one in waiting) >= AT_ONCE:
            _encode(waiting, tokenizer, writers)
    _encode(waiting, tokenizer, writers)
    return {part: writer.close() for part, writer in writers.items()}


def _encode(waiting: list[Piece], tokenizer: Tokenizer, writers: dict[Part, _Writer]) -> None:
    for piece, ids in zip(waiting, tokenizer.encode_all([piece.text for piece in waiting]), strict=True):
        writers[piece.part].write(piece, ids)
    waiting.clear()


class _Writer:
    """The two files of one part."""

    def __init__(self, folder: Path, part: Part, tokenizer: Tokenizer):
        self.dtype, self.frame = _dtype(tokenizer), Frame.of(tokenizer)
        self.ids: BinaryIO = (folder / f"{part}.ids").open("wb")
        self.starts: BinaryIO = (folder / f"{part}.starts").open("wb")
        self.about = {"tokens": 0, "documents": 0, "bytes": 0, "unknown": 0, "dtype": self.dtype.__name__}

    def write(self, piece: Piece, ids: list[int]) -> None:
        about: dict[str, Any] = self.about
        if piece.begins:
            self.starts.write(np.int64(about["tokens"]).tobytes())
            about["documents"] += 1
        row = np.array([*[self.frame.begin] * piece.begins, *ids, *[self.frame.end] * piece.ends], dtype=self.dtype)
        self.ids.write(row.tobytes())
        about["tokens"] += len(row)
        about["bytes"] += len(piece.text.encode())
        about["unknown"] += int((row == self.frame.unknown).sum())

    def close(self) -> dict[str, Any]:
        for file in (self.ids, self.starts):
            file.flush()
            os.fsync(file.fileno())
            file.close()
        return self.about


def _dtype(tokenizer: Tokenizer) -> type[np.uint16] | type[np.uint32]:
    return np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32


def _manifest(path: Path) -> dict[str, Any] | None:
    """What it says, if it is one and the files beside it are as long as it says."""
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if (manifest["format"], manifest["format_version"]) != (FORMAT, VERSION):
            return None
        for part in PARTS:
            about = manifest["parts"][part]
            for name, size in (("ids", about["tokens"] * np.dtype(about["dtype"]).itemsize), ("starts", about["documents"] * 8)):
                if (path.parent / f"{part}.{name}").stat().st_size != size:
                    return None
        return manifest if all(name in manifest for name in ("key", "digest", "files", "skipped")) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _opened(folder: Path, manifest: dict[str, Any]) -> Encoded:
    def tokens(part: Part) -> Tokens:
        about = manifest["parts"][part]
        empty = not about["tokens"]  # an empty file cannot be mapped
        ids = np.zeros(0, dtype=about["dtype"]) if empty else np.memmap(folder / f"{part}.ids", dtype=about["dtype"], mode="r")
        return Tokens(ids, np.fromfile(folder / f"{part}.starts", dtype=np.int64), about["bytes"], about["unknown"])

    return Encoded(tokens("train"), tokens("valid"), tokens("test"), manifest["digest"], manifest["skipped"])


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time, where the system can lock files; elsewhere the second of two fails and may be started again."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
