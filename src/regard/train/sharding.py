"""Every process keeps a part of each weight, its gradient and what the optimiser knows of it; a layer is put together while it works.

    kept by each of N processes, Ψ weights in float32:   weights 4Ψ/N   gradients 4Ψ/N   Adam's two means 8Ψ/N
    with copies in every process instead:                weights 4Ψ     gradients 4Ψ     Adam's two means 8Ψ

This is ZeRO's third stage (Rajbhandari et al. 2020, arXiv:1910.02054), PyTorch's `fully_shard`. Averages of weights are cut in the same
way. Evaluations and checkpoints are of whole tensors, in the first process, put together one after the other: files do not know of it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import BadConfig
from ..layers import Block
from .distributed import Objective
from .task import Task

if TYPE_CHECKING:  # half a second to import, for nothing where one process trains
    from torch.distributed.tensor import DTensor

LAYERS = (Block, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)  # are put together one at a time; the rest of a model at once


def sharded(task: Task, model: nn.Module) -> Objective:
    """The task's loss with a copy of the model, begun with the first process's weights and cut over all processes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    scalars = [name for name, parameter in model.named_parameters() if parameter.ndim == 0]
    if scalars:
        raise BadConfig(f"{scalars[0]} is a single number, which cannot be cut over processes; give it one axis, or take sharding none")
    objective = Objective(task, copy.deepcopy(model))
    for tensor in chain(objective.parameters(), objective.buffers()):
        dist.broadcast(tensor.detach(), 0)
    mesh = init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),))
    for part in [*(layer for layer in objective.modules() if isinstance(layer, LAYERS) and _alone(layer, objective)), objective]:
        fully_shard(part, mesh=mesh)
        assert isinstance(part, FSDPModule)
        part.set_gradient_divide_factor(1.0)  # sums, not means: tokens are counted, not processes
        part.set_force_sum_reduction_for_comms(True)
    return objective


def _alone(layer: nn.Module, whole: nn.Module) -> bool:
    """Whether no other module uses a weight of the layer."""
    inside, own = set(layer.modules()), set(layer.parameters())
    return not any(own & set(other.parameters(recurse=False)) for other in whole.modules() if other not in inside)


def is_cut(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether other processes hold the rest of it."""
    return hasattr(tensor, "full_tensor")


def local(tensor: Tensor) -> Tensor:
    """What this process holds of it."""
    return tensor.to_local() if is_cut(tensor) else tensor


def alike(tensor: Tensor, own: Tensor) -> Tensor:
    """A whole tensor, the same in all processes, where `own` is and cut as it is."""
    if not is_cut(own) or is_cut(tensor):
        return tensor.to(own.device)
    from torch.distributed.tensor import distribute_tensor

    # a copy: a view would hold on to the whole
    return distribute_tensor(tensor.to(own.device), own.device_mesh, own.placements, src_data_rank=None).clone()


def gathered(tensors: Mapping[str, Tensor], keep: bool = True) -> dict[str, Tensor]:
    """Whole tensors. Where they are cut all processes must ask together; those that do not `keep` get nothing."""
    found = {}
    for name, tensor in sorted(tensors.items()):  # all in the same order; what was read from a file comes in any
        whole = tensor.full_tensor() if is_cut(tensor) else tensor
        if keep:
            found[name] = whole
    return found


@torch.no_grad()
def fill(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """The model's parameters become these tensors, whatever size they had; its buffers get their numbers."""
    for name, parameter in model.named_parameters():
        parameter.data = weights[name]
    for name, buffer in model.named_buffers():
        if name in weights:
            buffer.copy_(weights[name])


def empty(model: nn.Module) -> None:
    """The model's parameters take no memory until they are filled."""
    for parameter in model.parameters():
        parameter.data = parameter.data.new_empty(0)


@contextmanager
def filled(model: nn.Module, tensors: Mapping[str, Tensor], keep: bool) -> Iterator[None]:
    """Inside, the model has these weights in the processes that `keep` them."""
    whole = gathered(tensors, keep)
    if keep:
        fill(model, whole)
    try:
        yield
    finally:
        empty(model)
