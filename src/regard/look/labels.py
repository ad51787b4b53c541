"""Names of rows and columns: given by the user, put together from pieces of words."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from ..errors import ShapeError

Labels = tuple[tuple[str, ...], ...]  # one line for all batch rows, or one a batch row; empty if nobody gave any


def lines(words: Seq[str] | Seq[Seq[str]], positions: tuple[int, ...], size: int, what: str) -> Labels:
    """Names of `positions`, out of names for all `size`; rows of a padded batch may have fewer."""
    single = all(isinstance(word, str) for word in words)
    rows: list[Seq[str]] = [words] if single else [[w] if isinstance(w, str) else w for w in words]  # type: ignore[list-item]
    longest = max(map(len, rows), default=0)
    if longest != size:
        raise ShapeError(f"{what} need {size} labels, one a position; got {longest}")
    return tuple(tuple(str(row[p]) if p < len(row) else "" for p in positions) for row in rows)


def line_of(labels: Labels, batch: int, positions: tuple[int, ...]) -> list[str]:
    return list(labels[batch if len(labels) > 1 else 0]) if labels else [str(p) for p in positions]


def glued(line: tuple[str, ...], words: list[int], order: tuple[int, ...]) -> tuple[str, ...]:
    pieces = {word: "".join(_bare(piece) for piece, n in zip(line, words, strict=True) if n == word) for word in order}
    return tuple(pieces[word] for word in order)


_BEGINS, _GOES_ON = ("▁", "Ġ"), "##"  # SentencePiece, byte-level BPE; WordPiece


def _bare(piece: str) -> str:
    return piece.lstrip("▁Ġ").removeprefix(_GOES_ON).removesuffix("@@") or piece


def word_numbers(pieces: Seq[str]) -> list[int]:
    """The number of the word each piece belongs to, by the marks tokenisers leave: ▁word, Ġword, ##piece, piece@@.

    Pieces without any such mark in the whole text are words of their own.
    """
    marked = any(piece.startswith(_BEGINS) for piece in pieces)
    numbers: list[int] = []
    for n, piece in enumerate(pieces):
        before = pieces[n - 1] if n else ""
        special = any(len(p) > 2 and (p[0], p[-1]) in {("<", ">"), ("[", "]")} for p in (piece, before))
        goes_on = piece.startswith(_GOES_ON) or before.endswith("@@") or (marked and not piece.startswith(_BEGINS) and not special)
        numbers.append(0 if not n else numbers[-1] + (0 if goes_on else 1))
    return numbers
