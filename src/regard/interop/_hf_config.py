"""Reading config.json of transformers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import BadConfig, UnknownName
from ._names import current_name

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


class HFConfig:
    """The values of a config.json, and the names of the tensors in the files beside it."""

    def __init__(self, values: Mapping[str, Any], tensor_names: Iterable[str] = ()):
        self.values = values
        self.tensor_names = frozenset(map(current_name, tensor_names))

    def __getitem__(self, key: str) -> Any:
        if key not in self.values:
            raise BadConfig(f"config.json lacks {key!r}; save_pretrained writes it")
        return self.values[key]

    def get(self, key: str, default: Any = None) -> Any:
        return self.values.get(key, default)

    def require(self, **expected: Any) -> None:
        """Refuse values that our model does not support; a missing key counts as the expected value."""
        for key, value in expected.items():
            if self.get(key, value) != value:
                raise BadConfig(f"config.json has {key}={self[key]!r}; only {key}={value!r} is supported")

    def activation(self, key: str = "hidden_act", default: str = "gelu") -> str:
        """Our name of an activation."""
        name = self.get(key, default)
        if name not in ACTIVATIONS:
            raise UnknownName(f"activation ({key} of config.json)", str(name), ACTIVATIONS)
        return ACTIVATIONS[name]


def hf_activation(name: str) -> str:
    """transformers' name of an activation, the first of several: `gelu_tanh` is gelu_new."""
    return next(hf for hf, ours in ACTIVATIONS.items() if ours == name)
