"""Documents in a folder per class: the name of the folder is the label, and a file is a document.

    reviews/pos/0_9.txt  reviews/neg/7_2.txt                the parts are held out by a hash of the text
    reviews/train/pos/0_9.txt  reviews/test/pos/3_8.txt     training and test part (also val or valid)

Files end in .txt or have no suffix, and are UTF-8. Folders inside that of a class belong to it. Texts without a label, in a folder called
unsup as IMDB has one, are left out. Links to files are followed, links to folders inside a class are not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from .. import files
from ..errors import BadFile, MissingFile
from .lines import Fault, as_text
from .pace import Pace
from .splits import PART_NAMES

SUFFIXES = (".txt", "")
UNLABELLED = ("unsup", "unlabelled", "unlabeled")


def part_folders(folder: Path) -> dict[str, Path]:
    """The folders of its parts: train, and perhaps valid and test; or itself as the training part."""
    inside = {path.name.lower(): path for path in sorted(folder.iterdir()) if path.is_dir()}
    found = {part: inside[name] for part, names in PART_NAMES.items() for name in names[::-1] if name in inside}
    return found if "train" in found else {"train": folder}


def read_classes(folder: Path, longest: int) -> Iterator[tuple[str, str] | Fault]:
    """(text, label) of each file, class by class in the order of their names; one of more than `longest` bytes is a fault."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not classes:
        raise BadFile(f"{folder}: no folders in it; expected a folder of .txt files per class, or the name of a file")
    pace = Pace("reading documents")
    for one in classes:
        if one.name.lower() in UNLABELLED:
            yield Fault(str(one), "folder of texts without labels", harmless=True)
            continue
        paths = sorted(_files(one))
        if not paths:
            yield Fault(str(one), "class without documents", "", "add .txt files, or remove the folder")
        for path in paths:
            found = _document(path, longest)
            pace.add(len(found) if isinstance(found, str) else 0)
            yield found if isinstance(found, Fault) else (found, one.name)


def _files(folder: Path) -> Iterator[Path]:
    for where, _, names in os.walk(folder):
        yield from (Path(where, name) for name in names if Path(name).suffix.lower() in SUFFIXES and not name.startswith("."))


def _document(path: Path, longest: int) -> str | Fault:
    """The text, line by line without the white space around its lines."""
    try:
        body = files.read(path, longest)
    except (BadFile, MissingFile) as wrong:
        return Fault(str(path), "cannot be read", str(wrong).removeprefix(f"{path}: "), "remove it")
    text = as_text(body.removeprefix(b"\xef\xbb\xbf"), str(path))
    if isinstance(text, Fault):
        return text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return "\n".join(line for line in lines if line) or Fault(str(path), "empty document", "", "remove it")
