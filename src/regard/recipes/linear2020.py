"""A linear transformer copies as a transformer does, and decodes its next token in time and memory that do not depend on the context.

Paper: Katharopoulos et al. 2020, "Transformers are RNNs", arXiv:2006.16236, sections 3.4, 4.1 and 4.2 (there sequences of 128 and
       pictures, here 32 tokens).
Run:   regard run linear2020        Takes: 2 minutes on two CPU cores; three seeds of three small models, and of two timings.

Copy: 0w0w with w of 15 out of 10 symbols; two layers, width 64, 4 heads. The ablation that must lose is a window too short to
reach back. Step: a MultiHead of width 256 with 4 heads, float32, one thread, the median of 200 steps after 1,024 and after 16,384 tokens,
in turn: whatever slows the machine down for a while then slows all of them. (The keys of softmax attention are then out of the CPU cache,
after 1,024 tokens too, which makes its ratio smaller than it is when each length has the cache to itself.)
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
from ._engine import Claim, Curves, Recipe, RecipeFacts, at_least, at_most, measured, validation_curves
from ._engine.puzzles import Duplicate
from ._engine.stacks import Heads, StackVariant, puzzle_training
from ._engine.variants import one_thread

CONTEXTS = (1024, 4096, 16384)
LINEAR, SOFTMAX = "step, linear", "step, softmax"


def copying(attention: Callable[[], Attention]) -> StackVariant:
    puzzle, heads = Duplicate(length=32, symbols=10), Heads(attention=attention, width=64, heads=4)
    return StackVariant(puzzle=puzzle, mixer=heads, width=64, pattern=causal, train=puzzle_training(500, 2e-3))


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """Microseconds of a decoding step, and bytes of the state, by context. The context is read under `prefill`, which is not timed."""

    attention: Callable[[], Attention]
    prefill: Pattern
    contexts: tuple[int, ...] = CONTEXTS
    width: int = 256
    steps: int = 200

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        heads = MultiHead(self.width, 4, self.attention()).eval()
        with torch.inference_mode(), one_thread():
            states = {context: heads.start(1) for context in self.contexts}
            for context, state in states.items():
                heads(torch.randn(1, context, self.width), pattern=self.prefill, state=state)
            seconds: dict[int, list[float]] = {context: [] for context in states}
            for x_B1D in torch.randn(self.steps, 1, 1, self.width):
                for context, state in states.items():
                    start = time.thread_time()
                    heads(x_B1D, pattern=causal, state=state)
                    seconds[context].append(time.thread_time() - start)
        times = {context: median(each) * 1e6 for context, each in seconds.items()}
        sizes = {context: float(sum(x.nbytes for x in tensors(state))) for context, state in states.items()}
        return {
            "time ratio": times[self.contexts[-1]] / times[self.contexts[0]],
            **{f"microseconds per step, after {context} tokens": each for context, each in times.items()},
            "state ratio": sizes[self.contexts[-1]] / sizes[self.contexts[0]],
            **{f"bytes, after {context} tokens": size for context, size in sizes.items()},
        }


def tensors(state: State) -> Iterator[Tensor]:
    for value in vars(state).values():
        for one in value.values() if isinstance(value, dict) else [value]:
            if isinstance(one, Tensor):
                yield one


recipe = Recipe(
    facts=RecipeFacts(
        "linear2020", 2020, "Transformers are RNNs: fast autoregressive transformers with linear attention", "arXiv:2006.16236", "2 minutes"
    ),
    question="Does a linear transformer copy, and is the cost of its decoding step independent of the context?",
    variants={
        "copy, linear": copying(LinearAttention),
        "copy, softmax": copying(SoftmaxAttention),
        "copy, window": copying(partial(LocalAttention, 4)),
        LINEAR: StepCost(attention=LinearAttention, prefill=causal),
        SOFTMAX: StepCost(attention=SoftmaxAttention, prefill=causal & local_causal(8)),  # keeps all keys, attends to few of them
    },
    claims=(
        at_least("copy: linear and softmax at least 99 % right", 0.99, "copy, linear", "copy, softmax"),
        at_most("copy: a window that does not reach back at most 20 %, twice chance", 0.2, "copy, window", kind="control"),
        at_most("step: linear takes at most 1.2 times as long after 16,384 tokens as after 1,024", 1.2, (LINEAR, "time ratio")),
        at_least("step: softmax at least 5 times as long", 5, (SOFTMAX, "time ratio")),
        Claim(
            "step: the state of linear has as many bytes after 16,384 tokens as after 1,024, that of softmax at least 8 times as many",
            measured(LINEAR, "state ratio") <= 1,
            measured(SOFTMAX, "state ratio") >= 8,
            kind="control",
        ),
    ),
    pictures=(
        validation_curves("accuracy"),
        Curves(metric="microseconds per step", file="cost", x="context", y="microseconds", title="One decoding step", log="xy"),
    ),
)
