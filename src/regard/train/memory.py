"""Memory that a training needs: an estimate before it starts, and an error that names the options which help when there is too little.

    parameters   gradients   optimizer state        Adam's two moments; none to speak of for Adafactor
    copies                                          the best so far, the last `average` evaluations, a moving average, one during evaluations
    activations                                     what linear layers keep for the backward pass, for the tokens of one micro-batch

The last is rough: attention weights, norms and the allocator's own waste are left out, so the estimate is a lower bound in practice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from .. import machine
from ..errors import OutOfMemory, is_out_of_memory
from .options import TrainOptions

ADVICE = (
    "take smaller batches (--batch-size or --batch-tokens, with --accumulate for the same sum), shorter sequences (--context-length, --max-length) or a smaller model; "
    "--optimizer adafactor and --average 0 keep fewer copies, and --sharding full shares them between processes"
)


def needed(model: nn.Module, options: TrainOptions, tokens: int, processes: int = 1) -> int:
    """Estimate the bytes that training takes beside the parameters of the model, which are there already.

    Args:
        model: model to train.
        options: training options.
        tokens: tokens of one micro-batch.
        processes: processes that share them.
    """
    whole = sum(tensor.nbytes for tensor in chain(model.parameters(), model.buffers()))
    trained = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    moments = {"adafactor": 0, "muon": 1}.get(options.optimizer, 2)
    copies = 1 + options.average + bool(options.ema)
    kept = (1 + moments) * trained + copies * whole
    if options.sharding == "full":
        kept = (kept + whole) // processes
    per_token = sum(layer.in_features + layer.out_features for layer in model.modules() if isinstance(layer, nn.Linear))
    return kept + whole + 4 * per_token * tokens


def tokens_of(batch: Any) -> int:
    """Tokens of a batch, padding included: the elements of its largest tensor of integers; 0 if it has none."""
    if isinstance(batch, Tensor):
        return 0 if batch.is_floating_point() or batch.is_complex() else batch.numel()
    if is_dataclass(batch):
        batch = [getattr(batch, field.name) for field in fields(batch)]
    elif isinstance(batch, dict):
        batch = list(batch.values())
    return max((tokens_of(part) for part in batch), default=0) if isinstance(batch, list | tuple) else 0


def warning(bytes_needed: int, device: torch.device) -> str:
    """Return the message for a training that needs more than is free; "" if it fits or nobody knows.

    Args:
        bytes_needed: `needed`.
        device: device of the model.
    """
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else machine.available_memory()
    if free is None or bytes_needed <= free:
        return ""
    return f"training needs at least {_gib(bytes_needed)} more memory, and {_gib(free)} is available: {ADVICE}"


@contextmanager
def memory_errors(doing: str) -> Iterator[None]:
    """Inside, running out of memory is OutOfMemory."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error) or isinstance(error, OutOfMemory):
            raise
        raise OutOfMemory(f"out of memory while {doing}: {ADVICE}; then start again, or resume from the last checkpoint") from error


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
