"""Tuning runs for the dial: which model, sizes and options are best for some data and some minutes, on validation data.

Run:  python -m benchmarks.tune TASK DATA [--minutes 2 10] [--seeds 0 1] [--only NAME …]      (make tune TASK=…)
DATA is a folder with the published sets that `PROBLEMS` names. Each problem has candidates; each is trained with the first seed for each
number of minutes, the best two with the others. The best by the mean of the deciding metric on validation data becomes a row of
src/regard/tasks/tables/TASK.json; all trials are kept in benchmarks/tuning/TASK.jsonl, from which the table follows. Test data are not read.
Run it on an idle machine: what it measures is what fits into the minutes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from regard.machine import keep_memory, matmul_speed
from regard.tasks import TaskObjective, find_task, load_run, task_of, train
from regard.train import TrainOptions

from ._common import commit, machine, progress
from .tuning import CANDIDATES, PROBLEMS, Candidate, Problem

HERE = Path(__file__).parent
TABLES = HERE.parent / "src/regard/tasks/tables"
DECIDES = {
    "language": ("bits_per_byte", False)
}  # where the metric of the task depends on a setting, as nats per token do on the vocabulary
FINALISTS = 2  # candidates that are tried with more than one seed


@dataclass
class Trial:
    """One training."""

    problem: str
    candidate: str
    minutes: float
    seed: int
    metric: str
    higher: bool
    result: float
    steps: int
    epochs: float
    seconds: float
    profile: dict[str, Any]
    gflops: float
    values: dict[str, Any]  # of the candidate: model, settings, options, train
    made: dict[str, str] = field(default_factory=dict)


def run(task_name: str, problem: Problem, candidate: Candidate, minutes: float, seed: int, data: Path) -> Trial:
    """Train one candidate; only validation data are looked at."""
    kind = find_task(task_name)
    options = kind.Options(**{**problem.options(data), **candidate.options})
    training = TrainOptions(minutes=minutes, seed=seed, threads=torch.get_num_threads(), **candidate.train)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        found = train(kind, options, training, out, model=candidate.model, settings=candidate.settings, progress=False)
        trained = load_run(out)
        task = task_of(trained)
        raw = task.read()
        profile, split = dict(task.profile(raw)), task.prepare(raw, Path(folder) / "again")
        per_epoch = len(TaskObjective(task, split, trained.model, seed).batches(0)) / training.accumulate
        made = {"commit": commit(), "machine": machine()}
        metric, higher = DECIDES.get(task_name, (task.metric.name, task.metric.higher))
        values = {"model": trained.config.model, "settings": candidate.settings, "options": candidate.options, "train": candidate.train}
    return Trial(
        problem.name, candidate.name, minutes, seed, metric, higher, found.metrics[metric], found.steps,
        found.steps / per_epoch, found.seconds, profile, matmul_speed(torch.device("cpu")), values, made,
    )  # fmt: skip


def read_trials(task_name: str) -> list[Trial]:
    path = HERE / "tuning" / f"{task_name}.jsonl"
    return [Trial(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def rank(trials: list[Trial]) -> dict[str, list[Trial]]:
    """Trials of one problem and so many minutes by candidate, the best first."""
    found: dict[str, list[Trial]] = {}
    for one in trials:
        found.setdefault(one.candidate, []).append(one)
    sign = -1 if trials and trials[0].higher else 1
    return dict(sorted(found.items(), key=lambda item: sign * statistics.mean(one.result for one in item[1])))


def write_table(task_name: str) -> None:
    """A row for each problem and number of minutes: the best candidate of those with the most seeds."""
    groups: dict[tuple[str, float], list[Trial]] = {}
    for one in read_trials(task_name):
        groups.setdefault((one.problem, one.minutes), []).append(one)
    rows = []
    for (problem, minutes), trials in sorted(groups.items()):
        ranked = rank(trials)
        most = max(len(some) for some in ranked.values())
        best = next(some for some in ranked.values() if len(some) == most)
        one = best[0]
        rows.append({
            "data": problem, "profile": one.profile, "minutes": minutes, "gflops": round(one.gflops, 1), **one.values, "steps": round(statistics.mean(t.steps for t in best)),
            "epochs": round(statistics.mean(t.epochs for t in best), 3), "metric": one.metric, "results": [round(t.result, 5) for t in best], "made": one.made,
        })  # fmt: skip
    TABLES.mkdir(exist_ok=True)
    (TABLES / f"{task_name}.json").write_text(json.dumps(rows, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=PROBLEMS)
    parser.add_argument("data", type=Path)
    parser.add_argument("--minutes", type=float, nargs="*", help="those of each problem if not given")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1])
    parser.add_argument("--only", nargs="*", default=[], help="problems or candidates by a part of their names")
    given = parser.parse_args()
    keep_memory()
    path = HERE / "tuning" / f"{given.task}.jsonl"

    def chosen(name: str, kind: str) -> bool:
        names = [one.name for one in (PROBLEMS if kind == "problem" else CANDIDATES)[given.task]]  # type: ignore[operator]
        wanted = [part for part in given.only if any(part in each for each in names)]
        return not wanted or any(part in name for part in wanted)

    def trial(problem: Problem, candidate: Candidate, minutes: float, seed: int) -> None:
        known = read_trials(given.task)
        if any((t.problem, t.candidate, t.minutes, t.seed) == (problem.name, candidate.name, minutes, seed) for t in known):
            return
        one = run(given.task, problem, candidate, minutes, seed, given.data)
        with path.open("a") as file:
            file.write(json.dumps(vars(one)) + "\n")
        progress(f"{problem.name}, {minutes:g} minutes, {candidate.name}, seed {seed}: {one.metric} {one.result:.4f}, {one.steps} steps")

    for problem in PROBLEMS[given.task]:
        if not chosen(problem.name, "problem"):
            continue
        for minutes in given.minutes or problem.minutes:
            candidates = [one for one in CANDIDATES[given.task] if one.fits(problem, minutes) and chosen(one.name, "candidate")]
            first, *others = given.seeds
            for candidate in candidates:
                trial(problem, candidate, minutes, first)
            mine = [one for one in read_trials(given.task) if (one.problem, one.minutes) == (problem.name, minutes)]
            best = list(rank([one for one in mine if one.seed == first]))[:FINALISTS]
            for candidate in candidates:
                for seed in others if candidate.name in best else ():
                    trial(problem, candidate, minutes, seed)
            write_table(given.task)


if __name__ == "__main__":
    main()
