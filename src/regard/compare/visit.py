"""The job of a child process: measure one mechanism at one length once, forward, forward + backward, or one decoding step.

Each job builds the mechanism and its inputs from the seed, so all mechanisms get the same q, k and v. Memory and distance are measured on
the first visit only.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import patterns
from ..attention import Attention, SoftmaxAttention, State
from ..attention.helpers import average
from ..errors import NotSupported, ShapeError
from ..kernels import accumulation_dtype
from ..layers import MultiHead
from .measure import peak_memory
from .process import resolve

LEAST = 0.05  # seconds; calls that are shorter are repeated until so much is measured
STEPS = 16  # of decoding, at the end of the sequence; the first two are not counted
ROWS = 64  # queries whose outputs are compared with exact attention


def forward(first: bool, **size: Any) -> dict[str, float | None]:
    """Seconds of a call without gradients; on the first visit also its peak memory, and the distance from exact attention."""
    subject = Subject(**size)
    subject.module.eval()
    with torch.no_grad():
        found = _measured(subject, first)
        if first:
            found["distance"] = subject.distance()
    return found


def train(first: bool, **size: Any) -> dict[str, float | None]:
    """Seconds of a call and of all its gradients, of inputs and parameters; on the first visit also the peak memory."""
    subject = Subject(**size)
    subject.module.train()
    wanted = [x.requires_grad_() for x in subject.inputs.values()] + list(subject.module.parameters())
    cotangent = None

    def both() -> None:
        nonlocal cotangent
        out = subject()
        if not out.requires_grad:
            raise NotSupported(f"{type(subject.attention).__name__} gives no gradients")
        cotangent = torch.ones_like(out) if cotangent is None else cotangent
        torch.autograd.grad(out, wanted, cotangent, allow_unused=True)

    return _measured(both, first)


def step(first: bool, **size: Any) -> dict[str, float | None]:
    """Seconds of one step of decoding, the state being about `length` tokens long; on the first visit also the memory the state holds."""
    subject = Subject(**size)
    subject.module.eval()
    length, steps = subject.length, min(STEPS, subject.length // 2)
    if not steps:
        raise ShapeError(f"a decoding step needs earlier tokens, and a length of {length} has none; use 2 or more")
    seconds, clock = [], _clock()
    with torch.no_grad():
        state = subject.module.start(subject.batch, patterns.causal)
        if state.grows:
            subject(slice(0, length - steps), state)
        for at in range(length - steps, length):
            start = clock()
            subject(slice(at, at + 1), state)
            seconds.append(clock() - start)
    found: dict[str, float | None] = {"seconds": statistics.median(seconds[min(2, steps - 1) :])}
    return found | ({"mib": _held(state) / 2**20} if first else {})


class Subject:
    """A mechanism of the right size with its inputs; calling it is what is measured."""

    def __init__(
        self, mechanism: str, length: int, width: int, heads: int, batch: int, causal: bool, dtype: str, projections: bool, seed: int
    ):
        torch.manual_seed(seed)
        self.length, self.batch, self.heads, self.seed = length, batch, heads, seed
        self.head_dim = width // heads
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.pattern = patterns.causal if causal else patterns.full
        self.attention: Attention = resolve(mechanism).sized(heads=heads, head_dim=self.head_dim, length=length).to(self.dtype)
        self.module: Any = MultiHead(width, heads, self.attention).to(self.dtype) if projections else self.attention
        self.projections = projections
        self.inputs = {"x_BLD": self._drawn(batch, length, width)} if projections else self.heads_of()

    def heads_of(self) -> dict[str, Tensor]:
        """q, k and v, the same for every mechanism, and the gates that it reads, by argument."""
        shape = self.batch, self.length, self.heads, self.head_dim
        heads = {name: self._drawn(*shape, number=n) for n, name in enumerate(("q_BLHK", "k_BMHK", "v_BMHV"))}
        shapes = self.attention.gate_shapes(heads["q_BLHK"], heads["k_BMHK"])
        return heads | {name: self._drawn(*shape, number=3 + n) for n, (name, shape) in enumerate(shapes.items())}

    def __call__(self, part: slice = slice(None), state: State | None = None) -> Tensor:
        if self.projections:
            return self.module(self.inputs["x_BLD"][:, part], pattern=self.pattern, state=state)
        stays = state is not None and not state.grows  # all keys at every step
        inputs = {name: x if stays and not name.startswith("q") else x[:, part] for name, x in self.inputs.items()}
        return self.attention(**inputs, pattern=patterns.full if stays else self.pattern, state=state)

    def distance(self) -> float | None:
        """‖o − o*‖ / ‖o*‖ over some queries, o* being exact attention's output on the same q, k, v; 0 within rounding; None if not finite."""
        inputs = self.heads_of()
        q, k, v = (inputs[name] for name in ("q_BLHK", "k_BMHK", "v_BMHV"))
        rows = torch.linspace(0, self.length - 1, min(ROWS, self.length)).long()
        out = self.attention(**inputs, pattern=self.pattern)[:, rows].double()
        fine = accumulation_dtype(self.dtype)
        weights_BHLM = SoftmaxAttention().weights(q.to(fine), k.to(fine), self.pattern, rows=rows)
        exact = average(weights_BHLM, v.to(fine)).double()
        far = ((out - exact).norm() / exact.norm()).item()
        return None if not math.isfinite(far) else 0.0 if far < 4 * torch.finfo(self.dtype).eps else far

    def _drawn(self, *shape: int, number: int = 0) -> Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(self.seed + number)).to(self.dtype)


def _measured(call: Callable[[], object], first: bool) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    if first:
        _wake()
        found["mib"] = peak_memory(call)
    begun, clock, seconds = time.perf_counter(), _clock(), list[float]()
    while not seconds or (time.perf_counter() - begun < LEAST and len(seconds) < 1000):
        start = clock()
        call()
        seconds.append(clock() - start)
    # the first of many is not warm yet; a median does not mind, nor an interruption
    return found | {"seconds": statistics.median(seconds)}


def _clock() -> Callable[[], float]:
    """Choose the clock: for one thread processor time, which hardly depends on what else runs on the machine; for several the wall clock."""
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def _wake() -> None:
    """Let libraries take the threads and buffers they take once, so that they do not count as a mechanism's memory."""
    with torch.enable_grad():
        x = torch.randn(64, 64, requires_grad=True)
        torch.nn.functional.scaled_dot_product_attention(x @ x, x, x).exp().sum().backward()


def _held(value: Any) -> int:
    """Bytes of all tensors in a state."""
    if isinstance(value, Tensor):
        return value.untyped_storage().nbytes()
    if isinstance(value, State):
        value = vars(value)
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return 0
    return sum(_held(part) for part in value)
