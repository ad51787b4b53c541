"""Labels of rows and columns: given by the user, merged from sub-word tokens."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from ..errors import ShapeError

Labels = tuple[tuple[str, ...], ...]  # one line for all batch rows, or one per batch row; empty without labels
Words = Seq[str] | Seq[Seq[str]]  # as users give them: one list for all batch rows, or one per batch row


def lines(words: Words, positions: tuple[int, ...], size: int, what: str) -> Labels:
    """The labels of `positions`, out of labels for all `size`; rows of a padded batch may have fewer."""
    single = all(isinstance(word, str) for word in words)
    rows: list[Seq[str]] = [words] if single else [[w] if isinstance(w, str) else w for w in words]  # type: ignore[list-item]
    longest = max(map(len, rows), default=0)
    if longest != size:
        raise ShapeError(f"{what}: got {longest} labels; expected {size}, one per position")
    return tuple(tuple(str(row[p]) if p < len(row) else "" for p in positions) for row in rows)


def batch_labels(labels: Labels, batch: int, positions: tuple[int, ...]) -> list[str]:
    """The labels of one batch row; positions where there are none."""
    return list(labels[batch if len(labels) > 1 else 0]) if labels else [str(p) for p in positions]


def join_pieces(pieces: tuple[str, ...], words: list[int], order: tuple[int, ...]) -> tuple[str, ...]:
    """The words in `order`, spelled out of sub-word tokens, of which `words` are the word numbers."""
    spelled = {word: "".join(_strip_marks(piece) for piece, n in zip(pieces, words, strict=True) if n == word) for word in order}
    return tuple(spelled[word] for word in order)


_WORD_START, _CONTINUES = ("▁", "Ġ"), "##"  # SentencePiece and byte-level BPE; WordPiece


def _strip_marks(piece: str) -> str:
    return piece.lstrip("▁Ġ").removeprefix(_CONTINUES).removesuffix("@@") or piece


def word_numbers(pieces: Seq[str]) -> list[int]:
    """The number of the word that each sub-word token belongs to, by the marks of tokenizers: ▁word, Ġword, ##piece, piece@@.

    If no token of the text has such a mark, each is a word of its own.

    Args:
        pieces: sub-word tokens as text.
    """
    marked = any(piece.startswith(_WORD_START) for piece in pieces)
    numbers: list[int] = []
    for n, piece in enumerate(pieces):
        before = pieces[n - 1] if n else ""
        special = any(len(p) > 2 and (p[0], p[-1]) in {("<", ">"), ("[", "]")} for p in (piece, before))
        continues = piece.startswith(_CONTINUES) or before.endswith("@@") or (marked and not piece.startswith(_WORD_START) and not special)
        numbers.append(0 if not n else numbers[-1] + (0 if continues else 1))
    return numbers
