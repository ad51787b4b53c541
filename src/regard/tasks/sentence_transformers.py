"""Files with which a folder of the sentence-transformers library makes one vector of a text: modules.json, 1_Pooling/config.json, sentence_bert_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BadFile
from ..files import read_json, write_json

FOLDER, MODULES, LENGTH = "1_Pooling", "modules.json", "sentence_bert_config.json"
MODES = {"mean_tokens": "mean", "cls_token": "cls", "max_tokens": "max", "lasttoken": "last"}  # theirs → ours
READ = ("Transformer", "Pooling", "Normalize")  # modules; vectors are normalised here in any case


@dataclass(frozen=True)
class SentencePooling:
    """The step from the features of a text's tokens to its vector.

    mode        mean, cls (the first token), max or last; anything else is what a folder asks for and is not computed here
    max_length  tokens per text; None: as many as the model reads
    """

    mode: str = "mean"
    max_length: int | None = None


def read_pooling(folder: Path) -> SentencePooling:
    """Read the pooling of a folder; the mean if it says nothing."""
    where, others = FOLDER, list[str]()
    if (folder / MODULES).exists():
        modules = read_json(folder / MODULES)
        if not isinstance(modules, list) or not all(isinstance(one, dict) for one in modules):
            raise BadFile(f"{folder / MODULES}: expected a list of modules")
        kinds = [(str(one.get("type", "")).rpartition(".")[2], str(one.get("path", ""))) for one in modules]
        others = [kind for kind, _ in kinds if kind not in READ]
        where = next((path for kind, path in kinds if kind == "Pooling"), where)
    if Path(where).name != where:
        raise BadFile(f"{folder / MODULES}: the path of its Pooling module is {where[:80]!r}; expected the name of a folder in it")
    path = folder / where / "config.json"
    modes = _modes(_object(path)) if path.exists() else ["mean"]
    length = _object(folder / LENGTH).get("max_seq_length") if (folder / LENGTH).exists() else None
    if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
        raise BadFile(f"{folder / LENGTH}: max_seq_length is {str(length)[:80]!r}; expected a number of tokens")
    return SentencePooling(" and ".join([*modes, *others]) or "none", length)


def write_pooling(pooling: SentencePooling, folder: Path) -> None:
    """Write these files; nothing for what goes without saying."""
    theirs = {ours: name for name, ours in MODES.items()}
    if pooling.mode != "mean":
        (folder / FOLDER).mkdir(exist_ok=True)
        mode = theirs.get(pooling.mode)
        write_json(folder / FOLDER / "config.json", {f"pooling_mode_{mode}": True} if mode else {"pooling_mode": pooling.mode})
    if pooling.max_length is not None:
        write_json(folder / LENGTH, {"max_seq_length": pooling.max_length})


def _modes(described: Mapping[str, Any]) -> list[str]:
    if "pooling_mode" in described:
        return [str(described["pooling_mode"])]
    chosen = [name.removeprefix("pooling_mode_") for name, value in described.items() if name.startswith("pooling_mode_") and value]
    return [MODES.get(name, name) for name in chosen]


def _object(path: Path) -> Mapping[str, Any]:
    found = read_json(path)
    if not isinstance(found, dict):
        raise BadFile(f"{path}: expected an object")
    return found
