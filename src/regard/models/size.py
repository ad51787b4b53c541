"""The size of a model, known before memory is taken for it: built on the meta device, its tensors have shapes and no values."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_buffer_registration_hook, register_module_parameter_registration_hook

from ..errors import BadConfig, OutOfMemory, is_out_of_memory
from ..machine import available_memory

MOST_TENSORS = 100_000  # of one model: the largest published have some thousands, and each is objects of Python
REMEDY = "choose smaller settings, such as width, depth or the vocabulary"


@contextmanager
def counting(check: Callable[[int, int, int], None]) -> Iterator[None]:
    """Inside, `check` is called after each tensor that a module registers.

    Args:
        check: function of the tensors so far, and of the elements of parameters and of buffers; it may raise an error.
    """
    me, seen = threading.get_ident(), dict[int, Tensor]()
    elements = {"parameters": 0, "buffers": 0}

    def note(kind: str, tensor: Tensor | None) -> None:
        if tensor is not None and id(tensor) not in seen and threading.get_ident() == me:
            seen[id(tensor)] = tensor
            elements[kind] += tensor.numel()
            check(len(seen), elements["parameters"], elements["buffers"])

    def parameter(module: nn.Module, name: str, tensor: Tensor | None) -> None:
        note("parameters", tensor)

    def buffer(module: nn.Module, name: str, tensor: Tensor | None) -> None:
        note("buffers", tensor)

    hooks = register_module_parameter_registration_hook(parameter), register_module_buffer_registration_hook(buffer)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def check_size(name: str, make: Callable[[], object]) -> None:
    """Refuse a model that does not fit into the memory that is free, before any of it is taken. On the meta device nothing is.

    Args:
        name: name of the model, for the message.
        make: function that builds it.
    """
    if torch.get_default_device().type == "meta":
        return
    free = available_memory()

    def check(tensors: int, parameters: int, buffers: int) -> None:
        if tensors > MOST_TENSORS:
            raise BadConfig(f"{name} with these settings has more than {MOST_TENSORS:,} tensors; {REMEDY}")
        if free is not None and 4 * (parameters + buffers) > free:
            raise OutOfMemory(
                f"{name} with these settings takes more than {4 * (parameters + buffers) / 2**30:,.1f} GiB, and {free / 2**30:,.1f} GiB is "
                f"available; {REMEDY}"
            )

    state = torch.get_rng_state()
    try:
        with torch.device("meta"), counting(check):
            make()
    except (RuntimeError, MemoryError) as wrong:
        if not is_out_of_memory(wrong) or isinstance(wrong, OutOfMemory):
            raise
        raise OutOfMemory(
            f"{name} with these settings is too large for any memory ({' '.join(str(wrong).split())[:120]}); {REMEDY}"
        ) from wrong
    finally:
        torch.set_rng_state(state)
