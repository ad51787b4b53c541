"""Defaults: `regard train TASK --data FILES --minutes N` with nothing else, on seeds that no setting was chosen with, measured on test data.

Run:  python -m benchmarks.defaults DATA [--only Multi30k …] [--seeds 100 101 102] [--busy]
DATA is a folder with the published sets. Each row trains in processes of their own, as a user would, and evaluates on the published test part.
Adds to benchmarks/results/defaults.jsonl and writes the section `defaults` of RESULTS.md from it. On an idle machine: what is reached in
N minutes is what this measures. `--busy` occupies one core meanwhile, to see whether the minutes are kept.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._common import commit, machine, progress, write
from .tuning.published import labelled_file, pairs_file, sst2, trec

HERE = Path(__file__).parent
FOUND = HERE / "results" / "defaults.jsonl"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One command.

    Args:
        name: the data in words.
        task: task to train.
        minutes: budgets.
        train: options that name the data, from the folder of published sets.
        test: sources of the test part, from that folder; None: the part that was held out.
        metric: metric of the test part.
    """

    name: str
    task: str
    minutes: tuple[float, ...]
    train: Callable[[Path], list[str]]
    test: Callable[[Path], list[str]] | None = None
    metric: str = "accuracy"


def unzipped(path: Path) -> str:
    """A published file without its compression, as users have it."""
    out = Path(tempfile.mkdtemp(prefix="published-")) / path.name.removesuffix(".gz")
    out.write_bytes(gzip.decompress(path.read_bytes()))
    return str(out)


def multi30k(part: str) -> Callable[[Path], list[str]]:
    return lambda data: [unzipped(data / "multi30k" / f"{part}.{language}.gz") for language in ("en", "de")]


def of_options(options: dict[str, Any]) -> list[str]:
    """Options of the tuning problems as words of the command line; shares are left at their defaults."""
    return [word for name, value in options.items() if name != "shares" for word in (f"--{name}", value)]


ROWS = (
    Row(
        name="Multi30k en-de, test_2016", task="translation", minutes=(15, 45), metric="bleu", test=multi30k("test_2016_flickr"),
        train=lambda data: ["--data", *multi30k("train")(data), "--valid", *multi30k("val")(data)],
    ),
    Row(
        name="tinyshakespeare, characters", task="language", minutes=(2, 10), metric="loss",
        train=lambda data: ["--data", str(data / "tinyshakespeare/input.txt"), "--tokenizer", "char"],
    ),
    Row(name="documentation of Python", task="language", minutes=(5,), metric="bits_per_byte", train=lambda data: []),
    Row(
        name="SST-2", task="classify", minutes=(1, 2), train=lambda data: of_options(sst2(data)),
        test=lambda data: [labelled_file("sst2-test", data / "sentence-classification/stsa.binary.test.gz")],
    ),
    Row(
        name="TREC", task="classify", minutes=(1, 2), train=lambda data: of_options(trec(data)),
        test=lambda data: [labelled_file("trec-test", data / "sentence-classification/TREC.test.all.gz")],
    ),
    Row(
        name="SICK", task="classify", minutes=(2,), train=lambda data: ["--data", pairs_file("train", data), "--valid", pairs_file("trial", data)],
        test=lambda data: [pairs_file("test_annotated", data)],
    ),
    Row(name="digits", task="images", minutes=(1,), train=lambda data: []),
    Row(name="Fashion-MNIST", task="images", minutes=(10, 30), train=lambda data: ["--data", str(data / "fashion-mnist")]),
    Row(name="CIFAR-10", task="images", minutes=(15,), train=lambda data: ["--data", str(data / "cifar10")]),
)  # fmt: skip


def measure(row: Row, minutes: float, seed: int, data: Path, busy: bool) -> dict[str, Any]:
    """Train and evaluate in processes of their own."""
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "run")
        began = time.monotonic()
        regard("train", row.task, *row.train(data), "--minutes", f"{minutes:g}", "--seed", str(seed), "--out", out, "--quiet")
        seconds = time.monotonic() - began
        test = [] if row.test is None else ["--data", *row.test(data)]
        report = json.loads(regard("evaluate", out, *test, "--json"))
        threads = json.loads((Path(out) / "config.json").read_text())["train"]["threads"]
    return {
        "row": row.name, "minutes": minutes, "seed": seed, "metric": row.metric, "value": report[row.metric], "seconds": round(seconds, 1),
        "busy": busy, "threads": threads, "commit": commit(), "machine": machine(),
    }  # fmt: skip


def regard(*words: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-m", "regard", *words], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


@contextmanager
def one_busy_core(busy: bool) -> Iterator[None]:
    """Occupy one core by another process."""
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
    try:
        yield
    finally:
        if other is not None:
            other.kill()


def read() -> list[dict[str, Any]]:
    return [json.loads(line) for line in FOUND.read_text().splitlines()] if FOUND.exists() else []


def write_section() -> None:
    """A line per row and number of minutes, with the spread over seeds."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for one in read():
        groups.setdefault(tuple(one[key] for key in ("row", "minutes", "busy", "threads", "commit", "machine")), []).append(one)
    lines = []
    for (name, minutes, busy, threads, made, where), found in sorted(groups.items()):
        values, seconds = ([one[key] for one in found] for key in ("value", "seconds"))
        spread = f" ({min(values):.4g} to {max(values):.4g})" if len(values) > 1 else ", once"
        last = f"{max(seconds):.0f} of {60 * minutes:.0f}{', one core busy' if busy else ''}"
        lines.append(
            f"| {name} | {minutes:g} | {threads} | {found[0]['metric']} {statistics.mean(values):.4g}{spread} | {len(values)} | {last} | {made} | {where} |"
        )
    head = [
        "## Defaults",
        "",
        "`regard train TASK --data FILES --minutes N`, nothing else; test data, seeds from 100 on, which chose nothing.",
        "",
    ]
    columns = ["| data | minutes | threads | on test | seeds | seconds at most | commit | machine |", "|---|---|---|---|---|---|---|---|"]
    write("defaults", [*head, *columns, *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="*", default=[], help="rows by a part of their names")
    parser.add_argument("--minutes", type=float, nargs="*", help="those of each row if not given")
    parser.add_argument("--seeds", type=int, nargs="*", default=[100, 101, 102])
    parser.add_argument("--busy", action="store_true", help="occupy one core meanwhile")
    given = parser.parse_args()
    FOUND.parent.mkdir(exist_ok=True)
    for row in ROWS:
        if given.only and not any(part in row.name for part in given.only):
            continue
        for minutes in given.minutes or row.minutes:
            for seed in given.seeds:
                with one_busy_core(given.busy):
                    one = measure(row, minutes, seed, given.data, given.busy)
                with FOUND.open("a") as file:
                    file.write(json.dumps(one) + "\n")
                progress(f"{row.name}, {minutes:g} minutes, seed {seed}: {one['metric']} {one['value']:.4f}, {one['seconds']:.0f} s")
                write_section()


if __name__ == "__main__":
    main()
