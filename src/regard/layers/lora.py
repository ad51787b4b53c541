r"""Low-rank adapters: a frozen linear layer plus a product of two small matrices that is trained.

$$y = W x + b + s\,B A x \qquad A \in \mathbb{R}^{r \times \mathrm{in}},\; B \in \mathbb{R}^{\mathrm{out} \times r},\; B = 0 \text{ at first}$$

Of the projection to q, k and v, each part has its own pair. The parameters keep their names (`weight`, `bias`) beside `lora_a` and
`lora_b`; `merge_lora` adds s B A to the weight, so what is saved is a model like any other.

Paper: Hu et al. 2021, "LoRA", arXiv:2106.09685; they adapt q and v. The scale s is 2, as their α = 2 r.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import NotSupported
from .multihead import MultiHead

Targets = Literal["qv", "all"]
SCALE = 2.0


class LoRALinear(nn.Linear):
    """A linear layer with an adapter over some of its `parts`, (rows, whether they are adapted); it shares the parameters of `layer`.

    Args:
        layer: linear layer to adapt, whose parameters are shared.
        rank: rank of the adapter.
        parts: (rows, adapted) for each part of the layer's output, in order; none: all of it is adapted.

    Shape: x (…, in features) → out (…, out features).
    """

    def __init__(self, layer: nn.Linear, rank: int, parts: Sequence[tuple[int, bool]] = ()):
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self.parts, self.rank = tuple(parts) or ((layer.out_features, True),), rank
        adapted = [rows for rows, on in self.parts if on]
        self.lora_a = nn.Parameter(torch.empty(rank * len(adapted), layer.in_features))
        self.lora_b = nn.Parameter(torch.zeros(sum(adapted), rank))
        nn.init.kaiming_uniform_(self.lora_a, a=5**0.5)

    def forward(self, x: Tensor) -> Tensor:
        low, rest = F.linear(x, self.lora_a).split(self.rank, -1), iter(self._rows(self.lora_b))
        parts, at = [], 0
        for rows, on in self.parts:
            parts.append(F.linear(low[at], next(rest)) if on else x.new_zeros(*x.shape[:-1], rows))
            at += on
        return torch.add(F.linear(x, self.weight, self.bias), torch.cat(parts, -1), alpha=SCALE)

    def _rows(self, b: Tensor) -> Sequence[Tensor]:
        return b.split([rows for rows, on in self.parts if on])

    def merged(self, weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """W + s B A.

        Args:
            weight: matrix W of the layer.
            a: A of the adapter.
            b: B of the adapter.
        """
        changes, rest = zip(a.split(self.rank), self._rows(b), strict=True), list[Tensor]()
        for rows, on in self.parts:
            if on:
                a_RD, b_NR = next(changes)
                rest.append(b_NR @ a_RD)
            else:
                rest.append(weight.new_zeros(rows, weight.shape[1]))
        return torch.add(weight, torch.cat(rest), alpha=SCALE)


def add_lora(model: nn.Module, rank: int, targets: Targets = "qv") -> int:
    """Freeze the model and add adapters to its attention layers (`qv`: queries and values) or to all linear layers of its blocks.

    Returns the number of parameters of the adapters, which are all that is trained.

    Args:
        model: model to change, in place.
        rank: rank of the adapters.
        targets: "qv": projections of queries and values; "all": all linear layers of the blocks.
    """
    model.requires_grad_(False)
    added = 0
    for parent_name, parent in list(model.named_modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is not nn.Linear or not _is_target(parent, f"{parent_name}.{name}", name, targets):
                continue
            parts = _parts(parent, name, targets) if isinstance(parent, MultiHead) else ()
            adapted = LoRALinear(layer, rank, parts)
            setattr(parent, name, adapted)
            added += adapted.lora_a.numel() + adapted.lora_b.numel()
    if not added:
        raise NotSupported(f"{type(model).__name__} has no attention projections for LoRA; fine-tune all of it: leave --lora-rank out")
    return added


def merge_lora(model: nn.Module, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters of the same model without adapters; `parameters` are those of this model, by name.

    Args:
        model: model with adapters, which is not changed.
        parameters: its parameters by name, such as its state dict.
    """
    plain = dict(parameters)
    for name, layer in model.named_modules():
        if isinstance(layer, LoRALinear):
            prefix = f"{name}." if name else ""
            a, b = plain.pop(f"{prefix}lora_a"), plain.pop(f"{prefix}lora_b")
            plain[f"{prefix}weight"] = layer.merged(plain[f"{prefix}weight"], a, b)
    return plain


def _is_target(parent: nn.Module, path: str, name: str, targets: Targets) -> bool:
    inside = any(part.isdecimal() for part in path.split("."))  # in a layer of a ModuleList
    return name in ("qkv", "q", "kv") if isinstance(parent, MultiHead) and targets == "qv" else targets == "all" and inside


def _parts(parent: MultiHead, name: str, targets: Targets) -> Sequence[tuple[int, bool]]:
    sizes = {"qkv": parent.sizes, "q": parent.sizes[:1], "kv": parent.sizes[1:]}.get(name, ())
    keys = len(sizes) - 2  # of (q, k, v) the second, of (k, v) the first
    return [(rows, targets == "all" or n != keys) for n, rows in enumerate(sizes) if rows]
