"""A linear transformer copies as a transformer does, and writes its next token in a time and a memory that do not depend on how many came before.

Paper: Katharopoulos et al. 2020, "Transformers are RNNs", arXiv:2006.16236, sections 3.4, 4.1 and 4.2 (there sequences of 128 and
       pictures, here 32 tokens).
Run:   regard run linear2020        Takes: some minutes on two CPU cores; three seeds of three small models, and of two clocks.

Copy: 0w0w with w of 15 out of 10 symbols; two layers, width 64, 4 heads. The ablation that must lose is a window too short to
reach back. Step: a MultiHead of width 256 with 4 heads, float32, one thread, the median of 200 steps after 1,024 and after 16,384 tokens,
taken in turn: whatever else slows the machine down for a while then slows all of them. (Softmax finds its keys out of the cache then, after
1,024 tokens too, which makes its ratio smaller than it is when each length has the cache to itself.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from ..attention import Attention, LinearAttention, LocalAttention, SoftmaxAttention, State
from ..layers import MultiHead
from ..patterns import Pattern, causal, local_causal
from ._base import Claim, Figures, Recipe, RecipeFacts, Variant
from ._pictures import lines, series, solving
from ._puzzles import Duplicate
from ._sequences import Heads, Taught, training
from .complexity2017 import one_thread

CONTEXTS = (1024, 4096, 16384)


def copying(attention: Callable[[], Attention]) -> Taught:
    heads = Heads(attention=attention, width=64, heads=4)
    return Taught(puzzle=Duplicate(length=32, symbols=10), mixer=heads, width=64, pattern=causal, train=training(500, 2e-3))


@dataclass(frozen=True, kw_only=True)
class Stepped:
    """What a step costs after so many tokens: microseconds, and bytes held. They are read under `reading`, whose cost is not counted."""

    attention: Callable[[], Attention]
    reading: Pattern
    contexts: tuple[int, ...] = CONTEXTS
    width: int = 256
    steps: int = 200

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        heads, figures = MultiHead(self.width, 4, self.attention()).eval(), {}
        with torch.inference_mode(), one_thread():
            states = {context: heads.start(1) for context in self.contexts}
            for context, state in states.items():
                heads(torch.randn(1, context, self.width), pattern=self.reading, state=state)
            seconds: dict[int, list[float]] = {context: [] for context in states}
            for x_B1D in torch.randn(self.steps, 1, 1, self.width):
                for context, state in states.items():
                    start = time.perf_counter()
                    heads(x_B1D, pattern=causal, state=state)
                    seconds[context].append(time.perf_counter() - start)
            for context, state in states.items():
                figures[f"microseconds a step, after {context} tokens"] = median(seconds[context]) * 1e6
                figures[f"bytes held, after {context} tokens"] = float(sum(x.numel() * x.element_size() for x in tensors(state)))
        first, last = (figures[f"microseconds a step, after {context} tokens"] for context in (self.contexts[0], self.contexts[-1]))
        return {"time ratio": last / first, **figures}


def tensors(state: State) -> Iterator[Tensor]:
    for value in vars(state).values():
        for one in value.values() if isinstance(value, dict) else [value]:
            if isinstance(one, Tensor):
                yield one


VARIANTS: dict[str, Variant] = {
    "copy, linear": copying(LinearAttention),
    "copy, softmax": copying(SoftmaxAttention),
    "copy, window": copying(partial(LocalAttention, 4)),
    "step, linear": Stepped(attention=LinearAttention, reading=causal),
    "step, softmax": Stepped(attention=SoftmaxAttention, reading=causal & local_causal(8)),  # all keys are kept, few looked at yet
}


def cost(figures: Figures, out: Path) -> Path:
    curves = series(figures, "microseconds a step")
    return lines(out / "cost.png", curves, x="tokens before", y="microseconds", title="One step of decoding", logarithmic="xy")


def bytes_held(f: Figures, name: str) -> tuple[float, float]:
    sizes = series(f, "bytes held")[name]
    return sizes[min(sizes)].mean, sizes[max(sizes)].mean


recipe = Recipe(
    facts=RecipeFacts(
        name="linear2020",
        year=2020,
        title="Transformers are RNNs: fast autoregressive transformers with linear attention",
        paper="arXiv:2006.16236",
        takes="some five minutes on two CPU cores",
    ),
    question="Does a linear transformer copy, and does a step of it cost the same whatever came before?",
    variants=VARIANTS,
    claims=(
        Claim(
            "copy: linear and softmax at least 99 % right",
            lambda f: min(f["copy, linear", "accuracy"].low, f["copy, softmax", "accuracy"].low) >= 0.99,
            lambda f: f"{f['copy, linear', 'accuracy']}; {f['copy, softmax', 'accuracy']}",
        ),
        Claim(
            "copy: a window that does not reach back at most 20 %, twice chance",
            lambda f: f["copy, window", "accuracy"].high <= 0.2,
            lambda f: str(f["copy, window", "accuracy"]),
        ),
        Claim(
            "step: linear takes at most 1.2 times as long after 16,384 tokens as after 1,024",
            lambda f: f["step, linear", "time ratio"].high <= 1.2,
            lambda f: str(f["step, linear", "time ratio"]),
        ),
        Claim(
            "step: softmax at least 5 times as long",
            lambda f: f["step, softmax", "time ratio"].low >= 5,
            lambda f: str(f["step, softmax", "time ratio"]),
        ),
        Claim(
            "step: linear holds as many bytes after 16,384 tokens as after 1,024, softmax at least 8 times as many",
            lambda f: (
                len(set(bytes_held(f, "step, linear"))) == 1 and bytes_held(f, "step, softmax")[1] >= 8 * bytes_held(f, "step, softmax")[0]
            ),
            lambda f: "; ".join(
                f"{name} {a:,.0f} and {b:,.0f}" for name in ("step, linear", "step, softmax") for a, b in [bytes_held(f, name)]
            ),
        ),
    ),
    pictures=(solving, cost),
)
