"""Heads switched off, to test what a picture suggests: does the output change when the head cannot do what it seems to do?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..attention import Attention, Call, Observation, SoftmaxAttention
from ..errors import NotSupported, UnknownName
from ..patterns import full


@dataclass(frozen=True)
class Ablation:
    """One head of one layer: its output becomes zero, or the plain average of the values it may attend to."""

    layer: str  # path of the mechanism, as in `Maps.layers`
    head: int
    how: Literal["zero", "uniform"] = "zero"


_applied: ContextVar[Mapping[Attention, tuple[Ablation, ...]]] = ContextVar("ablations", default=MappingProxyType({}))


@contextmanager
def ablate(model: nn.Module, ablations: Iterable[Ablation]) -> Iterator[None]:
    """Ablate these heads in every forward pass inside the `with`.

    >>> with ablate(model, [Ablation("blocks.1.mixer.attention", head=0)]):
    ...     model(ids)
    """
    known = {name: module for name, module in model.named_modules() if isinstance(module, Attention)}
    applied = dict(_applied.get())
    with ExitStack() as undo:
        for one in ablations:
            if one.layer not in known:
                raise UnknownName("attention layer", one.layer, known)
            module = known[one.layer]
            undo.callback(module.register_forward_hook(_hook(one), with_kwargs=True).remove)
            applied[module] = (*applied.get(module, ()), one)
        undo.callback(_applied.reset, _applied.set(applied))
        yield


@dataclass(frozen=True)
class AblatedWeights:
    """Change of the weights of a layer by ablations: those of a head become zero, or uniform over the allowed keys."""

    heads: Mapping[int, Literal["zero", "uniform"]]  # by head

    def __call__(self, weights_BHLM: Tensor, call: Call) -> Tensor:
        changed_BHLM, allowed_BHLM = weights_BHLM.clone(), call.mask()
        uniform_BHLM = (allowed_BHLM / allowed_BHLM.sum(-1, keepdim=True).clamp(min=1)).expand(weights_BHLM.shape)
        for head, how in self.heads.items():
            changed_BHLM[:, head] = 0 if how == "zero" else uniform_BHLM[:, head]
        return changed_BHLM


def ablated(observed: Observation) -> Observation:
    """The call with the weights that were applied to its values."""
    ablations = _applied.get().get(observed.attention, ())
    for one in ablations:
        _check_head(one, observed.q_BLHK.shape[2])
    heads = {one.head: one.how for one in ablations}
    return observed._replace(change=AblatedWeights(heads)) if heads else observed


def _check_head(one: Ablation, heads: int) -> None:
    if not 0 <= one.head < heads:
        raise UnknownName(f"head of {one.layer}", str(one.head), map(str, range(heads)))


def _hook(one: Ablation) -> Any:
    def change(module: Attention, args: tuple[Any, ...], kwargs: dict[str, Any], out_BLHV: Tensor) -> Tensor:
        heads = out_BLHV.shape[2]
        _check_head(one, heads)
        changed = out_BLHV.clone()
        changed[:, :, one.head] = 0 if one.how == "zero" else _uniform(one, module, args, kwargs)
        return changed

    return change


@torch.no_grad()
def _uniform(one: Ablation, module: Attention, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The average of the values that one head may attend to, out_BLV: a softmax of equal scores."""
    names = ("q_BLHK", "k_BMHK", "v_BMHV", "pattern", "bias", "state")
    given = dict(zip(names, args, strict=False)) | kwargs
    state = given.get("state")
    if state is not None and state.grows:
        raise NotSupported(f"{one.layer}: uniform weights need all values at once, and a step with a cache has only its own; use zero")
    q_BLHK, k_BMHK, v_BMHV = given["q_BLHK"], given["k_BMHK"], given["v_BMHV"]
    allowed = module._within(given.get("pattern", full), k_BMHK.shape[1])
    out_BLHV = SoftmaxAttention()(torch.zeros_like(q_BLHK), torch.zeros_like(k_BMHK), v_BMHV, allowed)
    return out_BLHV[:, :, one.head]
