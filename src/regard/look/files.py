"""Maps on disk: `name.safetensors` with `name.json` beside it, or a single `name.npz`. Never pickle.

The JSON, format_version 1 (inside an .npz it is the array `json`, its UTF-8 bytes):

    {"format": "regard.maps", "format_version": 1, "maps": [
        {"tensor": "0", "layer": "blocks.0.attention", "mechanism": "softmax", "call": 0, "run": 0, "heads": [0, 1], "rows": [0, 1, 2],
         "columns": [0, 1, 2], "queries": 3, "normalised": true, "pattern": "causal", "stream": null,
         "query_labels": [["a", "b", "c"]], "key_labels": [], "layout": {"kind": "sequence"}}]}

`tensor` names an array (batch, heads, rows, columns) of float16, float32 or float64. Maps are in order of time. `heads` may be -1, the
mean of heads. Labels are one list for all batch rows, one list per batch row, or none. `query_values` and `key_values`, if there are any, are a name
and a number per label, as in ["p_gen", [0.1, 0.9, 0.8]]. Layouts besides sequence:

    {"kind": "grid", "rows": 14, "columns": 14, "prefix_tokens": 1, "frames": 1}    {"kind": "tree", "spans": [[0, 3], [3, 7]]}
    {"kind": "graph", "edges": [[1, 0], [5, 6]]}
"""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import numpy as np
import torch
from torch import Tensor

from ..errors import BadFile, CaptureNotSupported, MissingFile, RegardError
from .layouts import from_json, to_json
from .map import Map
from .maps import Maps

VERSION = 1
_BROKEN = (OSError, ValueError, TypeError, AttributeError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error, struct.error)
_SHARED = {
    name: kind for name, kind in get_type_hints(Map).items() if name not in ("weights_BHLM", "layout", "inputs", "deferred")
}  # as they are, in JSON
_OPTIONAL = ("stream", "query_values", "key_values")
_FIELDS = [(name, kind, None) if name in _OPTIONAL else (name, kind) for name, kind in _SHARED.items()]
_Entry: Any = msgspec.defstruct("_Entry", [("tensor", str), *_FIELDS, ("layout", dict[str, Any])], kw_only=True)  # one map, as JSON


def save(maps: Maps, path: str | Path) -> Path:
    """Write the format that the suffix names."""
    path = _check_suffix(path)
    if any(m.deferred for m in maps.all):
        raise CaptureNotSupported(
            "maps this long are computed as they are read, not kept; capture fewer rows, without keep_inputs, to save them"
        )
    arrays = {str(n): m.weights_BHLM.contiguous() for n, m in enumerate(maps.all)}
    description = {"format": "regard.maps", "format_version": VERSION, "maps": [_to_json(n, m) for n, m in enumerate(maps.all)]}
    text = json.dumps(description, ensure_ascii=False)
    if path.suffix == ".npz":
        inside = {"json": np.frombuffer(text.encode(), dtype=np.uint8), **{name: x.numpy() for name, x in arrays.items()}}
        np.savez_compressed(path, **inside)  # type: ignore[arg-type]
    else:
        from safetensors.torch import save_file

        save_file(arrays, path, metadata={"format": "regard.maps"})
        path.with_suffix(".json").write_text(text, encoding="utf-8")
    return path


def load(path: str | Path) -> Maps:
    """Read the format that the suffix names; malformed files are refused with the reason."""
    path = _check_suffix(path)
    if not path.exists():
        raise MissingFile(f"{path}: no such file")
    text, arrays = _read_npz(path) if path.suffix == ".npz" else _read_pair(path)
    try:
        description = json.loads(text)
    except ValueError as wrong:
        raise BadFile(f"{path}: the description is not JSON: {wrong}") from wrong
    if not isinstance(description, dict) or description.get("format") != "regard.maps" or not isinstance(description.get("maps"), list):
        raise BadFile(f'{path}: the description lacks "format": "regard.maps" or its list "maps"')
    if description.get("format_version") != VERSION:
        raise BadFile(f"{path}: format_version {description.get('format_version')!r}; this regard reads {VERSION}")
    return Maps([_from_json(f"{path}, map {n}", entry, arrays) for n, entry in enumerate(description["maps"])])


def _check_suffix(path: str | Path) -> Path:
    if Path(path).suffix not in (".npz", ".safetensors"):
        raise BadFile(f"{path}: the file name must end with .safetensors (with .json beside it) or .npz")
    return Path(path)


def _read_npz(path: Path) -> tuple[str, dict[str, Tensor]]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as inside:  # numpy leaves a broken file open
            arrays = {name: inside[name] for name in inside.files}
        text = arrays.pop("json").tobytes().decode()
        return text, {name: torch.from_numpy(x) for name, x in arrays.items()}
    except KeyError as wrong:
        raise BadFile(f"{path}: no array called json inside; expected a file that Maps.save wrote") from wrong
    except _BROKEN as wrong:
        raise BadFile(f"{path}: not a complete .npz of plain arrays: {wrong}") from wrong


def _read_pair(path: Path) -> tuple[str, dict[str, Tensor]]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    beside = path.with_suffix(".json")
    if not beside.exists():
        raise BadFile(f"{path}: {beside.name}, which describes the weights, is not beside it")
    try:
        return beside.read_text(encoding="utf-8"), load_file(path)
    except UnicodeDecodeError as wrong:
        raise BadFile(f"{beside}: not UTF-8: {wrong}") from wrong
    except (SafetensorError, ValueError) as wrong:
        raise BadFile(f"{path}: not a complete safetensors file: {wrong}") from wrong


def _to_json(number: int, m: Map) -> dict[str, Any]:
    shared = {name: getattr(m, name) for name in _SHARED}
    shared = {name: value for name, value in shared.items() if value is not None or name == "stream"}
    return {"tensor": str(number)} | shared | {"layout": to_json(m.layout)}


def _from_json(where: str, data: Any, arrays: dict[str, Tensor]) -> Map:
    try:
        entry = msgspec.convert(data, _Entry)
    except msgspec.ValidationError as wrong:
        raise BadFile(f"{where}: {wrong}") from wrong
    weights = arrays.get(entry.tensor)
    if weights is None:
        raise BadFile(f"{where}: tensor {entry.tensor!r} is not in the file, which has {', '.join(sorted(arrays)) or 'none'}")
    if weights.dtype not in (torch.float16, torch.float32, torch.float64):
        raise BadFile(f"{where}: weights are {weights.dtype}; expected float16, float32 or float64")
    if any(p < 0 or p >= entry.queries for p in entry.rows) or any(p < 0 for p in entry.columns):
        raise BadFile(f"{where}: rows and columns must be positions from 0 on, rows below queries = {entry.queries}")
    try:
        return Map(**{name: getattr(entry, name) for name in _SHARED}, weights_BHLM=weights, layout=from_json(entry.layout))
    except RegardError as wrong:
        raise BadFile(f"{where}: {wrong}") from wrong
