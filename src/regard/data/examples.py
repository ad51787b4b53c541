"""Labelled examples: a text or a pair of texts with a label, or words with a label each.

    read_labelled("reviews.tsv")                            text, label; text, text, label; or named by a header line
    read_labelled("reviews.tsv", fields=("3", "1"))         the third column is the text, the first the label
    read_labelled("nli.jsonl", fields=("premise", "hypothesis", "gold_label"))
    read_labelled("TREC.train.all")                         lines without a tab: the label, a space, the text
    read_labelled("aclImdb")                                a folder of texts per class, perhaps below train and test (`documents`)
    read_labelled("facts:count=500")                        generated sentences, see `facts`; read_tagged takes it, too
    read_tagged("ner.tsv")                                  a word, a tab or space, its label; a blank line ends a sentence (CoNLL)
    read_tagged("ner.jsonl", fields=("tokens", "tags"))     an object per sentence, two lists of the same length

Also .csv and .parquet, and hf:folder, a dataset of the `datasets` library. Text files may end in .gz or .xz. The last field is the label; of two columns without names the
first, if it repeats itself and the second does not. Without `fields`, common names are tried (`NAMES`). Malformed lines stop or
are skipped as in `regard.data.read_pairs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from ..errors import BadFile, NotSupported
from .arrow import is_dataset
from .documents import part_folders, read_classes
from .facts import is_facts, labelled_facts, tagged_facts
from .lines import CSV, LONGEST, OBJECTS, Fault, Policy, cells, every_line, no_text, objects, plain_suffix, reach, unwritable
from .splits import SHARES, Splits, read_splits

NAMES = (  # of the first text, the second, and the label; case-insensitive
    ("text", "sentence", "text1", "text_a", "sentence1", "sentence_a", "premise", "question", "question1", "review", "content"),
    ("text2", "text_b", "sentence2", "sentence_b", "hypothesis", "answer", "question2"),
    ("label", "gold_label", "class", "category", "sentiment", "entailment_judgment"),
)
SAMPLE = 200  # rows that show which column is the label
WORDS, TAGS = ("tokens", "words"), ("tags", "labels", "ner_tags", "pos_tags")


class Labelled(NamedTuple):
    """One text or two, and their label."""

    texts: tuple[str, ...]
    label: str


class Tagged(NamedTuple):
    """The words of a sentence, and a label per word."""

    words: tuple[str, ...]
    labels: tuple[str, ...]


def read_labelled(
    path: str | Path, *, valid: str | Path | None = None, test: str | Path | None = None, fields: Sequence[str] = (), on_error: Policy = "stop",
    longest: int = 1 << 20, shares: tuple[float, float] = SHARES, unlabelled: bool = False,
) -> Splits[list[Labelled]]:  # fmt: skip
    """Texts with a label each, in three parts; a part without a file is split off by a hash of the text.

    Args:
        path: file, folder or embedded data, to train on.
        valid: validation file; None: split off.
        test: test file; None: split off.
        fields: names or numbers of the columns: one or two texts, and the label last; empty: found by their usual names.
        on_error: stop, or skip lines that cannot be used.
        longest: bytes of the longest line.
        shares: shares of the validation and the test part, where they are split off.
        unlabelled: a label may be empty.
    """
    if len(fields) == 1 or len(fields) > 3:
        raise NotSupported(f"fields {tuple(fields)}: give one or two of texts, and the label last, as in --fields text label")

    def found(one: str | Path) -> Iterator[Labelled | Fault]:
        if is_facts(str(one)):
            return (Labelled((sentence,), label) for sentence, label in labelled_facts(str(one).partition(":")[2]))
        if not is_dataset(one) and Path(one).is_dir():
            return _classes(Path(one), fields, longest)
        return _labelled_objects(one, fields, longest) if _has_names(one) else _table(Path(one), fields, longest, unlabelled, notes)

    unit, notes = "line", list[str]()
    if not is_dataset(path) and Path(path).is_dir():
        unit, parts = "document", part_folders(Path(path))
        if valid or test or shares != (0.0, 0.0):  # else nothing is held out
            path, valid, test = parts["train"], valid or parts.get("valid"), test or parts.get("test")
    read = read_splits(found, path, valid, test, on_error, shares, lambda one: "\t".join(one.texts), unit)
    return replace(read, note="; ".join(dict.fromkeys(notes)))


def _classes(folder: Path, fields: Sequence[str], longest: int) -> Iterator[Labelled | Fault]:
    """All documents below a folder, those of its parts one after another."""
    if fields:
        raise NotSupported(
            f"fields {tuple(fields)}: {folder} is a folder, whose files are the texts and whose folders the labels; omit --fields"
        )
    for one in part_folders(folder).values():
        for found in read_classes(one, longest):
            yield found if isinstance(found, Fault) else Labelled((found[0],), found[1])


def read_tagged(
    path: str | Path, *, valid: str | Path | None = None, test: str | Path | None = None, fields: Sequence[str] = (), on_error: Policy = "stop",
    longest: int = LONGEST, shares: tuple[float, float] = SHARES,
) -> Splits[list[Tagged]]:  # fmt: skip
    """Sentences with a label per word, in three parts; a part without a file is split off by a hash of the sentence.

    Args:
        path: file, folder or embedded data, to train on.
        valid: validation file; None: split off.
        test: test file; None: split off.
        fields: names of the words and of their labels, in files with named fields; empty: the usual ones.
        on_error: stop, or skip lines that cannot be used.
        longest: bytes of the longest line.
        shares: shares of the validation and the test part, where they are split off.
    """
    if len(fields) not in (0, 2):
        raise NotSupported(f"fields {tuple(fields)}: give that of the words and that of their labels, as in --fields tokens tags")

    def found(one: str | Path) -> Iterator[Tagged | Fault]:
        if is_facts(str(one)):
            return (Tagged(*sentence) for sentence in tagged_facts(str(one).partition(":")[2]))
        return _tagged_objects(one, fields, longest) if _has_names(one) else _conll(Path(one), fields, longest)

    return read_splits(found, path, valid, test, on_error, shares, lambda one: " ".join(one.words))


def _has_names(path: str | Path) -> bool:
    """Return whether its fields have names in every row."""
    return is_dataset(path) or plain_suffix(Path(path)) in OBJECTS


def _table(path: Path, fields: Sequence[str], longest: int, unlabelled: bool, notes: list[str]) -> Iterator[Labelled | Fault]:
    columns: list[int] | None = [int(name) - 1 for name in fields] if fields and all(name.isdecimal() for name in fields) else None
    if columns and min(columns) < 0:
        raise NotSupported(f"fields {tuple(fields)}: columns are counted from 1")
    spaced, rows = False, cells(path, longest)
    first = list(islice(rows, SAMPLE))
    for where, row in chain(first, rows):
        if isinstance(row, Fault):
            yield row
            continue
        if columns is None:  # the first line decides
            named = _named(row, fields)
            if fields and named is None:
                header = ", ".join(map(repr, row))[:200]
                raise BadFile(f"{where}: no columns called {', '.join(map(repr, fields))}; the header has {header}")
            if named is None and len(row) > 3:
                raise BadFile(
                    f"{where}: {len(row)} columns, and no header that names a text and a label; say which they are by number, "
                    "as in --fields 2 4"
                )
            spaced = named is None and len(row) == 1 and plain_suffix(path) != CSV
            label_first = named is None and _label_first(first)
            columns = named or ([1, 0] if label_first else [0, 1, 2][: max(2, min(len(row), 3))])
            if label_first:
                notes.append(
                    f"{path}: the first column is taken for the label ({row[0][:40]!r} in the first line); --fields 1 2 takes it for the text"
                )
            if named:
                continue
        if spaced:
            label, _, rest = row[0].partition(" ")
            row, columns = [rest.strip(), label], [0, 1]
        if len(row) <= max(columns):
            yield Fault(
                where,
                "too few columns",
                f"{len(row)}, expected at least {max(columns) + 1}",
                f"separate text and label by a {'comma' if plain_suffix(path) == CSV else 'tab'}",
            )
        elif not all(row[c] for c in (columns[:-1] if unlabelled else columns)):
            yield Fault(where, "empty column")
        else:
            yield Labelled(tuple(row[c] for c in columns[:-1]), row[columns[-1]])


def _label_first(rows: list[tuple[str, list[str] | Fault]]) -> bool:
    """Return whether two columns are the label, then the text: the first repeats itself, the second hardly does."""
    found = [row for _, row in rows if isinstance(row, list)]
    if len(found) < 8 or any(len(row) != 2 for row in found):
        return False
    first, second = ({row[n] for row in found} for n in (0, 1))
    return 2 * len(first) <= len(found) < 2 * len(second)


def _named(cells: list[str], fields: Sequence[str]) -> list[int] | None:
    """The columns that a header line names, if it is one."""
    if fields:
        return [cells.index(name) for name in fields] if all(name in cells for name in fields) else None
    lower = [cell.lower() for cell in cells]
    found = [next((lower.index(name) for name in names if name in lower), None) for names in NAMES]
    return [c for c in found if c is not None] if found[0] is not None and found[2] is not None else None


def _labelled_objects(path: str | Path, fields: Sequence[str], longest: int) -> Iterator[Labelled | Fault]:
    for where, described in objects(path, longest):
        if isinstance(described, Fault):
            yield described
            continue
        chosen = fields
        if not chosen and isinstance(described, dict):
            by_lower = {str(key).lower(): key for key in described}
            chosen = [by_lower[name] for names in NAMES if (name := next((n for n in names if n in by_lower), None))]
        values = [reach(described, name) for name in chosen]
        if values and isinstance(values[-1], list) and all(isinstance(name, str) for name in values[-1]):
            values[-1] = "|".join(values[-1])
        lacking = [name for name, text in zip(chosen[:-1], values, strict=False) if not isinstance(text, str) or not text.strip()]
        if len(chosen) < 2 or lacking or not isinstance(values[-1], str | int | float):
            wrong = lacking[0] if lacking else chosen[-1] if len(chosen) > 1 else "text or label"
            yield no_text(where, wrong, described, "name the fields, texts first and the label last")
            continue
        texts = tuple(" ".join(text.split()) for text in values[:-1])
        yield next((fault for text in texts if (fault := unwritable(where, text))), Labelled(texts, str(values[-1])))


def _conll(path: Path, fields: Sequence[str], longest: int) -> Iterator[Tagged | Fault]:
    if not all(name.isdecimal() and int(name) for name in fields):
        raise NotSupported(f"fields {tuple(fields)}: {path} has columns without names; give their numbers, from 1, as in --fields 1 4")
    columns = [int(name) - 1 for name in fields] if fields else [0, -1]
    words, labels = list[str](), list[str]()
    for where, line, _ in every_line(path, longest):
        if isinstance(line, Fault):
            yield line
        elif not line.strip() or line.startswith("-DOCSTART-"):
            if words:
                yield Tagged(tuple(words), tuple(labels))
            words, labels = [], []
        else:
            cells = line.split("\t") if "\t" in line else line.split()
            cells = [cell.strip() for cell in cells]
            if len(cells) <= max(max(columns), 1) or not cells[columns[0]] or not cells[columns[1]]:
                yield Fault(where, "no word with a label", line[:40], "write a word, a tab and its label")
                continue
            words.append("_".join(cells[columns[0]].split()))
            labels.append(cells[columns[1]])
    if words:
        yield Tagged(tuple(words), tuple(labels))


def _tagged_objects(path: str | Path, fields: Sequence[str], longest: int) -> Iterator[Tagged | Fault]:
    for where, described in objects(path, longest):
        if isinstance(described, Fault):
            yield described
            continue
        first, second = ((fields[0],), (fields[1],)) if fields else (WORDS, TAGS)
        words, labels = (
            next((found for name in names if (found := reach(described, name)) is not None), None) for names in (first, second)
        )
        if not isinstance(words, list) or not isinstance(labels, list) or len(words) != len(labels) or not words:
            yield Fault(where, "no two lists of the same length", f"{first[0]!r} and {second[0]!r}", "name the two fields")
        elif not all(isinstance(word, str) and word.strip() for word in words):
            yield Fault(where, "an empty word")
        else:
            joined = tuple("_".join(word.split()) for word in words)
            yield unwritable(where, " ".join(joined)) or Tagged(joined, tuple(map(str, labels)))
