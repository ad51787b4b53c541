"""Any mechanism in a small stack of blocks, taught a puzzle through the one loop, and judged on draws it has never seen.

    Taught(puzzle=Needle(), mixer=Heads(attention=partial(LongformerAttention, radius=4)))

is a variant of a recipe. Training draws every batch anew; validation and test are draws of their own, the same for all variants and
seeds. The figure is the share of the asked places that are right. Variants of a recipe differ in what is looked by, and take equal steps.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from ..attention import AdaptiveSpanAttention, Attention, SoftmaxAttention, State
from ..layers import Block, Embedding, FeedForward, GatedHeads, LayerNorm, Learned, MultiHead, Position
from ..look import Map, capture
from ..patterns import Pattern, full
from ..train import AdamW, Budget, Cosine, Every, Loss, Metric, TrainConfig, fit
from ..train.weights import load_weights
from ._puzzles import NOTHING, Puzzle

WIDTH, HEADS = 32, 2
VALIDATION, TEST = 1_000_003, 1_000_033  # seeds of draws that are not trained on
ROWS = 256  # of either


def training(steps: int, rate: float = 5e-3) -> TrainConfig:
    """A short warm-up, then half a cosine down to nothing; ten evaluations."""
    return TrainConfig(
        budget=Budget(steps=steps),
        optimizer=AdamW(betas=(0.9, 0.98), weight_decay=0.0),
        schedule=Cosine(peak=rate, warmup=steps // 10, steps=steps),
        every=Every(log=max(1, steps // 10), evaluate=max(1, steps // 10), save=steps),
    )


# -- parts of the model ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Heads:
    """A MultiHead of some mechanism, made anew for each block; `gated` and `near` put around and before it what its paper does."""

    attention: Callable[[], Attention] = SoftmaxAttention
    width: int = WIDTH
    heads: int = HEADS
    shared_qk: bool = False
    position: Callable[[], Position] | None = None
    gated: bool = False
    near: int = 0  # tokens that a short convolution before it takes together

    def __call__(self) -> nn.Module:
        position = None if self.position is None else self.position()
        heads = MultiHead(self.width, self.heads, self.attention(), shared_qk=self.shared_qk, position=position)
        mixer = GatedHeads(heads) if self.gated else heads
        return Near(self.width, mixer, self.near) if self.near else mixer


class Near(nn.Module):
    """A mixer behind a short causal convolution of each feature for itself: a token's key may then depend on the token before."""

    def __init__(self, width: int, mixer: nn.Module, size: int):
        super().__init__()
        self.mixer, self.taps_TD = mixer, nn.Parameter(torch.empty(size, width).uniform_(-(size**-0.5), size**-0.5))

    def forward(self, x_BLD: Tensor, pattern: Pattern = full, state: State | None = None) -> Tensor:
        L = x_BLD.shape[1]
        near_BLD = sum((tap_D * F.pad(x_BLD, (0, 0, n, 0))[:, :L] for n, tap_D in enumerate(self.taps_TD)), x_BLD)
        return self.mixer(near_BLD, pattern=pattern, state=state)  # type: ignore[no-any-return]


class Alone(nn.Module):
    """The ablation of all mixers: no token learns of another."""

    def forward(self, x_BLD: Tensor, pattern: Pattern = full, state: State | None = None) -> Tensor:
        return torch.zeros_like(x_BLD)


class Reader(nn.Module):
    """Tokens, blocks, and a symbol for every place. With `segment` it reads so many tokens at a time, each block remembering what it may."""

    def __init__(self, vocab: int, width: int, blocks: Sequence[Block], position: Position | None, pattern: Pattern, segment: int | None):
        super().__init__()
        self.embedding, self.blocks = Embedding(vocab, width, position), nn.ModuleList(blocks)
        self.norm, self.out = LayerNorm(width), nn.Linear(width, vocab)
        self.pattern, self.segment = pattern, segment

    def forward(self, ids_BL: Tensor) -> Tensor:
        """logits_BLN"""
        states = [block.start(len(ids_BL), self.pattern) if self.segment else None for block in self.blocks]  # type: ignore[operator]
        read = []
        for part_BL in ids_BL.split(self.segment or ids_BL.shape[1], 1):
            x_BLD = self.embedding(part_BL)  # places count from the segment's own beginning
            for block, state in zip(self.blocks, states, strict=True):
                x_BLD = block(x_BLD, self.pattern, state=state)
            read.append(x_BLD)
        return self.out(self.norm(torch.cat(read, 1)))  # type: ignore[no-any-return]


# -- the task ----------------------------------------------------------------------------------------------------------


class SequenceTask:
    """What the training loop asks. `span_cost`: nats that a token more of adaptive spans costs."""

    metric = Metric("objective", higher=False)  # what is trained on, spans too: by accuracy alone the widest would be kept

    def __init__(self, puzzle: Puzzle, rows: int, span_cost: float = 0.0):
        self.puzzle, self.rows, self.span_cost = puzzle, rows, span_cost
        self.unseen = drawn(puzzle, VALIDATION)

    def batches(self, epoch: int) -> Sequence[int]:
        return range(100)

    def batch(self, item: int) -> tuple[Tensor, Tensor]:
        return self.puzzle.draw(self.rows)  # of the random state that the loop has set for this batch

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Loss:
        total, right, count = asked(model, *batch)
        return Loss(total + count * self._cost(model), count, {"right": right})

    def after_step(self, model: nn.Module) -> None:
        for look in _spans(model):
            look.clamp_()

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        total, right, count = asked(model, *self.unseen)
        return {"accuracy": right / count, "nats": float(total) / count, "objective": float(total) / count + float(self._cost(model))}

    def _cost(self, model: nn.Module) -> Tensor | float:
        return self.span_cost * sum((look.penalty() for look in _spans(model)), torch.zeros(())) if self.span_cost else 0.0


def drawn(puzzle: Puzzle, seed: int, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return puzzle.draw(rows)


def asked(model: nn.Module, ids_BL: Tensor, wanted_BL: Tensor) -> tuple[Tensor, float, int]:
    """The summed loss of the places that are asked, how many are right, how many there are."""
    where_BL = wanted_BL != NOTHING
    logits_TN, wanted_T = model(ids_BL)[where_BL], wanted_BL[where_BL]
    right = float((logits_TN.detach().argmax(-1) == wanted_T).sum())
    return F.cross_entropy(logits_TN, wanted_T, reduction="sum"), right, len(wanted_T)


def _spans(model: nn.Module) -> list[AdaptiveSpanAttention]:
    return [part for part in model.modules() if isinstance(part, AdaptiveSpanAttention)]


# -- the variant -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Taught:
    """A stack of blocks taught a puzzle; judged also with each of `retried`: attributes of its mechanisms, set anew after training."""

    puzzle: Puzzle
    mixer: Callable[[], nn.Module]
    train: TrainConfig
    rows: int = 32  # a batch
    width: int = WIDTH
    depth: int = 2
    places: bool = True  # a learned vector a place, added to the tokens
    pattern: Pattern = full
    segment: int | None = None
    span_cost: float = 0.0
    retried: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    also: Callable[[Reader], Mapping[str, float]] | None = None  # further figures of the model

    def build(self) -> Reader:
        length = min(self.puzzle.length, self.segment or self.puzzle.length)
        position = Learned(length, self.width) if self.places else None
        blocks = [Block(self.width, self.mixer(), FeedForward(self.width, 4 * self.width)) for _ in range(self.depth)]
        return Reader(self.puzzle.vocab, self.width, blocks, position, self.pattern, self.segment)

    def load(self, out: Path) -> Reader:
        """The model that was left in `out`."""
        model = self.build()
        load_weights(model, load_file(out / "model.safetensors"))
        return model.eval()

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        shutil.rmtree(out, ignore_errors=True)  # a recipe is a measurement: nothing of an earlier run counts
        model = self.build()
        task = SequenceTask(self.puzzle, self.rows, self.span_cost)
        done = fit(model, task, replace(self.train, seed=seed), out, progress=False)
        events = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        return {
            "accuracy": self._accuracy(model, {}),
            **({} if self.also is None else self.also(model)),
            **{f"accuracy, {name}": self._accuracy(model, changes) for name, changes in self.retried.items()},
            "seconds": done.seconds,
            "parameters": float(sum(p.numel() for p in model.parameters())),
            **{f"validation accuracy, step {e['step']}": e["accuracy"] for e in events if e["event"] == "evaluation"},
        }

    def look(self, out: Path, layer: int = -1) -> Map:
        """Where the model in `out` looks on the first of the test draws: one layer, the mean of its heads."""
        model = self.load(out)
        with torch.no_grad(), capture(model, layers=[layer]) as maps:
            model(drawn(self.puzzle, TEST)[0][:1])
        return maps.all[-1].head()

    @torch.no_grad()
    def _accuracy(self, model: Reader, changes: Mapping[str, Any]) -> float:
        looks = [part for part in model.eval().modules() if isinstance(part, Attention)]
        before = [{name: getattr(look, name) for name in changes} for look in looks]
        for look in looks:
            vars(look).update(changes)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(TEST)  # hash functions are drawn as they are needed
            _, right, count = asked(model, *drawn(self.puzzle, TEST))
        for look, own in zip(looks, before, strict=True):
            vars(look).update(own)
        return right / count
