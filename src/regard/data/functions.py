"""Functions: values at places, many functions of one kind.

    gp:                             functions of one variable from Gaussian processes: rbf, matern and periodic kernels, of any length
    gp:matern,length=0.4            one kernel; length=0 draws a length per function, from 0.3 to 1
    digits:                         8 × 8 pixels: grey levels from 0 to 1 at rows and columns
    series.csv                      a row per value: task, x, y; or by a header: task, x…, y… (x1, x2, y, …)

Generated sources take count= and seed=, and gp also points= and noise=. Rows of a task may be anywhere in a file (also .tsv, .gz). A function of one point, a
value that is not a finite number and a row of another width are refused with file and line.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ..baselines.gaussian_process import KERNELS, Kernel
from ..errors import BadFile, NotSupported, UnknownName
from .labelled_images import read_digits
from .lines import Fault, cells
from .sources import between_option, source_options

Values = npt.NDArray[np.float32]
LONGEST = 1 << 16  # bytes of a line
LENGTHS = (0.3, 1.0)  # of kernels, where none is given
TOGETHER = 500  # functions that are drawn at a time
SPAN = 2.0  # gp: places are from −SPAN to SPAN


class Function(NamedTuple):
    """Values y (N, Y) of one function at places x (N, X)."""

    x: Values
    y: Values
    key: str  # equal keys are in one part
    kernel: Kernel | None = None  # kernel that it was drawn from
    context: int | None = None  # number of first points that are known, of an input; None: it is chosen

    def content(self) -> bytes:
        """Content as bytes."""
        return str(self.x.shape).encode() + self.x.tobytes() + self.y.tobytes()


def read_function_source(source: str) -> Iterator[Function | Fault]:
    """Functions of one source, and a fault for each that cannot be used.

    Args:
        source: file, or the name of a generated source.
    """
    name, colon, text = source.partition(":")
    if colon and name in ("gp", "digits"):
        yield from _processes(text) if name == "gp" else _digits(text)
    else:
        yield from _table(source)


def _processes(text: str) -> Iterator[Function]:
    head, chosen = source_options(text, {"count": 16_000, "points": 64, "length": 0.0, "noise": 0.1, "seed": 0})
    if head and head not in KERNELS:
        raise UnknownName("kernel", head, KERNELS)
    count, points = between_option("count", chosen["count"], 1, 1_000_000), between_option("points", chosen["points"], 2, 2000)
    if chosen["length"] and not 0.01 <= chosen["length"] <= 100:
        raise NotSupported(f"length={chosen['length']}: expected 0.01 to 100, or 0")
    numbers, generator = np.random.default_rng(chosen["seed"]), torch.Generator().manual_seed(chosen["seed"])
    for first in range(0, count, TOGETHER):
        some = list[tuple[Kernel, Values]]()
        for _ in range(min(TOGETHER, count - first)):
            kind = next(one for one in KERNELS if one == head) if head else KERNELS[int(numbers.integers(len(KERNELS)))]
            length = round(chosen["length"] or float(numbers.uniform(*LENGTHS)), 4)
            x = numbers.uniform(-SPAN, SPAN, (points, 1)).astype(np.float32)
            some.append((Kernel(kind=kind, length=length, noise=chosen["noise"]), x))
        covariance_BNN = torch.stack([kernel.of_values(torch.from_numpy(x)) for kernel, x in some])
        noise_BN1 = torch.randn(len(some), points, 1, generator=generator, dtype=torch.float64)
        y_BN1 = (torch.linalg.cholesky(covariance_BNN) @ noise_BN1).float().numpy()
        yield from (Function(x, y, f"{first + n}", kernel) for n, ((kernel, x), y) in enumerate(zip(some, y_BN1, strict=True)))


def _digits(text: str) -> Iterator[Function]:
    head, chosen = source_options(text, {"count": 1797})
    if head:
        raise NotSupported(f"digits:{text}: expected digits: or digits:,count=500")
    pixels, _ = read_digits()
    rows, columns = np.meshgrid(np.arange(8), np.arange(8), indexing="ij")
    x = np.stack([rows.ravel(), columns.ravel()], 1).astype(np.float32)
    for n in range(between_option("count", chosen["count"], 1, len(pixels))):
        yield Function(x, (pixels[n].reshape(-1, 1) / 255).astype(np.float32), f"{n}")


def _table(path: str) -> Iterator[Function | Fault]:
    """Functions of a table, in the order of their first rows."""
    inputs: list[int] | None = None
    outputs, task, width = [2], 0, 3
    found: dict[str, tuple[str, list[list[float]], list[list[float]]]] = {}
    for where, row in cells(path, LONGEST):
        if isinstance(row, Fault):
            yield row
            continue
        if inputs is None:
            named = _named(row)
            task, inputs, outputs = named or (0, list(range(1, len(row) - 1)), [len(row) - 1])
            width = len(row)
            if not inputs or not outputs:
                raise BadFile(f"{where}: {len(row)} columns; expected a task, x and y, or a header of task, x1, x2, …, y1, …")
            if named:
                continue
        if len(row) != width:
            yield Fault(where, "another number of columns", f"{len(row)}, the first row has {width}")
            continue
        try:
            x, y = ([float(row[n]) for n in columns] for columns in (inputs, outputs))
        except ValueError as wrong:
            yield Fault(where, "a value that is not a number", str(wrong)[:60])
            continue
        if not all(abs(value) < 1e30 for value in (*x, *y)):
            yield Fault(where, "a value that is not a finite number", ", ".join(row)[:60])
        elif not row[task]:
            yield Fault(where, "no name of a task", ", ".join(row)[:60])
        else:
            _, xs, ys = found.setdefault(row[task], (where, [], []))
            xs.append(x)
            ys.append(y)
    for name, (where, xs, ys) in found.items():
        if len(xs) < 2:
            yield Fault(where, "a function of one point", f"task {name!r}", "add points, or leave it out")
        else:
            yield Function(np.array(xs, dtype=np.float32), np.array(ys, dtype=np.float32), f"{xs}{ys}")


def _named(row: list[str]) -> tuple[int, list[int], list[int]] | None:
    """Columns of the task, of x and of y that a header names, if it is one."""
    names = [cell.lower() for cell in row]
    x, y = ([n for n, name in enumerate(names) if name.startswith(letter)] for letter in "xy")
    others = [n for n in range(len(row)) if n not in (*x, *y)]
    return (others[0], x, y) if len(others) == 1 and x and y and not _is_number(row[x[0]]) else None


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def function_of(text: str, inputs: int, outputs: int) -> Function:
    """Known points and places of interest as they are typed: "0 1; 0.5 0.2; 1" knows two values, and asks for one.

    Args:
        text: points between semicolons: x and y, or x alone.
        inputs: numbers of x.
        outputs: numbers of y.
    """
    known, asked = list[list[float]](), list[list[float]]()
    for part in text.split(";"):
        try:
            numbers = [float(word) for word in part.replace(",", " ").split()]
        except ValueError:
            numbers = [math.nan]
        if not numbers:
            continue
        if len(numbers) not in (inputs, inputs + outputs) or not all(abs(one) < 1e30 for one in numbers):
            raise NotSupported(
                f"{part.strip()[:40]!r}: expected {inputs + outputs} numbers, {inputs} of a place and {outputs} of its value, or {inputs} of a "
                "place to predict; points are separated by semicolons"
            )
        (known if len(numbers) == inputs + outputs else asked).append(numbers)
    x = np.array([one[:inputs] for one in known] + asked, dtype=np.float32).reshape(-1, inputs)
    y = np.array([one[inputs:] for one in known] + [[0.0] * outputs] * len(asked), dtype=np.float32).reshape(-1, outputs)
    return Function(x, y, "", context=len(known))


def with_places(one: Function, at: Any) -> Function:
    """An input that asks for further places.

    Args:
        one: an input.
        at: places, (places, X).
    """
    at = np.asarray(at, dtype=np.float32)
    return one._replace(x=np.concatenate([one.x, at]), y=np.concatenate([one.y, np.zeros((len(at), one.y.shape[1]), np.float32)]))


def as_text(one: Function, points: int) -> str:
    """The first points of a function as `function_of` reads them.

    Args:
        one: function.
        points: number of points.
    """
    rows = np.concatenate([one.x, one.y], 1)[:points].astype(np.float64)
    return "; ".join(" ".join(f"{number:.4g}" for number in row) for row in rows)
