"""Products in bfloat16 on the way forward, where the machine is sure to do them right; weights, sums and steps stay in float32.

On some machines the first bfloat16 product ends the process, on others it is many times slower than float32. `kernels.bf16()` finds
out in a process of its own, and its answer decides here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .. import kernels
from ..errors import NotSupported
from .config import Precision


def choose(wanted: Precision, device: torch.device, before: str = "") -> tuple[str, str]:
    """ "float32" or "bfloat16", and what to say about it, if anything.

    A run that goes on keeps what "auto" chose `before` if that is safe here: another precision would end in other weights.
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
    """Inside, matrix products are in this precision; float32 leaves everything as it is."""
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


def _found(device: torch.device) -> kernels.Bf16:
    if device.type == "cpu":
        return kernels.bf16()
    yes = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return kernels.Bf16(yes, yes, False, "works" if yes else "is not in this device's instructions: not used")
