"""Small stacks that predict the next character of CPython's documentation, at the length of training and beyond it.

Training, validation and test windows come from different topics. A loss is in nats per character, a mean over test windows; `loss, a to b` is that
of the a-th to the b-th character of the longest windows, which have read as many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate, pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...layers import Position
from ...patterns import Pattern, causal
from .claims import Value, measured
from .stacks import TEST_SEED, PuzzleObjective, Stack, StackVariant, draw_sequences
from .variants import topics

PARTS = {"train": (0, 8), "valid": (8, 9), "test": (9, 10)}  # tenths of the text; a topic belongs where it begins
VOCABULARY = 96  # the most frequent characters; the last of the vocabulary stands for all others
WINDOW = 4  # sequences of a batch when a model is evaluated on long windows
Part = Literal["train", "valid", "test"]


@cache
def characters(part: Part) -> Tensor:
    """ids_T: the characters of a part."""
    texts = ["\n\n".join(paragraphs) + "\n\n" for paragraphs in topics().values()]
    known = {letter: n for n, (letter, _) in enumerate(Counter("".join(texts)).most_common(VOCABULARY - 1))}
    begins, whole = accumulate(map(len, texts), initial=0), sum(map(len, texts))
    low, high = (tenth * whole / 10 for tenth in PARTS[part])
    kept = [text for begin, text in zip(begins, texts, strict=False) if low <= begin < high]
    return torch.tensor([known.get(letter, VOCABULARY - 1) for letter in "".join(kept)])


@dataclass(frozen=True, kw_only=True)
class Characters:
    """Windows of a text, anywhere in it; the target of each character is the next."""

    length: int = 64
    part: Part = "train"

    @property
    def vocab_size(self) -> int:
        return VOCABULARY

    def draw(self, rows: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        ids_T = characters(self.part)
        begin_B1 = torch.randint(len(ids_T) - self.length, (rows, 1), generator=generator)
        window_BL = ids_T[begin_B1 + torch.arange(self.length + 1)]
        return window_BL[:, :-1], window_BL[:, 1:]


@dataclass(frozen=True, kw_only=True)
class TextStackVariant(StackVariant):
    """A stack that learns windows of characters, evaluated on windows of `longest`, also with each mixer of `reevaluated` in place of its own."""

    puzzle: Characters = field(default_factory=Characters)
    longest: int = 256
    added: Callable[[], Position] | None = None  # positional encoding added to the tokens
    width: int = 64
    pattern: Pattern = causal
    read: Callable[[Stack, Tensor], Mapping[str, float]] | None = None  # more metrics, of the model and test windows

    def position(self) -> Position | None:
        return None if self.added is None else self.added()

    def objective(self) -> PuzzleObjective:
        return PuzzleObjective(self.puzzle, self.batch_size, validation=replace(self.puzzle, part="valid"))

    @torch.no_grad()
    def metrics(self, model: Stack) -> dict[str, float]:
        ids_BL, target_BL = draw_sequences(replace(self.puzzle, part="test"), TEST_SEED)
        logits_BLN = model(ids_BL)
        found = {
            "loss": float(F.cross_entropy(logits_BLN.flatten(0, 1), target_BL.flatten())),
            "accuracy": float((logits_BLN.argmax(-1) == target_BL).float().mean()),
            **self._by_context(model),
        }
        for name, mixer in self.reevaluated.items():
            found |= {f"{metric}, {name}": loss for metric, loss in self._by_context(self._with_mixer(model, mixer)).items()}
        return found if self.read is None else {**found, **self.read(model, ids_BL)}

    def _by_context(self, model: nn.Module) -> dict[str, float]:
        """Loss by the number of characters read, in ranges that double."""
        ids_BL, target_BL = draw_sequences(replace(self.puzzle, part="test", length=self.longest), TEST_SEED)
        parts = zip(ids_BL.split(WINDOW), target_BL.split(WINDOW), strict=True)
        loss_L = sum(
            (
                F.cross_entropy(model(ids).flatten(0, 1), target.flatten(), reduction="none").view(target.shape).sum(0)
                for ids, target in parts
            ),
            torch.zeros(self.longest),
        ) / len(ids_BL)
        edges = [0, *(2**n for n in range(3, self.longest.bit_length()))]
        return {f"loss, {low + 1} to {high}": float(loss_L[low:high].mean()) for low, high in pairwise(edges)}


def loss(variant: str, low: int, high: int, name: str = "") -> Value:
    """Loss from the `low`-th to the `high`-th character of the longest windows.

    Args:
        variant: name of the variant.
        low: first character, from 1.
        high: last character.
        name: mixer of `reevaluated`; "": its own.
    """
    return measured(variant, f"loss, {low} to {high}" + (f", {name}" if name else ""))
