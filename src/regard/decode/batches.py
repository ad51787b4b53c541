"""Many inputs, decoded in batches of similar length, and given back in the order they came."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..errors import ShapeError
from ._base import Encoder, Hypothesis, S, Tokens, device_of
from .sample import Sampling, sample
from .search import Beam, search

PAD = 0  # what fills a short row; masks come from the lengths, so any id would do


def batches(lengths: Sequence[int], positions: int) -> list[list[int]]:
    """Numbers of inputs put together, the longest first, each batch at most `positions` positions with its padding, and at least one input.

    The longest first: if memory does not suffice, it shows at once.
    """
    found: list[list[int]] = []
    for number in sorted(range(len(lengths)), key=lambda n: (-lengths[n], n)):
        if found and (len(found[-1]) + 1) * lengths[found[-1][0]] <= positions:
            found[-1].append(number)
        else:
            found.append([number])
    return found


def translated(
    model: Encoder[S],
    sources: Sequence[Sequence[int]],
    options: Beam | Sampling = Beam(),  # noqa: B008  frozen
    *,
    positions: int = 4096,
    tokens: Tokens = Tokens(),  # noqa: B008  frozen
    want_weights: bool = False,
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """The number of each source and its answers, as they become ready: batch by batch, the longest sources first."""
    empty = [number for number, source in enumerate(sources) if not len(source)]
    if empty:
        raise ShapeError(
            f"source {empty[0]} has no token, and there is nothing to look at; leave out empty sources, or end each with an end token"
        )
    device = device_of(model)
    for numbers in batches([len(source) for source in sources], positions):
        rows = [list(sources[number]) for number in numbers]
        longest = max(map(len, rows))
        source_BM = torch.tensor([row + [PAD] * (longest - len(row)) for row in rows], device=device)
        source_n_B = torch.tensor([len(row) for row in rows], device=device)
        with evaluating(model), torch.no_grad():
            state = model.begin(source_BM, source_n_B)
            if isinstance(options, Beam):
                answers = search(model, state, options, source_n_B=source_n_B, tokens=tokens, want_weights=want_weights)
            else:
                drawn = sample(model, state, options, source_n_B=source_n_B, tokens=tokens, numbers=numbers, want_weights=want_weights)
                answers = [[one] for one in drawn]
        yield from zip(numbers, answers, strict=True)


def translate(
    model: Encoder[S],
    sources: Sequence[Sequence[int]],
    options: Beam | Sampling = Beam(),  # noqa: B008  frozen
    *,
    positions: int = 4096,
    tokens: Tokens = Tokens(),  # noqa: B008  frozen
    want_weights: bool = False,
) -> list[list[Hypothesis]]:
    """The answers to every source, in the order of the sources, best first. Ids in, ids out.

    `positions` is how many source positions a batch may have, padding counted; it changes the speed and the memory. A drawn
    answer depends on the number of its source and not on the batch it was in.
    """
    found = dict(translated(model, sources, options, positions=positions, tokens=tokens, want_weights=want_weights))
    return [found[number] for number in range(len(sources))]


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """No dropout inside; what was training goes on training after."""
    training = [part for part in model.modules() if part.training] if isinstance(model, nn.Module) else []
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True
