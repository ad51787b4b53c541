"""Files that a page has sent: the last few, in memory. On disk only while a task reads one, under a name that is ours and in a folder that is gone
afterwards: nothing of the name a user's file has ever reaches the file system."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ..errors import BadFile, RegardError, UnknownName

MAX_FILE = 16 * 2**20  # bytes
KEPT = 4
KINDS = {  # suffix: what such a file begins with
    ".png": b"\x89PNG\r\n\x1a\n",
    ".jpg": b"\xff\xd8\xff",
    ".gif": b"GIF8",
    ".webp": b"RIFF",
    ".bmp": b"BM",
    ".npy": b"\x93NUMPY",
}


class Uploads:
    """Files by a number that cannot be guessed."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[str, bytes]] = OrderedDict()

    def add(self, data: bytes) -> str:
        """Keep a file; its kind is told by its first bytes."""
        suffix = next((suffix for suffix, start in KINDS.items() if data.startswith(start)), None)
        if suffix is None:
            raise BadFile(f"the file is none that can be read here; expected an image or a clip: {', '.join(KINDS)}")
        number = secrets.token_hex(8)
        self._kept[number] = suffix, data
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return number

    @contextmanager
    def path(self, number: str) -> Iterator[str]:
        """Provide the file inside the `with`; errors do not name it."""
        if number not in self._kept:
            raise UnknownName("file", number, ())
        suffix, data = self._kept[number]
        with TemporaryDirectory(prefix="regard-") as folder:
            path = Path(folder) / f"file{suffix}"
            path.write_bytes(data)
            try:
                yield str(path)
            except RegardError as wrong:
                raise BadFile(str(wrong).replace(str(path), "the file")) from None
