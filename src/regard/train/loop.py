"""The training loop, the only one: batches, gradients, a step; now and then a look at how good it is, and a checkpoint.

    for each group of `accumulate` batches:
        gradient = Σ gradients of the sums of losses  /  Σ tokens          over all batches and all processes
        if it is finite and not far longer than usual: clip, step
        when due: a line in metrics.jsonl; an evaluation; a checkpoint

All randomness of a batch comes from (seed, epoch, place in the epoch). A run that is killed and resumed therefore ends with the same
weights, bit for bit, as one that was left alone (same machine, same number of threads), and several processes give what one gives.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import Any

import torch
from torch import nn

from ..errors import BadConfig, Diverged, Interrupted, RunExists
from . import checkpoint as checkpoints
from . import distributed, precision, sharding
from ._rng import seed_all
from ._signals import Signals
from .config import TrainConfig
from .log import Log
from .progress import Progress, progress_for
from .state import State, Window
from .task import AfterStep, Rated, Task
from .tensorboard import TensorBoard, writer
from .weights import Weights, copied, lent, load_weights, weights_of

SKIPS_IN_A_ROW = 20  # then something is broken, and waiting will not mend it
YOUNG = 20  # steps before a gradient's usual length is known


@dataclass(frozen=True)
class Result:
    """What came of a run; the model holds the chosen weights, and so does model.safetensors."""

    steps: int
    epochs: int
    tokens: int
    skipped: int
    seconds: float
    ended_by: str  # "budget" or "patience"
    chosen: str  # "last", "best" or "average"
    metrics: dict[str, float]  # of the chosen weights


def fit(model: nn.Module, task: Task, config: TrainConfig, out: Path, *, resume: bool = False, progress: bool = True) -> Result:
    """Train the model on the task, with all that happens written to the folder `out`.

    Writes model.safetensors, metrics.jsonl and state/. With `resume` it goes on from the last checkpoint in `out`, or begins if there is
    none. SIGINT and SIGTERM let it finish the step and save; then it raises Interrupted. With shards the model is empty while its copy
    trains, and after any other error it stays so.
    """
    out = Path(out)
    with distributed.joined(), Signals() as signals, progress_for(config.budget, progress, distributed.rank() == 0) as shown:
        loop = _Loop(model, task, config, out, signals, shown)
        try:
            loop.begin(resume)
            return loop.run()
        finally:
            if loop.log:
                loop.log.close()


class _Loop:
    def __init__(self, model: nn.Module, task: Task, config: TrainConfig, out: Path, signals: Signals, shown: Progress):
        self.model, self.task, self.config, self.out = model, task, config, out
        self.signals, self.shown = signals, shown
        self.first = distributed.rank() == 0
        if config.tensorboard:
            writer()  # asked of all processes: one that fails alone would leave the others waiting
        self.device = next(model.parameters()).device
        self.cut = config.sharding == "full" and distributed.world() > 1
        # the loss of the model itself, or of a copy cut over the processes: then the model is empty but for evaluations, and at the end
        objective = sharding.sharded(task, model) if self.cut else distributed.Objective(task, model)
        self.objective: nn.Module = objective
        self.trained: nn.Module = objective.model
        self.state = State(self.trained, config, task.rates(self.trained) if isinstance(task, Rated) else None)
        self.log: Log | None = None
        self.asked: int | None = None  # a signal that some process got, agreed on by all
        self.out_of_time = self.late = False  # by the clock of the first, told to all: the budget is used up; a checkpoint is due
        self.saved_at = time.monotonic()
        self.batches = 1  # in this epoch

    # -- begin and end -------------------------------------------------------------------------------------------------

    def begin(self, resume: bool) -> None:
        folder = self.out / "state"
        found = checkpoints.load_latest(folder)
        if found and not resume:
            raise RunExists(f"{self.out} already holds a run, at step {found.step}; resume it, or choose another folder")
        length = self.state.restore(found) if found else 0
        step = self.state.position.step
        if distributed.sums([step])[0] != step * distributed.world():
            raise BadConfig(f"the processes see different checkpoints in {folder}; put it where all of them can read it")
        self._choose_precision()
        if self.config.compile:
            self.objective.compile(dynamic=True)
        self.objective = distributed.parallel(self.objective, self.config.accumulate)
        if self.first:
            curves = [TensorBoard(self.out / "tensorboard", step)] if self.config.tensorboard else []
            self.log = Log(self.out / "metrics.jsonl", length, curves)
            for reason in found.skipped if found else ():
                self.shown.say(f"passed over: {reason}")
            if found:
                self.shown.say(f"going on from step {step}")
        if not found:
            self.save()  # a disk that cannot be written to should say so now, not in an hour

    def _choose_precision(self) -> None:
        position = self.state.position
        mine, said = precision.choose(self.config.precision, self.device, position.precision)
        all_can = distributed.sums([mine == "bfloat16"])[0] == distributed.world()  # two processes may have measured differently
        position.precision = "bfloat16" if all_can else "float32"
        if said:
            self.shown.say(said)

    def run(self) -> Result:
        self.model.train()
        self.trained.train()
        if self.cut:
            sharding.empty(self.model)
        ended_by = ""
        while not (ended_by := self._ended()):
            self._epoch()
        return self._finish(ended_by)

    def _ended(self) -> str:
        budget, position, patience = self.config.budget, self.state.position, self.config.patience
        if patience and position.stale >= patience:
            return "patience"
        over = (budget.steps is not None and position.step >= budget.steps) or (
            budget.epochs is not None and position.epoch >= budget.epochs
        )
        return "budget" if over or self.out_of_time else ""

    def _epoch(self) -> None:
        """What is left of the epoch, or of the budget."""
        position, size = self.state.position, self.config.accumulate
        items = self.task.batches(position.epoch)
        self.batches = len(items)
        if not self.batches:
            raise BadConfig(f"epoch {position.epoch} of {type(self.task).__name__} has no batches; is the data empty?")
        while position.index < len(items) and not self._ended():
            began = time.monotonic()
            self._step(items[position.index : position.index + size])
            position.index += size
            at_edge = position.index >= len(items)
            if at_edge:
                position.epoch, position.index = position.epoch + 1, 0
            stepped = time.monotonic()
            position.seconds += stepped - began
            position.window.seconds += stepped - began
            self._after_step(at_edge)
            position.seconds += time.monotonic() - stepped  # evaluations and checkpoints take time too, and the budget's clock counts it
            if at_edge:
                return

    def _after_step(self, at_edge: bool) -> None:
        every, position = self.config.every, self.state.position
        if position.step % every.log == 0:
            self._write_window()
        if position.step % every.evaluate == 0 if every.evaluate else at_edge:
            self._evaluate()
        if self.late or self.asked or (position.step % every.save == 0 if every.save else at_edge):
            self.save()
        if self.asked:
            if self.cut:
                self._give(weights_of(self.trained))
            distributed.barrier()  # nobody leaves before the checkpoint is on the disk
            raise Interrupted(self.asked, f"after step {position.step}; the state is saved in {self.out / 'state'}: resume to go on")

    def _finish(self, ended_by: str) -> Result:
        """The last, the best and the average weights are compared by the deciding figure; the winner stays."""
        position, metric = self.state.position, self.task.metric
        if position.window.steps:
            self._write_window()
        if position.evaluated != position.step:
            self._evaluate()
        self.save()
        last = self.state.ema.mean if self.state.ema else copied(weights_of(self.trained))
        candidates: dict[str, tuple[Weights, dict[str, float]]] = {"last": (last, position.metrics)}
        if self.state.best and position.best_step != position.step:
            candidates["best"] = self.state.best, {**self._figures(self.state.best)}
        if len(self.state.ring.kept) > 1:
            mean = self.state.ring.mean()
            candidates["average"] = mean, self._figures(mean)
        chosen = "last"
        for name, (_, figures) in candidates.items():
            if metric.better(figures[metric.name], candidates[chosen][1][metric.name]):
                chosen = name
        weights, metrics = candidates[chosen]
        self._give(weights)
        if self.log:
            self.log.write("final", {"step": position.step, "ended_by": ended_by, "chosen": chosen, **metrics})
            checkpoints.save_weights(self.out / "model.safetensors", weights_of(self.model))
            tried = ", ".join(f"{name} {figures[metric.name]:.4g}" for name, (_, figures) in candidates.items())
            self.shown.say(f"ended by {ended_by} after step {position.step}; {metric.name}: {tried}; kept: {chosen}")
        distributed.barrier()
        position_facts = position.step, position.epoch, position.tokens, position.skipped, position.seconds
        return Result(*position_facts, ended_by, chosen, metrics)

    # -- one step ------------------------------------------------------------------------------------------------------

    def _step(self, group: Sequence[Any]) -> None:
        position, config, optimizer = self.state.position, self.config, self.state.optimizer
        optimizer.zero_grad(set_to_none=True)
        total, count, extra = self._gradients(group)
        position.step += 1
        position.tokens += count
        gradients = [sharding.local(p.grad) for p in self.trained.parameters() if p.grad is not None]
        length = float(torch.nn.utils.get_total_norm(gradients))
        if self.cut:
            length = math.sqrt(distributed.sums([length * length], self.device)[0])
        norm = length / max(count, 1)
        # every process has the same sums here, so all of them decide alike
        if reason := self._refuses(total, count, norm):
            self._skip(reason, total / max(count, 1), norm)
            return
        factor = min(1.0, config.clip / (norm + 1e-6)) / count if config.clip else 1.0 / count
        for gradient in gradients:
            gradient.mul_(factor)
        for parameters in optimizer.param_groups:
            parameters["lr"] = config.schedule.lr(position.step) * parameters.get("rate", 1.0)
        optimizer.step()
        if isinstance(self.task, AfterStep):
            self.task.after_step(self.trained)
        position.in_a_row = 0
        if self.state.ema:
            self.state.ema.update(self.trained, position.step - position.skipped)
        window = position.window
        window.total, window.count, window.steps, window.norm = (
            window.total + total,
            window.count + count,
            window.steps + 1,
            window.norm + norm,
        )
        for name, number in extra.items():
            window.extra[name] = window.extra.get(name, 0.0) + number

    def _gradients(self, group: Sequence[Any]) -> tuple[float, int, dict[str, float]]:
        """Sums over the group and all processes: in the gradients, and of losses, tokens and extras, which are returned."""
        position = self.state.position
        total, count, extra = 0.0, 0, dict[str, float]()
        mine = distributed.share(group, distributed.rank(), distributed.world())
        for n, (place, item, counts) in enumerate(mine):
            seed_all(self.config.seed, position.epoch, position.index + place)
            batch = self.task.batch(item)
            with distributed.adding(self.objective, now=n == len(mine) - 1):
                with precision.autocast(position.precision, self.device):
                    summed, loss = self.objective(batch)
                (summed if counts else summed * 0).backward()
            total += counts * float(loss.total.detach())
            count += counts * loss.count
            for name, number in loss.extra.items():
                extra[name] = extra.get(name, 0.0) + counts * float(number)
        asked, limit = self.signals.asked, self.config.budget.minutes
        over = self.first and limit is not None and position.seconds >= limit * 60
        late = self.first and time.monotonic() - self.saved_at >= self.config.every.minutes * 60
        numbers = [total, count, asked == SIGINT, asked == SIGTERM, over, late, *extra.values()]
        total, tokens, interrupts, ends, overs, lates, *extras = distributed.sums(numbers, self.device)
        self.asked = SIGTERM if ends else SIGINT if interrupts else None
        self.out_of_time, self.late = bool(overs), bool(lates)
        return total, int(tokens), dict(zip(extra, extras, strict=True))

    def _refuses(self, total: float, count: int, norm: float) -> str:
        """Why this step must not be taken, or nothing."""
        position, limit = self.state.position, self.config.outlier
        if not (math.isfinite(total) and math.isfinite(norm)):
            return "not finite"
        if count == 0:
            return "nothing to predict"
        taken = position.step - 1 - position.skipped
        usual, far = position.usual_norm, limit and taken >= YOUNG and norm > limit * position.usual_norm
        # far ones count as the limit: if long gradients have become usual, that is learned instead of refused for ever
        position.usual_norm = norm if taken == 0 else usual + 0.05 * (min(norm, limit * usual) - usual if far else norm - usual)
        return "outlier" if far else ""

    def _skip(self, reason: str, loss: float, norm: float) -> None:
        position = self.state.position
        position.skipped += 1
        position.in_a_row += 1
        self.state.optimizer.zero_grad(set_to_none=True)
        if self.log:
            self.log.write("skip", {"step": position.step, "reason": reason, "loss": loss, "norm": norm, "skipped": position.skipped})
            self.shown.say(f"step {position.step} skipped: {reason} (loss {loss:.4g}, gradient {norm:.4g})")
        if position.in_a_row >= SKIPS_IN_A_ROW:
            raise Diverged(
                f"{position.in_a_row} steps in a row could not be taken, the last one at step {position.step} ({reason}); "
                "lower the learning rate, lengthen the warm-up, or look at the data; the last checkpoint is from before"
            )

    # -- now and then --------------------------------------------------------------------------------------------------

    def _figures(self, weights: Weights | None) -> dict[str, float]:
        """What `evaluate` says of these weights: asked by the first process, told to all."""
        metric, value = self.task.metric, 0.0
        metrics: dict[str, float] = {}
        with self._having(weights):
            if self.first:
                seed_all(self.config.seed, "evaluation")
                with torch.no_grad():
                    self.model.eval()
                    metrics = {name: float(number) for name, number in self.task.evaluate(self.model).items()}
                    self.model.train()
        if self.first:
            if metric.name not in metrics:
                raise BadConfig(f"{metric.name!r} decides, but evaluate gave only {', '.join(metrics) or 'nothing'}")
            value = metrics[metric.name]
        return {**metrics, metric.name: distributed.sums([value], self.device)[0]}

    def _having(self, weights: Weights | None) -> AbstractContextManager[None]:
        """Inside, the model has these weights, or the present ones: in the first process, and where nothing is cut in all."""
        if self.cut:
            return sharding.filled(self.model, weights or weights_of(self.trained), keep=self.first)
        return lent(self.model, weights if self.first else None)

    def _give(self, weights: Weights) -> None:
        """The caller's model gets these weights, to keep."""
        if self.cut:
            sharding.fill(self.model, sharding.gathered(weights))
        else:
            load_weights(self.model, weights)

    def _evaluate(self) -> None:
        state, position, metric = self.state, self.state.position, self.task.metric
        shadow = state.ema.mean if state.ema else None
        position.metrics, position.evaluated = self._figures(shadow), position.step
        state.ring.push(self.trained)
        value = position.metrics[metric.name]
        position.stale += 1
        if metric.better(value, position.best):
            position.best, position.best_step, position.stale = value, position.step, 0
            state.best = copied(shadow or weights_of(self.trained))
        if self.log:
            self.log.write("evaluation", {"step": position.step, "epoch": position.epoch, **position.metrics})
            figures = "  ".join(f"{name} {number:.4g}" for name, number in position.metrics.items())
            self.shown.say(f"step {position.step}  epoch {position.epoch}  {figures}{'' if position.stale else '  best so far'}")

    def _write_window(self) -> None:
        position, window = self.state.position, self.state.position.window
        if window.steps and self.log:
            values = {
                "step": position.step,
                "epoch": position.epoch,
                "loss": window.total / window.count,
                "lr": self.config.schedule.lr(position.step),
                "norm": window.norm / window.steps,
                "tokens": position.tokens,
                "tokens_per_second": window.count / max(window.seconds, 1e-9),
                "skipped": position.skipped,
                **{name: number / window.count for name, number in window.extra.items()},
            }
            self.log.write("train", values)
            share = self._share()
            self.shown.step(values, share, position.seconds * (1 - share) / share if share else None)
        position.window = Window()

    def _share(self) -> float:
        """How much of the budget is used."""
        budget, position = self.config.budget, self.state.position
        used = [position.step / budget.steps if budget.steps else 0.0, position.seconds / 60 / budget.minutes if budget.minutes else 0.0]
        if budget.epochs:
            used.append((position.epoch + position.index / self.batches) / budget.epochs)
        return min(1.0, max(used))

    def save(self) -> None:
        """The first process writes; the others have the same state, or give it their parts."""
        self.saved_at = time.monotonic()
        if not (self.log or self.cut):
            return
        whole = self.state.checkpoint(self.log.length() if self.log else 0, keep=self.first)
        if self.log:
            checkpoints.save(self.out / "state", whole, self.config.keep)
