"""Mixed precision: bfloat16 matmuls in the forward pass where that is safe; parameters, sums and optimizer steps stay in float32.

On some machines the first bfloat16 matmul kills the process, on others it is many times slower than float32. `machine.bf16()` finds
out in a child process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .. import machine
from ..errors import NotSupported
from .config import Precision


def choose(wanted: Precision, device: torch.device, before: str = "") -> tuple[str, str]:
    """ "float32" or "bfloat16", and a message for the user or "".

    A resumed run keeps what "auto" chose `before` if that is safe here: another precision would lead to other parameters.
    """
    if wanted == "float32" or (wanted == "auto" and before == "float32"):
        return "float32", ""
    found = _found(device)
    safe = found.usable and not found.needs_cap
    if wanted == "bfloat16":
        if not safe:
            remedy = "set that in the environment and start again, or " if found.needs_cap else ""
            raise NotSupported(f"precision bfloat16 on this machine: {found.note}; {remedy}take precision float32, or auto")
        return "bfloat16", ""
    if safe and (found.faster or before == "bfloat16"):
        return "bfloat16", f"precision: bfloat16 ({found.note})"
    return "float32", f"precision: float32 (bfloat16 {found.note})"


@contextmanager
def autocast(precision: str, device: torch.device) -> Iterator[None]:
    """Autocast to this precision inside; float32 changes nothing."""
    if precision != "bfloat16":
        yield
        return
    try:
        with torch.autocast(device.type, torch.bfloat16):
            yield
    except RuntimeError as error:
        if "could not create a primitive" in str(error):  # an LSTM on a processor that only imitates bfloat16
            raise NotSupported(f"a layer of this model has no bfloat16 form on this machine; take precision float32 ({error})") from error
        raise


def _found(device: torch.device) -> machine.Bf16:
    if device.type == "cpu":
        return machine.bf16()
    yes = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return machine.Bf16(yes, yes, False, "works" if yes else "is not in this device's instructions: not used")
