"""Writing with a pen: points are drawn one by one until the window over the text has passed its end.

Priming: the network first follows real strokes and their text, then writes on in that hand; the text is that of the strokes and the new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from ..attention import Observation
from ..errors import NotSupported
from ..models import Handwriting, eval_mode
from ..models.pen_mixture import PenMixture


@dataclass(frozen=True)
class Written:
    """Strokes of one text: points_L3 (dx, dy, lifted), and weights_LM of each point over the characters and, last, the end of the text.

    Without a text there are no weights.
    """

    points_L3: Tensor  # points (dx, dy, lifted)
    weights_LM: Tensor  # attention of each point to the characters and, last, to the end of the text; empty without a text
    complete: bool  # the window passed the last character before the maximum number of points


@torch.no_grad()
def write(
    model: Handwriting,
    texts: Sequence[Sequence[int]],
    *,
    bias: float = 0.0,
    seed: int = 0,
    prime: tuple[Sequence[int], Tensor] | None = None,
    max_points: int | None = None,
) -> list[Written]:
    """Sample the strokes of some texts, given as characters from 1; of a prediction network, a sequence per (empty) text.

    Args:
        model: handwriting model.
        texts: characters of each text, numbered from 1; empty for a prediction network.
        bias: 0 samples from the distribution that was learned; 1 writes more carefully, 10 follows the likeliest points.
        seed: seed of the samples.
        prime: characters and points to begin with; they are not part of the result.
        max_points: maximum number of points of each; `model.max_length` if not given.
    """
    if bias < 0:
        raise NotSupported(f"a bias of {bias}; expected 0 (as varied as the data) or more")
    if not texts:
        return []
    limit = max_points or model.max_length
    head, first_L3 = ([], torch.zeros(1, 3)) if prime is None else (list(prime[0]), prime[1])
    text_BM, ends_B = (x.to(model.output.weight.device) for x in _padded([[*head, *text] for text in texts]))
    generator = torch.Generator().manual_seed(seed)
    B, state = len(texts), model.start(len(texts))
    given_BL3 = first_L3.to(model.output.weight).expand(B, -1, -1)
    points, weights, done_B, steps_B = (
        list[Tensor](),
        list[Tensor](),
        torch.zeros_like(ends_B, dtype=torch.bool),
        torch.full_like(ends_B, limit),
    )
    with eval_mode(model), _watching(model) as seen:
        mixture = model(given_BL3, text_BM, state)
        for step in range(limit):
            if done_B.all():
                break
            phi_BM = seen[0].weights(torch.zeros_like(ends_B[:1]))[:, 0, 0] if seen else None
            if phi_BM is not None and step:
                ended_B = _ended(phi_BM, ends_B) & ~done_B
                steps_B[ended_B], done_B = step, done_B | ended_B
            point_B3 = _newest(mixture).biased(bias).sample(generator)
            points.append(point_B3)
            weights.append(point_B3.new_zeros(B, 0) if phi_BM is None else phi_BM)
            mixture = model(point_B3[:, None], text_BM, state)
    points_BL3, weights_BLM, given_BL3 = torch.stack(points, 1).cpu(), torch.stack(weights, 1).cpu(), given_BL3.cpu()
    if prime is None:
        points_BL3, weights_BLM = torch.cat([given_BL3, points_BL3], 1), torch.cat([weights_BLM[:, :1], weights_BLM], 1)
    found = []
    for b, (end, complete) in enumerate(zip(ends_B.tolist(), done_B.tolist(), strict=True)):
        length = int(steps_B[b]) + (prime is None)
        found.append(Written(_whole(points_BL3[b, :length]), weights_BLM[b, :length, len(head) : end + 1], complete))
    return found


@contextmanager
def _watching(model: Handwriting) -> Iterator[list[Observation]]:
    """A list whose only item is the newest step of the window, if the model has one."""
    seen: list[Observation] = []

    def keep(observed: Observation) -> None:
        seen[:] = [observed]

    with nullcontext() if model.window is None else model.window.observe(keep):
        yield seen


def _padded(texts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """text_BM with at least one position without a character after each text, and the lengths."""
    ends_B = torch.tensor([len(text) for text in texts])
    text_BM = torch.zeros(len(texts), int(ends_B.max()) + 1, dtype=torch.long)
    for row_M, text in zip(text_BM, texts, strict=True):
        row_M[: len(text)] = torch.tensor(list(text), dtype=torch.long)
    return text_BM, ends_B


def _ended(phi_BM: Tensor, ends_B: Tensor) -> Tensor:
    """Return whether the weight of the position after the text exceeds those of all characters."""
    inside_BM = torch.arange(phi_BM.shape[1], device=phi_BM.device) < ends_B[:, None]
    return phi_BM.gather(1, ends_B[:, None])[:, 0] > phi_BM.masked_fill(~inside_BM, -1).amax(1)


def _newest(mixture: PenMixture) -> PenMixture:
    """Mixture of the last position only."""
    return PenMixture(*(part[:, -1] for part in mixture))


def _whole(points_L3: Tensor) -> Tensor:
    """A line by itself: it begins at the origin, and the pen is lifted at the end."""
    points_L3 = points_L3.clone()
    points_L3[:1, :2], points_L3[-1:, 2] = 0, 1
    return points_L3
