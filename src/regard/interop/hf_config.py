"""Reading config.json of transformers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ..errors import BadConfig, BadFile, NotSupported
from ._defaults import ALIASES, DEFAULTS
from .names import current_name

ACTIVATIONS = {  # transformers' names → ours
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "gelu_quick",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
# keys that no config class declares, but that change what a model computes, or did when the file was written
FOREIGN = {"per_layer_config": None, "quantization_config": None, "position_embedding_type": "absolute", "use_sliding_window": False,
           "layer_types": None, "sliding_window": None, "attention_bias": False, "mlp_bias": False, "embedding_size": None}  # fmt: skip


DROPOUT = re.compile("dropout|pdrop")  # without effect outside training; where ours has no place for it, it is left out


class HFConfig:
    """The values of a config.json, with transformers' defaults for those it leaves out, and the names of the tensors beside it.

    A family reads what its model can represent. What it does not read must have its default: see `refuse_unread`.
    """

    def __init__(self, given: Mapping[str, Any], tensor_names: Iterable[str] = (), shapes: Mapping[str, Tensor] | None = None):
        self.model_type: str = given["model_type"]
        self.given, self.defaults = given, DEFAULTS[self.model_type]
        self.values = {**self.defaults, **given}
        self.values |= {key: given[name] for name, key in ALIASES.get(self.model_type, {}).items() if name in given}
        self.tensor_names = frozenset(map(current_name, tensor_names))
        self.shapes = shapes or {}
        self._read: set[str] = set()
        for key, default in self.defaults.items():
            if not _alike(self.values[key], default):
                raise BadConfig(f"config.json has {key}={self._shown(key)}; expected a value like {default!r}")

    def __getitem__(self, key: str) -> Any:
        """The value of a key that the family's config class declares."""
        self._read.add(key)
        return self.values[key]

    def get(self, key: str, default: Any = None) -> Any:
        """The value of any key."""
        self._read.add(key)
        return self.values.get(key, default)

    def require(self, **expected: Any) -> None:
        """Refuse values that our model does not support."""
        for key, value in expected.items():
            if self[key] != value:
                raise BadConfig(f"config.json {self._has(key)}; only {key}={value!r} is supported")

    def refuse_unread(self) -> None:
        """Refuse a value that is not the default, of a key that nothing here reads."""
        for key, default in {**FOREIGN, **self.defaults}.items():
            if (
                key not in self._read
                and not key.endswith("_token_id")
                and not DROPOUT.search(key)
                and self.values.get(key, default) != default
            ):
                raise BadConfig(f"config.json has {key}={self._shown(key)}; only {key}={default!r} is supported")

    def activation(self, key: str) -> str:
        """Our name of an activation."""
        name = self[key]
        if name not in ACTIVATIONS:
            raise NotSupported(f"config.json {self._has(key)}; supported are {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[name]

    def rows(self, *names: str) -> int:
        """Rows of the tensor that has one of these names; 0 if there is none."""
        return next((len(self.shapes[name]) for name in names if name in self.shapes and self.shapes[name].dim()), 0)

    def _has(self, key: str) -> str:
        if key in self.given:
            return f"has {key}={self._shown(key)}"
        return f"leaves out {key}, which transformers takes to be {self._shown(key)}"

    def _shown(self, key: str) -> str:
        shown = repr(self.values[key])
        return shown if len(shown) <= 60 else f"{shown[:60]}…"


def _alike(value: Any, default: Any) -> bool:
    """Return whether a value has the type of the default; null and a list per layer may replace a number."""
    if isinstance(default, bool):
        return isinstance(value, bool)
    if isinstance(default, int | float):
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        return (number and (isinstance(default, float) or isinstance(value, int))) or value is None or isinstance(value, list)
    return default is None or isinstance(value, type(default))


def labels_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of classes in a config.json."""
    id2label = config.get("id2label")
    if id2label is None:
        return ("LABEL_0", "LABEL_1")  # transformers does not write the default down
    if not isinstance(id2label, dict) or sorted(id2label) != sorted(str(n) for n in range(len(id2label))):
        raise BadFile(f"config.json has id2label={str(id2label)[:100]}; expected a label per number, from 0 on")
    return tuple(str(id2label[str(n)]) for n in range(len(id2label)))


def label_config(labels: Sequence[str]) -> dict[str, Any]:
    """Write the labels as config.json has them."""
    return {"id2label": {str(n): name for n, name in enumerate(labels)}, "label2id": {name: n for n, name in enumerate(labels)}}


def hf_activation(name: str) -> str:
    """transformers' name of an activation, the first of several: `gelu_tanh` is gelu_new."""
    return next(hf for hf, ours in ACTIVATIONS.items() if ours == name)
