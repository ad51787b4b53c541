"""What the benchmarks share: the results page, progress lines, and which peers are installed. Measuring is in `regard.compare.measure`.

A section says at which commit and with which versions it was measured, and `benchmarks/results/SECTION.json` holds that with the code it ran.
A machine of which a core was busy at the beginning is not written about, unless BENCH_BUSY=1 is set, and then the section says so.
`python -m benchmarks._common` marks the sections that were measured with other code than there is now.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from regard.compare import Child, measure
from regard.machine import free_threads
from regard.recipes._engine.parts import PACKAGE, code_digest, commit
from regard.tasks import TaskObjective

RESULTS = Path(__file__).parent / "RESULTS.md"
RECORDS = Path(__file__).parent / "results"
PEERS = ("transformers", "ctranslate2", "joeynmt", "x-transformers", "local-attention", "performer-pytorch", "linear-attention-transformer",
         "reformer-pytorch", "routing-transformer", "sinkhorn-transformer", "linformer", "memory-compressed-attention", "bertviz")  # fmt: skip
OTHER_CODE = "*Measured with other code than there is now.*"
TIMEOUT = 3600.0  # seconds for one call in a child process
NOT_INSTALLED = "not installed"
_started = time.monotonic()
_free, _cores = free_threads()  # before this process does anything


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
    """Replace one section of the results page, and its record; a quick run only prints it."""
    print("\n".join(lines))
    if quick:
        return
    busy = _cores - _free
    if busy and "BENCH_BUSY" not in os.environ:
        raise SystemExit(f"not written: {busy} of {_cores} cores were busy when this began; run it on an idle machine, or set BENCH_BUSY=1")
    record = {"commit": commit(), "date": time.strftime("%Y-%m-%d"), "machine": machine(), "versions": versions(), "busy_cores": busy}
    RECORDS.mkdir(exist_ok=True)
    content = {**record, "modules": modules(), "lines": lines}
    (RECORDS / f"{section}.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    peers = "".join(f", {name} {number}" for name, number in record["versions"].items())
    _replace(section, [*lines, "", f"Commit {record['commit']}{peers}{f'; {busy} of {_cores} cores were busy' if busy else ''}."])


def versions() -> dict[str, str]:
    """Versions of the peers that this process has imported."""
    return {name: metadata.version(name) for name in PEERS if name.replace("-", "_") in sys.modules}


def modules() -> dict[str, str]:
    """Hashes of the modules of the package that are imported."""
    paths = [Path(module.__file__) for module in list(sys.modules.values()) if getattr(module, "__file__", None)]
    mine = sorted(str(path.relative_to(PACKAGE)) for path in paths if path.is_relative_to(PACKAGE))
    return {module: code_digest(module) for module in mine}


def mark() -> list[str]:
    """Mark the sections that were measured with other code; their names."""
    found = []
    for path in sorted(RECORDS.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        section, page = path.stem, RESULTS.read_text()
        begin, end = page.index(f"<!-- {section} -->"), page.index(f"<!-- end of {section} -->")
        lines = [line for line in page[begin:end].splitlines()[1:] if line != OTHER_CODE]
        if any(code_digest(module) != code for module, code in record["modules"].items()):
            found.append(section)
            lines.append(OTHER_CODE)
        _replace(section, lines)
    return found


def _replace(section: str, lines: list[str]) -> None:
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


if __name__ == "__main__":
    print("measured with other code:", ", ".join(mark()) or "none")
