"""Functions of upper levels that lower ones offer as methods. The package binds them (`regard/__init__.py`), so that imports point down only."""

from __future__ import annotations

from collections.abc import Callable

load_plugins: Callable[[], None]  # registers what installed packages offer: `registry.load_plugins`
generate_ids: Callable[..., list[list[int]]]  # (model, ids, eos_ids, options) → the new token ids: `LanguageModel.generate`
