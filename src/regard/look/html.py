"""The explorer as one HTML file: scripts and styles inside, data as base64, no request to anywhere.

The scripts are ES modules that import each other by relative path. `bundle` joins them in order of their imports, which a file:// page and a
notebook widget need; the server serves them as they are.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import NotSupported
from .explorer import Recording, document
from .tiles import TILE, TileReader

EXACT = 32 * 2**20  # bytes of exact weights in a file; larger maps are stored as tiles only, which are exact to 1/510 of a tile's range
LARGEST = 256 * 2**20  # bytes of a file before compression
NO_GRADIENTS = (
    "This file was written without gradients: regard look … --html FILE --gradients adds them, in Python save_html(…, gradients=True)."
)
STATIC = files(__package__).joinpath("static")
_IMPORT = re.compile(r'^import (?:\{[^}]*\} from )?"\./([\w-]+\.js)";\n', re.MULTILINE)


@cache
def static_file(name: str) -> bytes:
    """A file of the page."""
    return STATIC.joinpath(name).read_bytes()


def static_names() -> list[str]:
    """All files of the page."""
    return sorted(path.name for path in STATIC.iterdir() if path.name.endswith((".js", ".css", ".html")))


def bundle(entry: str) -> str:
    """A module and everything it imports as one script."""
    seen: dict[str, str] = {}

    def add(name: str) -> None:
        if name not in seen:
            seen[name] = ""
            source = static_file(name).decode()
            for needed in _IMPORT.findall(source):
                add(needed)
            del seen[name]  # after what it needs
            seen[name] = re.sub(r"^export (?!default)", "", _IMPORT.sub("", source), flags=re.MULTILINE)

    add(entry)
    return "\n".join(seen.values())


def pack(recordings: list[Recording], title: str = "", gradients: bool = False) -> bytes:
    """Header and pieces in one block, compressed: 4 bytes of header size, the header, the pieces. `index` says where each one is.

    With `gradients`, those of all outputs that have any.
    """
    pieces = bytearray()
    index: dict[str, list[int]] = {}
    exact = sum(4 * r.heads * r.rows * r.columns for recording in recordings for r in recording.readers) <= EXACT

    def refuse() -> None:
        raise NotSupported(
            f"a page of more than {LARGEST >> 20} MiB; capture fewer layers or heads, or serve it: regard look RUN without a text"
        )

    def add(recording: Recording, key: str, data: bytes | None = None) -> None:
        data = recording.piece(key) if data is None else data
        index[f"{recording.id}/{key}"] = [len(pieces), len(data)]
        pieces.extend(data)
        if len(pieces) > LARGEST:
            refuse()

    tiles = ((r, 2 if r.pattern() is not None else 1) for recording in recordings for r in recording.readers)
    if sum(kinds * r.heads * r.rows * r.columns for r, kinds in tiles) > LARGEST:  # before anything is computed: a byte per weight at least
        refuse()
    for recording in recordings:
        for number, reader in enumerate(recording.readers):
            add(recording, f"statistics/{number}")
            for head in range(reader.heads):
                _add_head(add, recording, reader, number, head, exact)
    described = document(recordings, title)
    for recording, capture in zip(recordings, described["captures"], strict=True):
        if gradients:
            recording.read_gradients()
        for number, one in enumerate(capture["maps"]):
            for i in range(one["rows"]) if gradients and one["outputs"] is not None else ():
                add(recording, f"gradients/{number}/{i}")
            if not gradients:
                one["outputs"] = None
        if not gradients:
            capture.setdefault("no_gradients", NO_GRADIENTS)
    header = json.dumps({**described, "exact": exact, "index": index}, ensure_ascii=False).encode()
    return zlib.compress(len(header).to_bytes(4, "little") + header + pieces, 6)


def _add_head(add: Any, recording: Recording, reader: TileReader, number: int, head: int, exact: bool) -> None:
    add(recording, f"maxima/{number}/{head}")
    for level in range(reader.levels):
        side = TILE << level
        for i in range(-(-reader.rows // side)):
            for j in range(-(-reader.columns // side)):
                add(recording, f"tile/{number}/{head}/{level}/{i}/{j}")
                if reader.pattern() is not None:
                    add(recording, f"allowed/{number}/{head}/{level}/{i}/{j}")
    if exact:
        add(
            recording,
            f"values/{number}/{head}",
            b"".join(recording.piece(f"values/{number}/{head}/{i}/{i + 1}") for i in range(reader.rows)),
        )
        if reader.map.inputs is not None and head < len(reader.map.heads):
            for kind in ("queries", "keys", "norms"):
                add(recording, f"{kind}/{number}/{head}")


def page(recordings: list[Recording], title: str = "", gradients: bool = False) -> str:
    """The whole file."""
    script, style = bundle("file.js"), static_file("style.css").decode()
    data = base64.b64encode(pack(recordings, title, gradients)).decode()
    allow = f"default-src 'none'; script-src {script_hash(script)}; style-src {script_hash(style)}; img-src data: blob:"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{allow}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>regard explorer</title>\n'
        f'<style>{style}</style>\n</head>\n<body class="rx-page">\n<main id="explorer"></main>\n'
        f'<script type="application/octet-stream" id="data">{data}</script>\n<script type="module">{script}</script>\n</body>\n</html>\n'
    )


def save_html(recordings: list[Recording], path: str | Path, title: str = "", gradients: bool = False) -> Path:
    """Write the page."""
    Path(path).write_text(page(recordings, title, gradients), encoding="utf-8", newline="\n")
    return Path(path)


def script_hash(text: str) -> str:
    """A script or style as a content security policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
