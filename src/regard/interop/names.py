"""Tables of tensor names, ours beside transformers', which work in both directions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import Misfit

LayerNames = Mapping[str, str | tuple[str, ...]]  # our name → transformers', several if it splits what we hold as one


@dataclass(frozen=True)
class Entry:
    """One of our tensors, and the tensor of transformers it equals: several are concatenated along the first dimension (q, k and v)."""

    name: str
    hf_names: tuple[str, ...]
    transposed: bool = False  # stored as (in, out) by transformers, in the last two dimensions
    singletons: tuple[int, ...] = ()  # dimensions of size 1 that only transformers' tensor has
    sizes: tuple[int, ...] = ()  # rows of each part, where they differ
    heads: int = 0  # transformers' rows are q, k, v of the first head, of the second …; ours are q of all heads, k, v
    stacked: int = 0  # size of a first dimension that only ours has: transformers' tensors in equal runs
    kernel: tuple[int, ...] = ()  # the last dimensions of a convolution, which our linear layer has flattened

    def from_hf(self, hf: Mapping[str, Tensor]) -> Tensor:
        parts = [self._squeeze(hf[name]) for name in self.hf_names]
        rows = [len(part) for part in parts if part.dim()]
        expected = list(self.sizes) or rows[:1] * len(parts)
        if len({part.shape[1:] for part in parts}) > 1 or rows != expected or (self.heads and rows[0] % (3 * self.heads)):
            raise Misfit("the checkpoint", sizes=[f"{name} is {tuple(hf[name].shape)}" for name in self.hf_names])
        x = parts[0] if len(parts) == 1 else torch.cat(parts)
        x = x.unflatten(0, (self.stacked, -1)) if self.stacked else x
        return x.unflatten(0, (self.heads, 3, -1)).transpose(0, 1).flatten(0, 2) if self.heads else x

    def to_hf(self, x: Tensor) -> dict[str, Tensor]:
        if self.heads:
            x = x.unflatten(0, (3, self.heads, -1)).transpose(0, 1).flatten(0, 2)
        x = x.flatten(0, 1) if self.stacked else x
        parts = x.split(self.sizes) if self.sizes else x.chunk(len(self.hf_names)) if x.dim() else [x]
        return {name: self._unsqueeze(part).contiguous() for name, part in zip(self.hf_names, parts, strict=True)}

    def _squeeze(self, x: Tensor) -> Tensor:
        x = x.squeeze([dim for dim in self.singletons if dim < x.dim()])
        if self.kernel and x.shape[1:] == self.kernel:
            return x.flatten(1)
        return x.mT if self.transposed and x.dim() > 1 else x

    def _unsqueeze(self, x: Tensor) -> Tensor:
        x = x.unflatten(1, self.kernel) if self.kernel else x
        for dim in self.singletons:
            x = x.unsqueeze(dim)
        return x.mT if self.transposed and x.dim() > 1 else x


def tensor(name: str, *hf_names: str, singletons: tuple[int, ...] = ()) -> Entry:
    return Entry(name, hf_names, singletons=singletons)


def layer(name: str, *hf_names: str, transposed: bool = False) -> list[Entry]:
    """The weight and the bias of a linear layer or a norm."""
    return [
        Entry(f"{name}.weight", tuple(f"{hf}.weight" for hf in hf_names), transposed),
        Entry(f"{name}.bias", tuple(f"{hf}.bias" for hf in hf_names)),
    ]


def block_layers(depth: int, hf: str, names: LayerNames, *, bias: bool = True) -> list[Entry]:
    """The layers of equal blocks: `blocks.0`, `blocks.1` … are `hf.0`, `hf.1` … of transformers; `names` are those inside a block."""
    entries = []
    for i in range(depth):
        for ours, theirs in names.items():
            both = layer(f"blocks.{i}.{ours}", *(f"{hf}.{i}.{name}" for name in ((theirs,) if isinstance(theirs, str) else theirs)))
            entries += both if bias else both[:1]
    return entries


def from_hf(hf: Mapping[str, Tensor], table: Iterable[Entry]) -> dict[str, Tensor]:
    """transformers' tensors under our names."""
    return {entry.name: entry.from_hf(hf) for entry in table}


def to_hf(state: Mapping[str, Tensor], table: Iterable[Entry]) -> dict[str, Tensor]:
    """Our tensors under transformers' names."""
    return {name: x for entry in table for name, x in entry.to_hf(state[entry.name]).items()}


class NamedTensors(Mapping[str, Tensor]):
    """Tensors that are read when they are asked for; the names are the keys of `where`."""

    where: Mapping[str, Any]

    def __contains__(self, name: object) -> bool:
        return name in self.where

    def __iter__(self) -> Iterator[str]:
        return iter(self.where)

    def __len__(self) -> int:
        return len(self.where)


class BaseNames(NamedTensors):
    """The tensors of a file by the names of the base model: without its prefix, and norms as they are called today."""

    def __init__(self, hf: Mapping[str, Tensor], prefix: str):
        self.hf = hf
        self.where: dict[str, str] = {}  # base name → name in the file
        for name in hf:
            base = current_name(name.removeprefix(f"{prefix}."))
            if base in self.where:
                raise Misfit("the checkpoint", unknown=[f"{name} beside {self.where[base]}"])
            self.where[base] = name

    def __getitem__(self, name: str) -> Tensor:
        return self.hf[self.where[name]]


def current_name(name: str) -> str:
    """The name that newer files use: norms once had gamma and beta."""
    for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name
