"""Variants that learn a puzzle: any mechanism in a small stack of blocks, or a language model.

    StackVariant(puzzle=Needle(), mixer=Heads(attention=partial(LongformerAttention, 4)), train=puzzle_training(300))

is a variant of a recipe. Every training batch is a new draw; the validation and test sequences are drawn with seeds of their own, the same
for all variants. The metric is the accuracy at the positions that have a target. Variants of a recipe differ in the mechanism, and take
equally many steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from ...attention import AdaptiveSpanAttention, Attention, SoftmaxAttention, State
from ...layers import Block, Embedding, FeedForward, LayerNorm, Learned, MultiHead, Position, SegmentRecurrence
from ...look import Map, capture
from ...models import LanguageModel, build, find_model
from ...patterns import Pattern, full
from ...train import Loss, Metric, Objective, TrainOptions, fit
from ...train.parameters import load_parameters
from .claims import Proportion
from .puzzles import IGNORE_INDEX, Puzzle
from .variants import short_training, training_metrics

WIDTH, HEADS = 32, 2
VALIDATION_SEED, TEST_SEED = 1_000_003, 1_000_037  # 1_000_033 until settings had been chosen with those sequences in view
HELD_OUT = 256  # sequences of either

ModelT = TypeVar("ModelT", bound=nn.Module)


def puzzle_training(steps: int, lr: float = 5e-3) -> TrainOptions:
    return short_training(steps, lr, "adamw", evaluations=10, weight_decay=0.0)


# -- the model ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Heads:
    """A factory of MultiHead layers, called once per block; with `memory` they also attend to as many positions of earlier segments."""

    attention: Callable[[], Attention] = SoftmaxAttention
    width: int = WIDTH
    heads: int = HEADS
    shared_qk: bool = False
    position: Callable[[], Position] | None = None
    memory: int | None = None

    def __call__(self) -> nn.Module:
        position = None if self.position is None else self.position()
        heads = MultiHead(self.width, self.heads, self.attention(), shared_qk=self.shared_qk, position=position)
        return heads if self.memory is None else SegmentRecurrence(heads, self.memory)


class ShortConvolution(nn.Module):
    """A mixer after a causal depthwise convolution: a token's key may then depend on the token before."""

    def __init__(self, width: int, mixer: nn.Module, size: int):
        super().__init__()
        self.mixer = mixer
        self.taps_TD = nn.Parameter(torch.empty(size, width).uniform_(-(size**-0.5), size**-0.5))

    def forward(self, x_BLD: Tensor, pattern: Pattern = full, state: State | None = None) -> Tensor:
        L = x_BLD.shape[1]
        mixed_BLD = sum((tap_D * F.pad(x_BLD, (0, 0, n, 0))[:, :L] for n, tap_D in enumerate(self.taps_TD)), x_BLD)
        return self.mixer(mixed_BLD, pattern=pattern, state=state)


class NoMixing(nn.Module):
    """The ablation of all mixers: no token attends to another."""

    def forward(self, x_BLD: Tensor, pattern: Pattern = full, state: State | None = None) -> Tensor:
        return torch.zeros_like(x_BLD)


class Stack(nn.Module):
    """Embedding, blocks, and logits at every position. With `segment`, sequences are read in segments, each block keeping its state."""

    def __init__(
        self, vocab_size: int, width: int, blocks: Sequence[Block], position: Position | None, pattern: Pattern, segment: int | None
    ):
        super().__init__()
        self.embedding, self.blocks = Embedding(vocab_size, width, position), nn.ModuleList(blocks)
        self.norm, self.out = LayerNorm(width), nn.Linear(width, vocab_size)
        self.pattern, self.segment = pattern, segment

    def forward(self, ids_BL: Tensor) -> Tensor:
        """logits_BLN"""
        states = [block.start(len(ids_BL), self.pattern) if self.segment else None for block in self.blocks]  # type: ignore[operator]
        read = []
        for part_BL in ids_BL.split(self.segment or ids_BL.shape[1], 1):
            x_BLD = self.embedding(part_BL)  # positions count from the beginning of the segment
            for block, state in zip(self.blocks, states, strict=True):
                x_BLD = block(x_BLD, self.pattern, state=state)
            read.append(x_BLD)
        return self.out(self.norm(torch.cat(read, 1)))


# -- the task ----------------------------------------------------------------------------------------------------------


class PuzzleObjective(Objective):
    """Cross-entropy at the positions that have a target. `span_cost`: nats per token of adaptive span."""

    metric = Metric("objective", higher=False)  # the loss with the cost of spans: by accuracy alone the widest span would be kept

    def __init__(self, puzzle: Puzzle, batch_size: int, span_cost: float = 0.0, validation: Puzzle | None = None):
        self.puzzle, self.batch_size, self.span_cost = puzzle, batch_size, span_cost
        self.validation = draw_sequences(validation or puzzle, VALIDATION_SEED)

    def batches(self, epoch: int) -> Sequence[int]:
        return range(100)

    def batch(self, item: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return self.puzzle.draw(self.batch_size, generator)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Loss:
        total, right, count = score_targets(model, *batch)
        return Loss(total + count * self._cost(model), count, {"accuracy": right})

    def after_step(self, model: nn.Module) -> None:
        for attention in _adaptive_spans(model):
            attention.clamp_()

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        total, right, count = score_targets(model, *self.validation)
        loss = float(total) / count
        return {"accuracy": right / count, "loss": loss, "objective": loss + float(self._cost(model))}

    def _cost(self, model: nn.Module) -> Tensor | float:
        spans = _adaptive_spans(model) if self.span_cost else []
        return self.span_cost * sum((attention.penalty() for attention in spans), torch.zeros(()))


def draw_sequences(puzzle: Puzzle, seed: int, rows: int | None = None) -> tuple[Tensor, Tensor]:
    """Draw sequences and targets, the same ones for the same seed."""
    return puzzle.draw(rows or HELD_OUT, torch.Generator().manual_seed(seed))


def score_targets(model: nn.Module, ids_BL: Tensor, target_BL: Tensor) -> tuple[Tensor, float, int]:
    """The summed loss at positions that have a target, how many are right, how many there are."""
    where_BL = target_BL != IGNORE_INDEX
    logits_TN, target_T = model(ids_BL)[where_BL], target_BL[where_BL]
    right = float((logits_TN.detach().argmax(-1) == target_T).sum())
    return F.cross_entropy(logits_TN, target_T, reduction="sum"), right, len(target_T)


def _adaptive_spans(model: nn.Module) -> list[AdaptiveSpanAttention]:
    return [part for part in model.modules() if isinstance(part, AdaptiveSpanAttention)]


# -- the variants ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PuzzleVariant(ABC, Generic[ModelT]):
    """A model that learns a puzzle."""

    puzzle: Puzzle
    train: TrainOptions
    batch_size: int = 32
    span_cost: float = 0.0

    @abstractmethod
    def build(self) -> ModelT:
        """The model with initial parameters."""

    @abstractmethod
    def metrics(self, model: ModelT) -> dict[str, float]:
        """Metrics of a trained model on the test sequences."""

    def load(self, out: Path) -> ModelT:
        """The trained model in `out`."""
        model = self.build()
        load_parameters(model, load_file(out / "model.safetensors"))
        return model.eval()

    def objective(self) -> PuzzleObjective:
        """The objective of training, with the sequences that validate it."""
        return PuzzleObjective(self.puzzle, self.batch_size, self.span_cost)

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        model = self.build()
        result = fit(model, self.objective(), self.train.replace(seed=seed), out, progress=False)
        return {**self.metrics(model.eval()), **training_metrics(result, model, out, "accuracy")}

    @torch.no_grad()
    def attention_map(self, out: Path, layer: int = -1) -> Map:
        """The attention of the model in `out` on the first test sequence: one layer, the mean over its heads."""
        model = self.load(out)
        with capture(model, layers=[layer]) as maps:
            model(draw_sequences(self.puzzle, TEST_SEED)[0][:1])
        return maps.all[-1].head()


@dataclass(frozen=True, kw_only=True)
class StackVariant(PuzzleVariant[Stack]):
    """A stack of blocks; also evaluated with each mixer of `reevaluated` in place of its own, with the same parameters."""

    mixer: Callable[[], nn.Module]
    convolution: int = 0  # kernel size of a short convolution before the mixer; 0: none
    width: int = WIDTH
    depth: int = 2
    positions: bool = True  # learned embeddings of positions, added to the tokens
    pattern: Pattern = full
    segment: int | None = None
    reevaluated: Mapping[str, Callable[[], nn.Module]] = field(default_factory=dict)
    extra_metrics: Callable[[Stack], Mapping[str, float]] | None = None

    def position(self) -> Position | None:
        """Positional encoding that is added to the tokens."""
        return Learned(min(self.puzzle.length, self.segment or self.puzzle.length), self.width) if self.positions else None

    def build(self) -> Stack:
        blocks = [Block(self.width, self._mixer(), FeedForward(self.width, 4 * self.width)) for _ in range(self.depth)]
        return Stack(self.puzzle.vocab_size, self.width, blocks, self.position(), self.pattern, self.segment)

    def _mixer(self) -> nn.Module:
        return ShortConvolution(self.width, self.mixer(), self.convolution) if self.convolution else self.mixer()

    def metrics(self, model: Stack) -> dict[str, float]:
        extra = {} if self.extra_metrics is None else self.extra_metrics(model)
        others = {name: self._with_mixer(model, mixer) for name, mixer in self.reevaluated.items()}
        return {
            "accuracy": self._accuracy(model),
            **extra,
            **{f"accuracy, {name}": self._accuracy(other) for name, other in others.items()},
        }

    def _with_mixer(self, model: Stack, mixer: Callable[[], nn.Module]) -> Stack:
        other = replace(self, mixer=mixer).build()
        other.load_state_dict(model.state_dict())
        return other.eval()

    @torch.no_grad()
    def _accuracy(self, model: Stack) -> float:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(TEST_SEED)  # some mechanisms draw their hash functions at every call
            _, right, count = score_targets(model, *draw_sequences(self.puzzle, TEST_SEED))
        return Proportion(right / count, count)


@dataclass(frozen=True, kw_only=True)
class PuzzleLMVariant(PuzzleVariant[LanguageModel]):
    """A language model; with `by`, accuracy also per target, where these have the same positions in all sequences."""

    test: Puzzle | None = None  # evaluate on this one, if not on the one that is learned
    model: str = "gpt3"
    settings: Mapping[str, Any] = field(default_factory=dict)
    by: str = ""  # units that the targets count

    def build(self) -> LanguageModel:
        sizes = {"vocab_size": self.puzzle.vocab_size, find_model(self.model).length_setting: self.puzzle.length}
        model = build(self.model, sizes | dict(self.settings))
        assert isinstance(model, LanguageModel)
        return model

    @torch.no_grad()
    def metrics(self, model: LanguageModel) -> dict[str, float]:
        ids_BL, target_BL = draw_sequences(self.test or self.puzzle, TEST_SEED)
        right_BL, asked_BL = model(ids_BL).argmax(-1) == target_BL, target_BL != IGNORE_INDEX
        found: dict[str, float] = {"accuracy": Proportion(float(right_BL.sum() / asked_BL.sum()), int(asked_BL.sum()))}
        if self.by:
            accuracy_N = right_BL[:, asked_BL[0]].double().mean(0).tolist()
            found |= {f"accuracy by {self.by}, {n}": Proportion(accuracy, len(ids_BL)) for n, accuracy in enumerate(accuracy_N)}
        return found
