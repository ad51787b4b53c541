"""Messages that programs installed on this machine show to their users, in English and in another language.

    gettext:fr        "%d files were deleted" → "%d fichiers ont été supprimés"

Catalogues are the `.mo` files of gettext, looked for below the data folders of the system (XDG_DATA_DIRS), of this Python,
and of its installed packages: `<anywhere>/fr/LC_MESSAGES/<program>.mo`; `fr` takes `fr` and `fr_FR`, `fr_CA` only itself.
What there is depends on the machine: keep `Parallel.digest` beside a result. More comes with `pip install django sphinx`.

Kept: messages with two letters in a row on both sides, that differ, of at most 60 words per side; of plurals the first form. Runs of white
space become one space; placeholders such as %(name)s and mnemonics such as _File stay as they are.
"""

from __future__ import annotations

import os
import re
import site
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import BadFile, MissingFile, NotSupported
from .splits import Row

MOST_WORDS = 60


def rows(text: str, part: Callable[[str], str]) -> list[Row]:
    """The distinct pairs of all catalogues of a language, in the order of programs' names."""
    if not re.fullmatch(r"[A-Za-z]{2,3}([_@][A-Za-z]+)*", text):
        raise NotSupported(f"{text!r}: give one language, as in gettext:fr or gettext:pt_BR; the other side is English")
    found = catalogues(text)
    if not found:
        raise MissingFile(f"no gettext catalogue for {text!r} on this machine; pip install django, or a language pack, brings some")
    made: dict[Row, None] = {}
    for path in found:
        try:
            for source, target in messages(path):
                source, target = " ".join(source.split()), " ".join(target.split())
                if _usable(source) and _usable(target) and source != target:
                    made[source, source, target] = None
        except BadFile:
            continue  # a damaged file of another program: the user need not repair it
    return list(made)


def catalogues(language: str, roots: list[Path] | None = None) -> list[Path]:
    """The .mo files of a language below the roots, sorted by program, then by path."""
    names = {language, f"{language}_{language.upper()}"}
    found = set()
    for root in _roots() if roots is None else roots:
        for folder, below, files in os.walk(root):
            below.sort()
            here = Path(folder)
            if here.name == "LC_MESSAGES" and here.parent.name.partition(".")[0] in names:
                found |= {(here / name).resolve() for name in files if name.endswith(".mo")}
    return sorted(found, key=lambda path: (path.name, path.as_posix()))


def _roots() -> list[Path]:
    shared = os.environ.get("XDG_DATA_DIRS") or os.pathsep.join(("/usr/local/share", "/usr/share"))
    folders = [Path(folder) / "locale" for folder in (*shared.split(os.pathsep), f"{sys.base_prefix}/share", f"{sys.prefix}/share")]
    packages = [Path(folder) for folder in (*site.getsitepackages(), site.getusersitepackages())]
    return [folder for folder in dict.fromkeys((*folders, *packages)) if folder.is_dir()]


def messages(path: Path) -> Iterator[tuple[str, str]]:
    """(English, translation) of one catalogue: a table of offsets, then strings; the entry of the empty message is the header.

    Not by Babel's `read_mo`: it decodes every catalogue as UTF-8, whatever charset the header names.
    """
    raw = path.read_bytes()
    try:
        order = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}[raw[:4]]
        _, count, originals, translations = struct.unpack_from(f"{order}4I", raw, 4)
        if count > len(raw) // 16:
            raise BadFile(f"{path}: its header says {count} messages, too many for {len(raw)} bytes")
        pairs = []
        for n in range(count):
            size, at = struct.unpack_from(f"{order}2I", raw, originals + 8 * n)
            size_t, at_t = struct.unpack_from(f"{order}2I", raw, translations + 8 * n)
            pairs.append((raw[at : at + size], raw[at_t : at_t + size_t]))
        header = dict(pairs).get(b"", b"").decode("ascii", "replace")
        named = re.search(r"charset=([\w.:-]+)", header)
        charset = named[1] if named else "utf-8"
        for source, target in pairs:
            if source:
                source = source.rpartition(b"\x04")[2]  # without its context
                yield source.partition(b"\0")[0].decode(charset), target.partition(b"\0")[0].decode(charset)
    except (KeyError, struct.error, LookupError, UnicodeDecodeError) as wrong:
        raise BadFile(f"{path}: not a gettext catalogue: {wrong!r}") from wrong


def _usable(text: str) -> bool:
    return "\0" not in text and re.search(r"[^\W\d_]{2}", text) is not None and len(text.split()) <= MOST_WORDS
