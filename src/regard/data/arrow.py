"""Rows of Parquet files and of datasets of the `datasets` library, by extras that are imported when needed; nothing is downloaded.

pairs.parquet                a file; needs pyarrow
hf:folder                    what `Dataset.save_to_disk` wrote, or a folder of data files as `load_dataset` reads it
hf:user/name                 a dataset that is in the local cache
hf:folder#validation         one of its splits; train if not named
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from .._extras import extra
from ..errors import BadFile, MissingFile, NotSupported

PREFIX = "hf:"
ROWS = 1024  # that are read together


def is_dataset(spec: object) -> bool:
    """Return whether this names a dataset of the `datasets` library."""
    return isinstance(spec, str) and spec.startswith(PREFIX)


def parquet_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(file and row number, the row by names of columns)."""
    with extra("data"):
        import pyarrow
        from pyarrow import parquet
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number:,}", row
    except (pyarrow.ArrowException, OSError) as wrong:
        raise BadFile(f"{path}, after row {number:,}: not a Parquet file, or damaged: {str(wrong)[:200]}") from wrong


def dataset_rows(spec: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(dataset and row number, the row by names of columns); numbers of classes become their names."""
    found, number = open_dataset(spec), 0
    names = {column: names for column, feature in found.features.items() if (names := _class_names(feature))}
    for batch in found.with_format(None).iter(ROWS):
        for values in zip(*batch.values(), strict=True):
            number += 1
            row = dict(zip(batch, values, strict=True))
            yield f"{spec}, row {number:,}", row | {column: _named(row[column], known) for column, known in names.items()}


@lru_cache(maxsize=8)
def open_dataset(spec: str) -> Any:
    """One split, from a local folder or the local cache."""
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    with extra("data"):
        import datasets
        import huggingface_hub.constants
    # both libraries read the variables when they are first imported, which others may have done before
    huggingface_hub.constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    datasets.disable_progress_bars()
    name, _, split = spec.removeprefix(PREFIX).partition("#")
    folder = Path(name)
    if not folder.exists() and (folder.is_absolute() or name.startswith(".") or name.count("/") > 1):
        raise MissingFile(f"{spec}: no such folder; check the name; it was looked for in {folder.absolute().parent}")
    try:
        saved = any((folder / one).exists() for one in ("state.json", "dataset_dict.json"))
        found = datasets.load_from_disk(name) if saved else datasets.load_dataset(name)
    except Exception as wrong:  # the library raises errors of many kinds
        raise BadFile(f"{spec}: not a dataset on this machine ({str(wrong).splitlines()[0][:200]}); nothing is downloaded") from wrong
    if isinstance(found, datasets.Dataset):
        if split:
            raise NotSupported(f"{spec}: this dataset has no splits; leave out #{split}")
        return found
    chosen = split or ("train" if "train" in found else next(iter(found)) if len(found) == 1 else "")
    if chosen not in found:
        raise NotSupported(
            f"{spec}: no split {chosen or 'train'!r}; name one of {', '.join(found)}, as in {PREFIX}{name}#{next(iter(found))}"
        )
    return found[chosen]


def dataset_state(spec: str) -> list[object]:
    """Identify a dataset by its rows and its fingerprint."""
    found = open_dataset(spec)
    return [spec, len(found), found._fingerprint]


def _class_names(feature: Any) -> list[str]:
    inner = getattr(feature, "feature", feature)  # of a list
    return list(getattr(inner, "names", None) or ())


def _named(value: Any, names: list[str]) -> Any:
    if isinstance(value, list):
        return [_named(one, names) for one in value]
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else value
