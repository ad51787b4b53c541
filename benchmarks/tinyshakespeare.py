"""tinyshakespeare: nanoGPT's CPU setting, and what a better setting reaches in the same time.

Run:  python -m benchmarks.tinyshakespeare FOLDER [--seeds 1] [--out runs] [--steps 2000]
FOLDER holds input.txt. Writes rows of the section `tinyshakespeare` of RESULTS.md.

nanoGPT's README trains 4 layers of 4 heads, width 128, on 12 windows of 64 characters, 2,000 steps, no dropout, to a validation loss of 1.88
(AdamW 0.9/0.99, decay 0.1, 1e-3 down to 1e-4 along a cosine, 100 warm-up steps; the last tenth of the text is for validation).
Its loss is a mean over random windows; here every character of the validation text is predicted once, in windows without overlap (`fresh`:
characters have half a window of context on average, as there), and with at least half a window of context each (`sliding`).

The seconds this takes, measured here, are then given to another setting: its steps are timed first and their number is set so that it
ends in that time; the clock stops it if it is slower. It has rotary embeddings, gated feed-forward layers, windows twice as long, and Muon.
Between the two: nanoGPT's model, windows and steps with Muon instead of AdamW.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from regard.machine import keep_memory
from regard.models import LanguageModel, build
from regard.tasks import Language, LanguageOptions, TaskObjective, load_run, perplexity, train
from regard.train import TrainOptions, optimizer_of

from ._common import machine, train_step, write_row


@dataclass(frozen=True)
class Setting:
    """What differs between the settings."""

    name: str
    model: str
    settings: dict[str, Any] = field(default_factory=dict)
    length: int = 64
    batch: int = 12
    lr: float = 1e-3
    floor: float = 1e-4
    warmup_steps: int = 100
    optimizer: dict[str, Any] = field(default_factory=lambda: {"optimizer": "adamw", "betas": (0.9, 0.99), "weight_decay": 0.1})

    def task(self, path: Path) -> Language:
        options = LanguageOptions(
            data=str(path), tokenizer="char", vocab_size=256, shares=(0.1, 0.0), context_length=self.length, batch_size=self.batch,
            documents="joined", stride=self.length, valid_tokens=20_000,
        )  # fmt: skip
        return Language(options)

    def train_options(self, steps: int, seed: int, seconds: float | None = None) -> TrainOptions:
        return TrainOptions(
            steps=steps, minutes=None if seconds is None else seconds / 60, **self.optimizer, schedule="cosine", lr=self.lr,
            warmup_steps=min(self.warmup_steps, steps // 4), min_lr=self.floor, average=0, log_every=100, evaluate_every=steps,
            save_every=steps, seed=seed,
        )  # fmt: skip


NANOGPT = Setting("nanoGPT's", "gpt2", {"width": 128, "heads": 4, "depth": 4, "dropout": 0.0})
MUON = replace(NANOGPT, name="nanoGPT's by Muon", lr=7e-3, floor=0.0, warmup_steps=60, optimizer={"optimizer": "muon"})
BETTER = Setting(
    "better",
    "llama",
    {"width": 128, "heads": 4, "depth": 4},
    length=128,
    batch=8,
    lr=7e-3,
    floor=0.0,
    warmup_steps=60,
    optimizer={"optimizer": "muon"},
)


def seconds_per_step(setting: Setting, path: Path, folder: Path, steps: int) -> float:
    """Of training, on real batches: the median."""
    task = setting.task(path)
    raw = task.read()
    task.processor = task.make_processor(raw, None)
    data = task.prepare(raw, folder)
    model = build(setting.model, {**task.settings(setting.model, data), **setting.settings}).train()
    objective, generator = TaskObjective(task, data, model), torch.Generator()
    optimizer, taken = optimizer_of(setting.train_options(10, 0)).build(model), []
    for item in objective.batches(0)[: steps + 5]:
        start = time.perf_counter()
        train_step(objective, model, optimizer, item, generator)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[5:])


def trained(
    setting: Setting, path: Path, out: Path, steps: int, seed: int, seconds: float | None = None
) -> tuple[float, float, float, int]:
    """Loss in fresh and in sliding windows, seconds, and steps."""
    shutil.rmtree(out, ignore_errors=True)
    task, options = setting.task(path), setting.train_options(steps, seed, seconds)
    result = train(Language, task.options, options, out, model=setting.model, settings=setting.settings, progress=False)
    run = load_run(out, LanguageModel)
    task.processor = run.processor
    valid = task.prepare(task.read(), out).valid
    fresh, sliding = (
        perplexity(run.model, valid, length=setting.length, stride=stride, batch=64, documents=False).loss
        for stride in (setting.length, setting.length // 2)
    )
    print(
        f"{setting.name}, seed {seed}: {result.steps} steps, {result.seconds:.1f} s, fresh {fresh:.4f}, sliding {sliding:.4f}", flush=True
    )
    return fresh, sliding, result.seconds, result.steps


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path)
    options.add_argument("--seeds", type=int, default=1)
    options.add_argument("--steps", type=int, default=2000)
    options.add_argument("--out", type=Path, default=Path("runs"))
    given = options.parse_args()
    keep_memory()  # as `regard train` does
    path = given.folder / "input.txt"
    found: dict[str, list[tuple[float, float, float, int]]] = {setting.name: [] for setting in (NANOGPT, MUON, BETTER)}
    for seed in range(given.seeds):
        found[NANOGPT.name].append(trained(NANOGPT, path, given.out / f"shakespeare-{seed}", given.steps, seed))
        found[MUON.name].append(trained(MUON, path, given.out / f"shakespeare-muon-{seed}", given.steps, seed))
        seconds = found[NANOGPT.name][-1][2]
        step = seconds_per_step(BETTER, path, given.out / f"shakespeare-{seed}", min(40, given.steps))
        steps = max(10, int(0.93 * seconds / step))
        print(f"{step * 1e3:.1f} ms per step: {steps} steps in {seconds:.0f} s", flush=True)
        found[BETTER.name].append(trained(BETTER, path, given.out / f"shakespeare-better-{seed}", steps, seed, seconds))

    def shown(numbers: list[float], digits: int) -> str:
        spread = f" ({min(numbers):.{digits}f}–{max(numbers):.{digits}f})" if len(numbers) > 1 else ""
        return f"{statistics.mean(numbers):.{digits}f}{spread}"

    for setting in (NANOGPT, MUON, BETTER):
        fresh, sliding, seconds, steps = zip(*found[setting.name], strict=True)
        what = f"{setting.name}: {setting.model}, {setting.batch} × {setting.length} characters, {setting.optimizer['optimizer']}"
        write_row(
            "tinyshakespeare",
            [
                "## tinyshakespeare, characters",
                "",
                "Validation loss in nats per character; nanoGPT's README says 1.88 for its setting.",
                "",
            ],
            "| setting | steps | seconds | seeds | fresh windows | sliding | machine |",
            f"| {what} | {shown(list(steps), 0)} | {shown(list(seconds), 0)} | {given.seeds} | **{shown(list(fresh), 4)}** | "
            f"{shown(list(sliding), 4)} | {machine()} |",
        )


if __name__ == "__main__":
    main()
