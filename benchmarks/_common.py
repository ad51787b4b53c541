"""What the benchmarks share: the results page, progress lines, and which peers are installed. Measuring is in `regard.compare.measure`."""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from regard.compare import Child, measure
from regard.tasks import TaskObjective

RESULTS = Path(__file__).parent / "RESULTS.md"
TIMEOUT = 3600.0  # seconds for one call in a child process
NOT_INSTALLED = "not installed"
_started = time.monotonic()


def machine() -> str:
    """One line about where and when this was measured."""
    return f"{measure.machine()}, {time.strftime('%Y-%m-%d')}"


def progress(text: str) -> None:
    """A line on standard error with the seconds since the start."""
    print(f"{time.monotonic() - _started:6.0f} s  {text}", file=sys.stderr, flush=True)


def train_step(
    objective: TaskObjective, model: torch.nn.Module, optimizer: torch.optim.Optimizer, item: Any, generator: torch.Generator
) -> None:
    """One step on one batch, without the loop around it."""
    loss = objective.loss(model, objective.batch(item, generator))
    (loss.total / loss.count).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def installed(package: str) -> bool:
    """Whether a peer can be imported; `make bench` installs all of them."""
    return find_spec(package) is not None


def child(**env: str) -> Child:
    """A process with as many threads as this one."""
    return Child(torch.get_num_threads(), env=env)


def write(section: str, lines: list[str], quick: bool = False) -> None:
    """Replace one section of the results page; a quick run only prints it."""
    print("\n".join(lines))
    if quick:
        return
    begin, end = f"<!-- {section} -->", f"<!-- end of {section} -->"
    page = RESULTS.read_text() if RESULTS.exists() else "# Measured\n\nWritten by the benchmarks; ratios are of one run, side by side.\n"
    block = "\n".join([begin, *lines, end])
    page = page[: page.index(begin)] + block + page[page.index(end) + len(end) :] if begin in page else f"{page.rstrip()}\n\n{block}\n"
    RESULTS.write_text(page)


def write_row(section: str, head: list[str], columns: str, line: str) -> None:
    """Add one row to a table of the results page; it replaces a row with the same first two cells."""
    begin, end = f"<!-- {section} -->", f"<!-- end of {section} -->"
    page = RESULTS.read_text() if RESULTS.exists() else ""
    old = page[page.index(begin) : page.index(end)].splitlines() if begin in page else []
    rows = [one for one in old if one.startswith("| ") and one != columns and one.split("|")[1:3] != line.split("|")[1:3]]
    write(section, [*head, columns, "|---" * (columns.count("|") - 1) + "|", *sorted([*rows, line])])
