"""Token ids cached on disk: two or four bytes per token, memory-mapped, so that a corpus may be larger than memory.

    FOLDER/NAME/manifest.json                hashes of text and tokenizer; numbers of tokens, documents and bytes
    FOLDER/NAME/{train,valid,test}.ids       BOS, a document's tokens, EOS; the next document (`begin_id` and `end_id` of the tokenizer)
    FOLDER/NAME/{train,valid,test}.starts    where each document begins
    FOLDER/characters-NAME.json              number of characters, by names, sizes and times of the files
    FOLDER/tokenizer-NAME.json               tokenizer that was trained on them

NAME is a hash of text, tokenizer and parts: another text has another folder, and what is there is never changed. It is written under a
temporary name and renamed atomically; of several processes one writes, and the others wait. While it is written, `progress.json` says up to
where it is on disk: what was killed resumes from there. Text files whose names, sizes and times match the manifest are not read again; the
cache itself is, and is written again if its hashes do not match.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import CannotSave
from ..files import read_json, write_json
from .pace import Pace
from .splits import PARTS, Part, Splits
from .text import Piece, Texts, hash_of
from .tokens import LIMIT, Tokenizer, TrainedKind

FORMAT, VERSION = "regard.tokens", 2
AT_ONCE = 1 << 22  # characters that are encoded together, by all cores if the tokenizer is one of the `tokenizers` library
SAVE = 1 << 26  # characters between two notes of progress
PROGRESS = "progress.json"


def count_characters(texts: Texts, folder: Path | str | None) -> int:
    """Number of characters of the training source, noted in `folder` for later runs on the same files.

    Args:
        texts: documents in three parts.
        folder: folder of the cache; None: no cache.
    """
    return int(_noted(texts, folder, ["characters"], lambda: int(texts.survey.characters_D.sum())))


def train_tokenizer(texts: Texts, folder: Path | str | None, kind: TrainedKind, size: int, least: int, lowercase: bool) -> Tokenizer:
    """Train a tokenizer on the training part, or take from `folder` the one that was trained on the same files with the same options.

    Args:
        texts: documents in three parts.
        folder: folder of the cache; None: no cache.
        kind: kind of tokens.
        size: size of the vocabulary.
        least: number of times that a token must occur.
        lowercase: lower-case the text first.
    """
    options = ["tokenizer", kind, size, least, lowercase]
    return Tokenizer.from_json(
        _noted(texts, folder, options, lambda: Tokenizer.train(texts.sample(), kind, size, least, lowercase).to_json())
    )


def _noted(texts: Texts, folder: Path | str | None, key: list[Any], make: Callable[[], Any]) -> Any:
    """Result of `make` for these texts, as plain values; of several processes one makes it, and the others wait."""
    if folder is None:
        return make()
    path = Path(folder) / f"{key[0]}-{hash_of(json.dumps([FORMAT, VERSION, key, texts.signature, texts.options]))[:16]}.json"
    with _writing(Path(folder)):
        if not path.exists():
            write_json(path, make())
    return read_json(path, LIMIT)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """The folder of a cache, which one process writes at a time."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder / "lock"):
            yield
    except OSError as wrong:
        raise CannotSave(f"cannot write the token cache {folder}: {wrong.strerror or wrong}; choose another folder") from wrong


@dataclass(frozen=True)
class TokenizedText:
    """Documents as ids, end to end; document i is `ids[starts[i] : starts[i + 1]]`, from BOS to EOS (a text split by position lacks EOS).

    Args:
        ids: ids of all documents.
        starts: first id of each document.
        bytes: size of the text in UTF-8.
        unknown: number of unknown tokens.
    """

    ids: npt.NDArray[Any]
    starts: npt.NDArray[np.int64]
    bytes: int  # size of the text in UTF-8
    unknown: int = 0  # number of unknown tokens

    @property
    def documents(self) -> int:
        return len(self.starts)

    @property
    def ends(self) -> npt.NDArray[np.int64]:
        return np.append(self.starts[1:], len(self.ids))

    def __len__(self) -> int:
        return len(self.ids)

    def first(self, count: int) -> TokenizedText:
        """The first tokens, with as large a share of the bytes."""
        if count >= len(self.ids):
            return self
        share, ids = count / len(self.ids), self.ids[:count]
        return TokenizedText(ids, self.starts[self.starts < count], round(share * self.bytes), round(share * self.unknown))

    @classmethod
    def of(cls, texts: list[str], tokenizer: Tokenizer) -> TokenizedText:
        """Tokenize documents in memory."""
        begin, end = tokenizer.begin_id, tokenizer.end_id
        rows = [[begin, *ids, end] for ids in tokenizer.encode_all(texts)]
        ids = np.array([i for row in rows for i in row], dtype=_dtype(tokenizer))
        starts = np.cumsum([0, *map(len, rows)])[:-1].astype(np.int64)
        return cls(ids, starts, sum(len(text.encode()) for text in texts), int((ids == tokenizer.unk_id).sum()))


def tokenize_texts(texts: Texts, tokenizer: Tokenizer, folder: Path | str) -> Splits[TokenizedText]:
    """The three parts of the texts as tokens: from the cache in `folder`, else tokenized and cached there.

    Args:
        texts: documents in three parts.
        tokenizer: tokenizer to use.
        folder: folder of the cache.
    """
    folder = Path(folder)
    key = {"tokenizer": hash_of(json.dumps(tokenizer.to_json())), "options": texts.options}
    signature = texts.signature
    for place in sorted(folder.glob("[!w]*/manifest.json")):  # not those being written: they will be renamed
        manifest = _manifest(place)
        if manifest and manifest["key"] == key and manifest["files"] == signature and _sound(place.parent, manifest):
            return _opened(place.parent, manifest)
    digest = texts.survey.digest
    final = folder / hash_of(json.dumps([FORMAT, VERSION, key, digest]))[:16]
    with _writing(folder):
        manifest = _manifest(final / "manifest.json")
        if manifest is None or not _sound(final, manifest):
            manifest = {"format": FORMAT, "format_version": VERSION, "key": key, "digest": digest, "files": signature}
            manifest["skipped"] = str(texts.skipped) if len(texts.skipped) else ""
            _make(texts, tokenizer, final, manifest)
        elif manifest["files"] != signature:  # the same text in files of other names or times
            manifest["files"] = signature
            _put(final / "manifest.json", manifest)
    return _opened(final, manifest)


def _make(texts: Texts, tokenizer: Tokenizer, final: Path, manifest: dict[str, Any]) -> None:
    writing = final.with_name(f"writing-{final.name}")
    for old in (*final.parent.glob("writing-*"), final):  # of other texts, as nobody else writes now; or damaged
        if old != writing:
            shutil.rmtree(old, ignore_errors=True)
    writing.mkdir(exist_ok=True)
    manifest["parts"] = _write(texts, tokenizer, writing)
    manifest["hashes"] = _hashes(writing)
    _put(writing / "manifest.json", manifest)
    (writing / PROGRESS).unlink(missing_ok=True)
    writing.rename(final)


def _put(path: Path, manifest: dict[str, Any]) -> None:
    draft = path.with_suffix(".writing")
    draft.write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    draft.replace(path)


def _write(texts: Texts, tokenizer: Tokenizer, folder: Path) -> dict[str, Any]:
    done, about = _progress(folder)
    writers = {part: _Writer(folder, part, tokenizer, about.get(part)) for part in PARTS}
    pace, since = Pace("tokenizing", texts.size), 0
    pace.done = sum(writer.about["bytes"] for writer in writers.values())
    try:
        for group in _ahead(_groups(islice(texts.pieces(), done, None))):
            for piece, ids in zip(group, tokenizer.encode_all([piece.text for piece in group]), strict=True):
                writers[piece.part].write(piece, ids)
                since += len(piece.text)
                pace.add(len(piece.text))
            done += len(group)
            if since >= SAVE:
                for writer in writers.values():
                    writer.flush()
                _put(folder / PROGRESS, {"pieces": done, "parts": {part: writer.about for part, writer in writers.items()}})
                since = 0
        return {part: writer.finish() for part, writer in writers.items()}
    finally:
        for writer in writers.values():
            writer.ids.close()
            writer.starts.close()


def _progress(folder: Path) -> tuple[int, dict[str, Any]]:
    """The pieces that are on disk already, and what their files hold: nothing if that cannot be told."""
    try:
        found = json.loads((folder / PROGRESS).read_text(encoding="utf-8"))
        parts = found["parts"]
        if all((folder / f"{part}.{name}").stat().st_size >= size for part in PARTS for name, size in _sizes(parts[part])):
            return int(found["pieces"]), parts
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return 0, {}


def _groups(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Pieces that are encoded together."""
    group, size = list[Piece](), 0
    for piece in pieces:
        group.append(piece)
        size += len(piece.text)
        if size >= AT_ONCE:
            yield group
            group, size = [], 0
    if group:
        yield group


def _ahead(groups: Iterator[list[Piece]]) -> Iterator[list[Piece]]:
    """Yield them, each read in a thread while the one before it is encoded."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, groups, None)
        while (group := coming.result()) is not None:
            coming = pool.submit(next, groups, None)
            yield group


class _Writer:
    """The two files of one part."""

    def __init__(self, folder: Path, part: Part, tokenizer: Tokenizer, about: dict[str, Any] | None = None):
        self.dtype, self.unk_id = _dtype(tokenizer), tokenizer.unk_id
        self.begin_id, self.end_id = tokenizer.begin_id, tokenizer.end_id
        fresh = {"tokens": 0, "documents": 0, "bytes": 0, "unknown": 0, "dtype": self.dtype.__name__}
        self.about: dict[str, Any] = fresh if about is None else about
        files = []
        for name, size in _sizes(self.about):
            file = (folder / f"{part}.{name}").open("ab")
            file.truncate(size)  # what was written after the last note of progress is written again
            files.append(file)
        self.ids, self.starts = files

    def write(self, piece: Piece, ids: list[int]) -> None:
        about = self.about
        if piece.begins:
            self.starts.write(np.int64(about["tokens"]).tobytes())
            about["documents"] += 1
        row = np.array([*[self.begin_id] * piece.begins, *ids, *[self.end_id] * piece.ends], dtype=self.dtype)
        self.ids.write(row.tobytes())
        about["tokens"] += len(row)
        about["bytes"] += len(piece.text.encode())
        about["unknown"] += int((row == self.unk_id).sum())

    def flush(self) -> None:
        for file in (self.ids, self.starts):
            file.flush()
            os.fsync(file.fileno())

    def finish(self) -> dict[str, Any]:
        self.flush()
        return self.about


def _sizes(about: dict[str, Any]) -> tuple[tuple[str, int], tuple[str, int]]:
    """The names of the two files of a part, and their sizes."""
    return ("ids", about["tokens"] * np.dtype(about["dtype"]).itemsize), ("starts", about["documents"] * 8)


def _hashes(folder: Path) -> dict[str, str]:
    found = {}
    for part in PARTS:
        for name in ("ids", "starts"):
            with (folder / f"{part}.{name}").open("rb") as file:
                found[f"{part}.{name}"] = hashlib.file_digest(file, "blake2b").hexdigest()
    return found


def _sound(folder: Path, manifest: dict[str, Any]) -> bool:
    """Return whether the files are those that were written: 0.8 s per gigabyte."""
    return _hashes(folder) == manifest.get("hashes")


def _dtype(tokenizer: Tokenizer) -> type[np.uint16] | type[np.uint32]:
    return np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32


def _manifest(path: Path) -> dict[str, Any] | None:
    """The manifest, if it is valid and the files beside it have the sizes it lists; else None."""
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if (manifest["format"], manifest["format_version"]) != (FORMAT, VERSION):
            return None
        for part in PARTS:
            for name, size in _sizes(manifest["parts"][part]):
                if (path.parent / f"{part}.{name}").stat().st_size != size:
                    return None
        return manifest if all(name in manifest for name in ("key", "digest", "files", "skipped")) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _opened(folder: Path, manifest: dict[str, Any]) -> Splits[TokenizedText]:
    def tokens(part: Part) -> TokenizedText:
        about = manifest["parts"][part]
        empty = not about["tokens"]  # an empty file cannot be mapped
        ids = np.zeros(0, dtype=about["dtype"]) if empty else np.memmap(folder / f"{part}.ids", dtype=about["dtype"], mode="r")
        return TokenizedText(ids, np.fromfile(folder / f"{part}.starts", dtype=np.int64), about["bytes"], about["unknown"])

    return Splits(tokens("train"), tokens("valid"), tokens("test"), manifest["skipped"], manifest["digest"])


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
