"""Start-of-training summary: data size, parameters, throughput, estimated steps."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import nn

from ..data.splits import Splits
from ..errors import count
from ..machine import own_chance, wait_for
from ..train import Objective, TrainOptions, to_device
from ..train.state import seeded

ENOUGH = 300  # steps: with fewer hardly any model is worth looking at
PROBE_SECONDS = 2.0  # after the first batch, which also warms up


def seconds_per_step(model: nn.Module, objective: Objective, accumulate: int) -> float:
    """Time of a step, measured on a few batches of the first epoch; parameters and random numbers stay as they are."""
    items = objective.batches(0)
    some = [items[n * len(items) // 4] for n in (0, 1, 3)] if items else []
    device, times = next(model.parameters()).device, []
    training = model.training
    with own_chance(device):
        model.train()
        for item in some:
            start = time.monotonic()
            objective.loss(model, to_device(objective.batch(item, seeded(0)), device)).total.backward()
            wait_for(device)
            times.append(time.monotonic() - start)
            if sum(times[1:]) > PROBE_SECONDS:
                break
    model.train(training)
    model.zero_grad(set_to_none=True)
    rest = times[1:] or times
    return 1.15 * accumulate * sum(rest) / max(len(rest), 1)  # a step of the optimizer on top, about a seventh


def budget_steps(options: TrainOptions, steps_per_epoch: int, seconds: float | None) -> int | None:
    """The step that the budget will reach; None if only the clock knows and the speed is not measured."""
    by_clock = None if options.minutes is None or not seconds else max(1, int(options.minutes * 60 / seconds))
    return min((limit for limit in (options.total_steps(steps_per_epoch), by_clock) if limit is not None), default=None)


def describe(
    name: str,
    settings: dict[str, Any],
    model: nn.Module,
    data: Splits[Any],
    unit: str,
    options: TrainOptions,
    per_epoch: int,
    seconds: float | None,
) -> list[str]:
    """The two lines."""
    parameters, trained = (sum(p.numel() for p in model.parameters() if p.requires_grad or every) for every in (True, False))
    vocabulary = [f"{settings[key]:,}" for key in ("vocab_size", "source_vocab_size", "target_vocab_size") if key in settings]
    facts = [f"{parameters:,} parameters" + (f" ({trained:,} trained)" if trained < parameters else "")]
    facts += [f"vocabulary {' and '.join(dict.fromkeys(vocabulary))}"] if vocabulary else []
    device, threads = next(model.parameters()).device, torch.get_num_threads()
    chosen = "" if options.device != "auto" else " (auto: no GPU found)" if device.type == "cpu" else " (auto)"
    where = f"{device}{chosen}" + (f", {count(threads, 'thread')}" if device.type == "cpu" else "")
    return [
        f"{name}: {', '.join(facts)}; {len(data.train):,} {unit} to train on, {len(data.valid):,} for validation, {len(data.test):,} for the test",
        f"{where}; {_reach(options, per_epoch, seconds)}",
    ]


def _reach(options: TrainOptions, per_epoch: int, seconds: float | None) -> str:
    steps = budget_steps(options, per_epoch, seconds)
    if steps is None:
        return f"{options.minutes:g} minutes"
    warmup = options.warmup_steps or 0
    words = f"{count(steps, 'step')}, {steps / max(per_epoch, 1):.1f} epochs, warm-up {warmup:,}"
    if seconds:
        words = f"about {60 / seconds:,.0f} steps per minute: {words}, in about {_duration(steps * seconds)}"
    if seconds and options.minutes is not None and steps < ENOUGH:
        words += f"; too few to learn much: --minutes {math.ceil(ENOUGH * seconds / 60)} would make {ENOUGH}"
    if warmup > max(1, steps / 2):
        words += "; the learning rate will hardly reach its peak: lower --warmup-steps, or raise the budget"
    return words


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
