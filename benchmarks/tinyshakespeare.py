"""tinyshakespeare: nanoGPT's CPU setting, and what the same time gives when it is used better.

Run:  python -m benchmarks.tinyshakespeare FOLDER [--seeds 1] [--out runs] [--steps 2000]
FOLDER holds input.txt. Writes rows of the section `tinyshakespeare` of RESULTS.md.

nanoGPT's README trains 4 layers of 4 heads, width 128, on 12 windows of 64 characters, 2,000 steps, no dropout, to a validation loss of 1.88
(AdamW 0.9/0.99, decay 0.1, 1e-3 down to 1e-4 along a cosine, 100 steps of warm-up; the last tenth of the text is for validation).
Its loss is a mean over random windows; here every character of validation is asked once, in windows that begin anew (`fresh`: characters
have on average half a window before them, as there), and with at least half a window before each (`sliding`).

The seconds that took, measured here, are then given to another setting: its steps are timed first and their number is set so that all
ends in that time; if the clock is faster, it stops there. It has rotary places, gated feed-forward parts, windows twice as long, and Muon.
Between the two: nanoGPT's model, windows and steps with Muon in the place of AdamW.
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

from regard.data import encoded
from regard.kernels import keep_memory
from regard.models import LanguageModel, build
from regard.tasks import LanguageConfig, LanguageTask, Run, perplexity, train_language
from regard.tasks.language import summed_loss
from regard.train import AdamW, Budget, Cosine, Every, Muon, OptimizerConfig, TrainConfig

from ._measure import machine, row


@dataclass(frozen=True)
class Setting:
    """What differs between the two."""

    name: str
    model: str
    settings: dict[str, Any] = field(default_factory=dict)
    length: int = 64
    batch: int = 12
    peak: float = 1e-3
    floor: float = 1e-4
    warmup: int = 100
    optimizer: OptimizerConfig = AdamW(betas=(0.9, 0.99), weight_decay=0.1)  # noqa: RUF009  frozen

    def config(self, path: Path) -> LanguageConfig:
        return LanguageConfig(
            data=str(path), tokens="characters", vocab=256, shares=(0.1, 0.0), length=self.length, batch=self.batch, documents=False,
            stride=self.length, judged=20_000,
        )  # fmt: skip

    def how(self, steps: int, seed: int, seconds: float | None = None) -> TrainConfig:
        return TrainConfig(
            budget=Budget(steps=steps, minutes=None if seconds is None else seconds / 60),
            optimizer=self.optimizer,
            schedule=Cosine(peak=self.peak, warmup=min(self.warmup, steps // 4), steps=steps, floor=self.floor),
            every=Every(log=100, evaluate=steps, save=steps, minutes=60.0),
            seed=seed,
        )


NANOGPT = Setting("nanoGPT's", "gpt2", {"width": 128, "heads": 4, "depth": 4, "dropout": 0.0})
MUON = replace(NANOGPT, name="nanoGPT's by Muon", peak=7e-3, floor=0.0, warmup=60, optimizer=Muon())
BETTER = Setting(
    "better", "llama", {"width": 128, "heads": 4, "depth": 4}, length=128, batch=8, peak=7e-3, floor=0.0, warmup=60, optimizer=Muon()
)


def seconds_a_step(setting: Setting, path: Path, folder: Path, steps: int) -> float:
    """Of training, on real batches: the median."""
    config = setting.config(path)
    texts = config.texts()
    tokenizer = config.tokenizer(texts)
    found = encoded(texts, tokenizer, folder / "tokens")
    task = LanguageTask(found.train, found.valid, config)
    model = build(setting.model, {"vocab": len(tokenizer), "length": setting.length, **setting.settings}).train()
    assert isinstance(model, LanguageModel)
    optimizer, taken = setting.how(10, 0).optimizer.build(model), []
    for item in task.batches(0)[: steps + 5]:
        start = time.perf_counter()
        total, _, count = summed_loss(model, task.batch(item))
        (total / count).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[5:])


def trained(
    setting: Setting, path: Path, out: Path, steps: int, seed: int, seconds: float | None = None
) -> tuple[float, float, float, int]:
    """Loss in fresh windows and sliding, seconds, and steps made."""
    shutil.rmtree(out, ignore_errors=True)
    result = train_language(out, setting.config(path), setting.how(steps, seed, seconds), setting.model, setting.settings, progress=False)
    run = Run.load(out, LanguageModel)
    config = run.settings(LanguageConfig)
    valid = encoded(config.texts(), run.tokenizer, out / "tokens").valid
    fresh, sliding = (
        perplexity(run.model, valid, length=setting.length, stride=stride, batch=64, documents=False).nats
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
        step = seconds_a_step(BETTER, path, given.out / f"shakespeare-{seed}", min(40, given.steps))
        steps = max(10, int(0.93 * seconds / step))
        print(f"{step * 1e3:.1f} ms a step: {steps} steps in {seconds:.0f} s", flush=True)
        found[BETTER.name].append(trained(BETTER, path, given.out / f"shakespeare-better-{seed}", steps, seed, seconds))

    def shown(numbers: list[float], digits: int) -> str:
        spread = f" ({min(numbers):.{digits}f}–{max(numbers):.{digits}f})" if len(numbers) > 1 else ""
        return f"{statistics.mean(numbers):.{digits}f}{spread}"

    for setting in (NANOGPT, MUON, BETTER):
        fresh, sliding, seconds, steps = zip(*found[setting.name], strict=True)
        what = f"{setting.name}: {setting.model}, {setting.batch} × {setting.length} characters, {type(setting.optimizer).__name__}"
        row(
            "tinyshakespeare",
            ["## tinyshakespeare, characters", "", "Validation loss in nats a character; nanoGPT's README says 1.88 for its setting.", ""],
            "| setting | steps | seconds | seeds | fresh windows | sliding | machine |",
            f"| {what} | {shown(list(steps), 0)} | {shown(list(seconds), 0)} | {given.seeds} | **{shown(list(fresh), 4)}** | "
            f"{shown(list(sliding), 4)} | {machine()} |",
        )


if __name__ == "__main__":
    main()
