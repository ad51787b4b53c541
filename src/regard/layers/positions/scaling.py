r"""Scaled rotary angles, with which a model reads longer texts than those it was trained on.

$$\theta'_c = \theta_c\,\big(r_c + (1 - r_c) / s\big)$$

`stretch`, a tuple that configs can hold, says how. The angles θ_c of fast pairs keep their pace (r = 1), so that neighbours are distinguished
as before; those of slow pairs are divided by the factor s (r = 0); in between r is interpolated.

    ()                                                  none
    (factor,)                                           r = 0 for all pairs (Chen et al. 2023, arXiv:2306.15595)
    (factor, low, high, length)                         r rises with the rotations in `length` tokens, from `low` to `high`
                                                        (Llama 3.1, Grattafiori et al. 2024, arXiv:2407.21783)
    ("yarn", factor, low, high, length, gain, whole)    r rises with the index of the pair, from that with `low` rotations to that with
                                                        `high`, rounded to whole ones if `whole`; q and k are multiplied by `gain`
                                                        (Peng et al. 2023, arXiv:2309.00071)
    ("dynamic", factor, length)                         a larger base for texts beyond `length`, which grows with the text
    ("longrope", length, gain, short …, long …)         a divisor per pair: `short` up to `length` tokens, `long` beyond; q and k are
                                                        multiplied by `gain` (Ding et al. 2024, arXiv:2402.13753)

With the last two, all angles depend on the length of the text: what is read beyond `length` must be read at once, because older keys were rotated
by other angles.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...errors import BadConfig, ShapeError
from ._base import Offset

Stretch = tuple[int | float | str, ...]
COUNTS = {"linear": 1, "llama3": 4, "yarn": 6, "dynamic": 2}  # numbers of each kind


def kind_of(stretch: Stretch) -> tuple[str, list[float]]:
    """The kind of scaling, and its numbers."""
    numbers = [value for value in stretch if not isinstance(value, str)]
    named = [value for value in stretch if isinstance(value, str)]
    return (named[0] if named else {1: "linear", 4: "llama3"}.get(len(stretch), "")), numbers  # two kinds go without a name


def check_stretch(stretch: Stretch, size: int) -> None:
    """Refuse a stretch that is malformed, or does not fit `size` rotated features."""
    kind, numbers = kind_of(stretch)
    named = sum(isinstance(value, str) for value in stretch)
    whole = kind == "longrope" and len(numbers) == 2 + size
    positive = all(value > 0 for value in (numbers[:-1] if kind == "yarn" else numbers))
    ordered = kind != "llama3" or len(numbers) != 4 or numbers[1] < numbers[2]
    first = not named or (named == 1 and isinstance(stretch[0], str) and kind not in ("linear", "llama3"))
    if stretch and not (first and positive and ordered and (whole or COUNTS.get(kind) == len(numbers))):
        raise BadConfig(
            f"stretch={str(stretch)[:100]}; expected (), (factor,), (factor, low, high, length), ('yarn', factor, low, high, length, gain, whole), "
            f"('dynamic', factor, length) or ('longrope', length, gain, short …, long …) with {size // 2} short and long numbers, all above 0, with "
            "low below high"
        )


def check_reach(stretch: Stretch, start: Offset, count: int) -> None:
    """Refuse to continue a text where the angles of its older keys would change."""
    kind, numbers = kind_of(stretch)
    if kind not in ("dynamic", "longrope"):
        return
    length = numbers[1 if kind == "dynamic" else 0]
    starts = (start,) if isinstance(start, int) else start
    beyond = [first + count > length for first in starts]
    changed = [first > 0 and (kind == "dynamic" or first <= length) for first in starts]
    if any(beyond) and (not all(beyond) or any(changed) or (kind == "dynamic" and len(set(starts)) > 1)):
        raise ShapeError(
            f"with {kind!r} scaling, rotary angles of all tokens change beyond {int(length)} tokens, and this text reaches {max(starts) + count} with "
            "keys that are rotated already; read the whole text at once, without a state"
        )


def frequencies(size: int, base: float, stretch: Stretch = (), end: int = 0) -> Tensor:
    """θ'_c for c = 0 … size/2 − 1 in float64, of a text with `end` tokens.

    Computed on the CPU, so that every device rotates by the same angles.
    """
    kind, numbers = kind_of(stretch)
    pair = torch.arange(0, size, 2, dtype=torch.float64)
    if kind == "dynamic":
        factor, length = numbers
        base = base * (factor * max(end, length) / length - (factor - 1)) ** (size / (size - 2)) if size > 2 else base
    plain = base ** (-pair / size)
    if kind == "longrope":
        length, _, *factors = numbers
        return plain / torch.tensor(factors[: size // 2] if end <= length else factors[size // 2 :], dtype=torch.float64)
    kept: Tensor | float = 0.0
    if kind == "llama3":
        _, low, high, length = numbers
        kept = (plain * length / (2 * torch.pi) - low).div(high - low).clamp(0, 1)
    elif kind == "yarn":
        _, low, high, length, _, whole = numbers
        fast, slow = (size * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (high, low))
        first, last = max(math.floor(fast) if whole else fast, 0), min(math.ceil(slow) if whole else slow, size - 1)
        kept = 1 - (pair / 2 - first).div(last - first if first != last else 0.001).clamp(0, 1)
    return plain * (kept + (1 - kept) / numbers[0]) if kind in ("linear", "llama3", "yarn") else plain


def gain(stretch: Stretch) -> float:
    """The factor of queries and keys."""
    kind, numbers = kind_of(stretch)
    return numbers[4] if kind == "yarn" else numbers[1] if kind == "longrope" else 1.0
