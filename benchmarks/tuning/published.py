"""Published sets of labelled texts as TSV files, which is what users have."""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="published-"))


def _write(name: str, rows: Iterable[tuple[str, ...]]) -> str:
    path = _folder() / f"{name}.tsv"
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def _labelled(path: Path) -> list[tuple[str, ...]]:
    """Lines `label text` of Kim's sets, as (text, label)."""
    with gzip.open(path, "rt", encoding="latin-1") as file:
        return [(text.strip(), label) for label, _, text in (line.rstrip("\n").partition(" ") for line in file)]


def sst2(data: Path) -> dict[str, Any]:
    folder = data / "sentence-classification"
    train, valid = (_write(f"sst2-{part}", _labelled(folder / f"stsa.binary.{part}.gz")) for part in ("train", "dev"))
    return {"data": train, "valid": valid, "shares": (0.0, 0.0)}


def trec(data: Path) -> dict[str, Any]:
    """There is no validation part: a tenth of the training part."""
    return {"data": _write("trec-train", _labelled(data / "sentence-classification" / "TREC.train.all.gz")), "shares": (0.1, 0.0)}


def sick(data: Path) -> dict[str, Any]:
    return {"data": pairs_file("train", data), "valid": pairs_file("trial", data), "shares": (0.0, 0.0)}


def labelled_file(name: str, path: Path) -> str:
    """One of Kim's sets as a TSV file."""
    return _write(name, _labelled(path))


def pairs_file(part: str, data: Path) -> str:
    """A part of SICK as a TSV file: premise, hypothesis, label."""
    with gzip.open(data / "sick" / f"SICK_{part}.txt.gz", "rt", encoding="utf-8") as file:
        head, *rows = [line.rstrip("\r\n").split("\t") for line in file]
    at = [head.index(name) for name in ("sentence_A", "sentence_B", "entailment_judgment")]
    return _write(f"sick-{part}", [tuple(row[n] for n in at) for row in rows])
