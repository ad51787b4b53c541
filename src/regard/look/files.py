"""Maps on disk: `name.safetensors` with `name.json` beside it, or all in one `name.npz`. Never pickle.

The JSON, format_version 1 (inside an .npz it is the array `json`, its UTF-8 bytes):

    {"format": "regard.maps", "format_version": 1, "maps": [
        {"tensor": "0", "layer": "blocks.0.attention", "mechanism": "softmax", "call": 0, "run": 0, "heads": [0, 1], "rows": [0, 1, 2],
         "columns": [0, 1, 2], "queries": 3, "normalised": true, "pattern": "causal", "stream": null,
         "query_labels": [["a", "b", "c"]], "key_labels": [], "layout": {"kind": "sequence"}}]}

`tensor` names an array (batch, heads, rows, columns) of float16, float32 or float64. Maps stand in order of time.
"""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import BadFile, RegardError
from .layouts import from_json, to_json
from .maps import Map, Maps

VERSION = 1
_PLAIN = {"layer": str, "mechanism": str, "pattern": str, "call": int, "run": int, "queries": int, "normalised": bool}
_NUMBERS = ("heads", "rows", "columns")
_LABELS = ("query_labels", "key_labels")


def save(maps: Maps, path: str | Path) -> Path:
    """Write by suffix."""
    path = _known(path)
    arrays = {str(n): m.weights_BHLM.contiguous() for n, m in enumerate(maps.all)}
    described = {"format": "regard.maps", "format_version": VERSION, "maps": [_describe(n, m) for n, m in enumerate(maps.all)]}
    text = json.dumps(described, ensure_ascii=False)
    if path.suffix == ".npz":
        inside = {"json": np.frombuffer(text.encode(), dtype=np.uint8), **{name: x.numpy() for name, x in arrays.items()}}
        np.savez_compressed(path, **inside)  # type: ignore[arg-type]
    else:
        from safetensors.torch import save_file

        save_file(arrays, path, metadata={"format": "regard.maps"})
        path.with_suffix(".json").write_text(text, encoding="utf-8")
    return path


def load(path: str | Path) -> Maps:
    """Read by suffix; a file that is not what it should be is refused with the reason."""
    path = _known(path)
    if not path.exists():
        raise FileNotFoundError(f"no such file: {path}")
    text, arrays = _read_npz(path) if path.suffix == ".npz" else _read_pair(path)
    try:
        described = json.loads(text)
    except ValueError as wrong:
        raise BadFile(f"{path}: the description is not JSON: {wrong}") from wrong
    if not isinstance(described, dict) or described.get("format") != "regard.maps" or not isinstance(described.get("maps"), list):
        raise BadFile(f'{path}: the description lacks "format": "regard.maps" or its list "maps"')
    if described.get("format_version") != VERSION:
        raise BadFile(f"{path}: format_version {described.get('format_version')!r}; this regard reads {VERSION}")
    return Maps([_map(f"{path}, map {n}", entry, arrays) for n, entry in enumerate(described["maps"])])


def _known(path: str | Path) -> Path:
    if Path(path).suffix not in (".npz", ".safetensors"):
        raise BadFile(f"{path}: maps are kept as .safetensors (with .json beside it) or .npz; end the name with one of them")
    return Path(path)


def _read_npz(path: Path) -> tuple[str, dict[str, Tensor]]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as inside:  # numpy leaves a broken file open
            arrays = {name: inside[name] for name in inside.files}
        text = arrays.pop("json").tobytes().decode()
        return text, {name: torch.from_numpy(x) for name, x in arrays.items()}
    except KeyError as wrong:
        raise BadFile(f"{path}: there is no array called json inside, so it was not written by Maps.save") from wrong
    except (
        OSError,
        ValueError,
        TypeError,
        AttributeError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
        NotImplementedError,
    ) as wrong:
        raise BadFile(f"{path}: not a whole .npz of plain arrays: {wrong}") from wrong


def _read_pair(path: Path) -> tuple[str, dict[str, Tensor]]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    beside = path.with_suffix(".json")
    if not beside.exists():
        raise BadFile(f"{path}: {beside.name}, which says what the weights are, is not beside it")
    try:
        return beside.read_text(encoding="utf-8"), load_file(path)
    except UnicodeDecodeError as wrong:
        raise BadFile(f"{beside}: not UTF-8: {wrong}") from wrong
    except (SafetensorError, ValueError) as wrong:
        raise BadFile(f"{path}: not a whole safetensors file: {wrong}") from wrong


def _describe(number: int, m: Map) -> dict[str, Any]:
    plain = {name: getattr(m, name) for name in (*_PLAIN, *_NUMBERS, *_LABELS, "stream")}
    return {"tensor": str(number), **plain, "layout": to_json(m.layout)}


def _map(where: str, entry: Any, arrays: dict[str, Tensor]) -> Map:
    if not isinstance(entry, dict):
        raise BadFile(f"{where}: expected an object, got {type(entry).__name__}")
    for name, kind in _PLAIN.items():
        if type(entry.get(name)) is not kind:
            raise BadFile(f"{where}: {name} must be {kind.__name__}, got {entry.get(name)!r}")
    for name in _NUMBERS:
        _expect(where, name, entry.get(name), int)
    for name in _LABELS:
        _expect(where, name, entry.get(name), list)
        for line in entry[name]:
            _expect(where, name, line, str)
    if entry.get("stream") is not None and type(entry["stream"]) is not int:
        raise BadFile(f"{where}: stream must be a whole number or null, got {entry['stream']!r}")
    weights = arrays.get(str(entry.get("tensor")))
    if weights is None:
        raise BadFile(f"{where}: its tensor {entry.get('tensor')!r} is not in the file, which holds {', '.join(sorted(arrays)) or 'none'}")
    if weights.dtype not in (torch.float16, torch.float32, torch.float64):
        raise BadFile(f"{where}: weights are float16, float32 or float64, not {weights.dtype}")
    if any(p < 0 or p >= entry["queries"] for p in entry["rows"]) or any(p < 0 for p in entry["columns"]):
        raise BadFile(f"{where}: rows and columns are positions, rows below queries = {entry['queries']}")
    try:
        fields: dict[str, Any] = {name: entry.get(name) for name in (*_PLAIN, "stream")}
        fields |= {name: tuple(entry[name]) for name in _NUMBERS}
        fields |= {name: tuple(map(tuple, entry[name])) for name in _LABELS}
        return Map(**fields, weights_BHLM=weights, layout=from_json(entry.get("layout")))
    except RegardError as wrong:
        raise BadFile(f"{where}: {wrong}") from wrong


def _expect(where: str, name: str, value: Any, kind: type) -> None:
    if not isinstance(value, list) or any(type(item) is not kind for item in value):
        raise BadFile(f"{where}: {name} must be a list of {kind.__name__}, got {str(value)[:60]}")
