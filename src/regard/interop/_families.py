"""The families of published models that can be read and written: one file each, and this is the list.

A family is a module with

    TYPES      what config.json calls it ("model_type"), the first of them when we write
    NAMES      the names of our models that it can write
    BUFFERS    regular expressions: tensors that files of it may hold and that are no weights
    config(hf) -> (name, settings)        of our model, from config.json; hf["tensors"] are the names found in the files
    weights(hf, settings) -> dict         our tensors, from theirs
    exported(model) -> (dict, dict)       config.json and tensors, from our model

and three pure functions are all there is to it: what is missing, unknown or of another size is found by whoever calls them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from . import _bert, _big_bird, _fnet, _gpt, _gpt2, _llama, _longformer, _marian, _nystromformer, _reformer


class Family(Protocol):
    @property
    def TYPES(self) -> tuple[str, ...]: ...

    @property
    def NAMES(self) -> tuple[str, ...]: ...

    @property
    def BUFFERS(self) -> tuple[str, ...]: ...

    def config(self, hf: Mapping[str, Any]) -> tuple[str, dict[str, Any]]: ...

    def weights(self, hf: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, Tensor]: ...

    def exported(self, model: Any) -> tuple[dict[str, Any], dict[str, Tensor]]: ...


FAMILIES: tuple[Family, ...] = (_bert, _gpt, _gpt2, _llama, _marian, _longformer, _big_bird, _fnet, _nystromformer, _reformer)
