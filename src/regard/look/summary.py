"""Statistics per head: entropy and mean distance, layers × heads, and the rollout of a stack of layers."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, replace

from .map import MEAN, Map
from .maps import Maps
from .terminal import to_text as map_to_text


@dataclass(frozen=True)
class Stack:
    """Layers whose paths differ only in numbers, as blocks.0.attention and blocks.1.attention."""

    name: str  # blocks.*.attention
    numbers: tuple[str, ...]  # of its layers
    maps: tuple[Map, ...]

    def head_name(self, n: int) -> str:
        heads = max((m.heads for m in self.maps), key=len)
        return "mean" if heads[n] == MEAN else f"head {heads[n]}"

    def rollout(self) -> Map | None:
        """As one map; None unless all its layers are complete self-attentions of one length."""
        first, last = self.maps[0], self.maps[-1]
        if any(not m.square or m.queries != first.queries or m.run != first.run for m in self.maps):
            return None
        weights_BHLM = Maps(self.maps).rollout()[:, None]
        about = f"{len(self.maps)} layers" if len(self.maps) > 1 else "1 layer"
        return replace(last, layer=f"rollout of {self.name}", mechanism=about, heads=(MEAN,), weights_BHLM=weights_BHLM, normalised=True)


def stacks(maps: list[Map]) -> list[Stack]:
    """In order of first call."""
    groups: dict[str, list[Map]] = {}
    for m in maps:
        groups.setdefault(re.sub(r"\d+", "*", m.layer), []).append(m)
    return [Stack(name, tuple(".".join(re.findall(r"\d+", m.layer)) for m in some), tuple(some)) for name, some in groups.items()]


def entropies(stack: Stack, batch: int) -> list[list[float]]:
    """In nats, by layer and head."""
    return [m.entropy()[batch].tolist() for m in stack.maps]


def distances(stack: Stack, batch: int) -> list[list[float]]:
    """In positions, by layer and head; nothing where queries and keys are different sequences."""
    return [m.distance()[batch].tolist() for m in stack.maps] if all(m.queries == m.keys for m in stack.maps) else []


def to_text(maps: list[Map], batch: int = 0, columns: int | None = None) -> str:
    """Tables of entropy and mean distance, and the rollout as a map."""
    columns = columns or shutil.get_terminal_size((100, 30)).columns
    parts = []
    for stack in stacks(maps):
        parts.append(f"{stack.name}: {', '.join(dict.fromkeys(m.mechanism for m in stack.maps))}")
        parts += _table(stack, "Entropy in nats; 0: one key has all the weight", entropies(stack, batch), columns)
        parts += _table(stack, "Mean distance in positions between a query and its keys", distances(stack, batch), columns)
        rollout = stack.rollout()
        if rollout is not None:
            parts += [map_to_text(rollout, batch, columns), ""]
    return "\n".join(parts).rstrip()


def _table(stack: Stack, heading: str, values: list[list[float]], columns: int) -> list[str]:
    """A line per layer, a column per head; heads that do not fit go below."""
    if not any(values):
        return []
    cells = [[f"{value:.2f}" for value in row] for row in values]
    names = [stack.head_name(n) for n in range(max(map(len, cells)))]
    wide = 1 + max(map(len, [*names, *(cell for row in cells for cell in row), "head 0"]))
    margin = max(map(len, ["layer", *stack.numbers]))
    lines, at_once = [heading], max(1, (columns - margin) // (wide + 1))
    for first in range(0, len(names), at_once):
        for number, row in zip(("layer", *stack.numbers), (names, *cells), strict=True):
            lines.append(number.rjust(margin) + "".join(cell.rjust(wide + 1) for cell in row[first : first + at_once]))
    return [*lines, ""]
