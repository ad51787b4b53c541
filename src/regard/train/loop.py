"""The training loop: batches, gradients, steps, and at intervals an evaluation and a checkpoint.

    lock the folder, restore the last checkpoint, check everything; then write for the first time
    for each group of `accumulate` batches:
        gradient = Σ gradients of the sums of losses  /  Σ tokens          over all batches and all processes
        if it is finite and its norm is not an outlier: clip, step
        when due: a line in metrics.jsonl; an evaluation; a checkpoint
    model.safetensors: the best so far, at each evaluation that finds one; at the end the best of last, best and average

All randomness of a batch comes from (seed, epoch, index in the epoch). A run that is killed and resumed therefore ends with the same
parameters, bit for bit, as an uninterrupted one (same machine and number of threads), and several processes give what one gives.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import BadConfig, BadFile, Diverged, Interrupted, RunExists
from ..machine import autocast, choose_precision, deterministic
from . import checkpoint as checkpoints
from . import distributed
from .evaluation import Evaluator
from .launcher import STOPS, Signals
from .lock import locked
from .log import Curves, Log, ProgressBar, check_installed, describe, last_event, progress_for
from .memory import memory_errors, needed, tokens_of, warning
from .objective import Objective, Progress, ahead, to_device
from .options import TrainOptions
from .parameters import load_parameters, parameters_of
from .schedule import schedule_of
from .state import State, Window, seed_all, seeded

SKIPS_IN_A_ROW = 20  # more means that something is broken
CHECKPOINT_MINUTES = 10.0  # between two checkpoints, at most
EVALUATIONS = 8  # in a budget, at most, where their interval is not given
EVALUATION_SHARE = 0.1  # of a time limit, at most, before the last one


@dataclass(frozen=True)
class Result:
    """The result of a run; the model and model.safetensors hold the chosen parameters."""

    steps: int  # optimizer steps, skipped ones included
    epochs: int  # whole passes over the data
    tokens: int  # trained on, in all processes; of other tasks their unit
    skipped: int  # steps left out because their gradient was not finite, or an outlier
    seconds: float  # training time, earlier sessions included
    ended_by: str  # "budget" or "patience"
    chosen: str  # "last", "best" or "average"
    metrics: dict[str, float]  # metrics of the chosen parameters


def fit(
    model: nn.Module,
    objective: Objective,
    options: TrainOptions,
    out: Path,
    *,
    resume: bool = False,
    progress: bool = True,
    ready: Callable[[], dict[str, Any]] | None = None,
    began: float | None = None,
) -> Result:
    """Train the model; write model.safetensors, metrics.jsonl and state/ into the folder `out`, which is locked meanwhile.

    On SIGINT, SIGTERM and SIGHUP it finishes the step, saves, and raises Interrupted. With sharding the model has no parameters while its sharded copy trains, and stays so after any
    other error.

    Args:
        model: model on its device; it ends with the chosen parameters.
        objective: batches, loss and evaluation.
        options: training options.
        out: folder of the run.
        resume: continue from the last checkpoint in `out`; start if there is none.
        progress: show a progress bar.
        ready: called by the process that writes, when all checks are done and before anything is written; what it returns is added to the first
            line of the log.
        began: moment of `time.monotonic` from which the time limit of a new run counts, so that reading the data is part of it; None: now.
    """
    out = Path(out)
    with (
        locked(out),
        distributed.joined(),
        Signals() as signals,
        progress_for(progress, silent=distributed.rank() != 0) as bar,
        deterministic(options.deterministic),
        memory_errors("training"),
    ):
        checkpoint = checkpoints.load_latest(out / "state")
        # a resumed run keeps its batches per step, with more processes, too: some then have nothing to add
        options = options.for_processes() if checkpoint is None else options.with_batches(checkpoint.values.get("config"))
        loop = _Loop(model, objective, options, out, signals, bar)
        try:
            loop.restore(checkpoint, resume)
            if finished := loop.finished():
                return finished
            loop.begin(ready or dict, began)
            return loop.run()
        finally:
            distributed.release(loop.module)
            if loop.log:
                loop.log.close()


class _Loop:
    def __init__(self, model: nn.Module, objective: Objective, options: TrainOptions, out: Path, signals: Signals, bar: ProgressBar):
        self.model, self.objective, self.options, self.out = model, objective, options, out
        self.signals, self.bar = signals, bar
        self.first = distributed.rank() == 0
        self.trackers = [name for name in ("tensorboard", "wandb", "mlflow") if getattr(options, name)]
        check_installed(self.trackers)  # in all processes: one that fails alone would leave the others waiting
        self.device = next(model.parameters()).device
        self.sharded = options.sharding == "full" and distributed.world() > 1
        # the loss of the model, or of a sharded copy: then the model has parameters only during evaluations and at the end
        module = distributed.sharded(objective, model) if self.sharded else distributed.LossModule(objective, model)
        self.module: nn.Module = module
        self.trained: nn.Module = module.model
        self.state = State(self.trained, options, objective.rates(self.trained))
        epoch = -(-len(objective.batches(0)) // options.accumulate) if options.needs_epoch_length else None
        self.schedule = schedule_of(options, epoch)
        self.evaluator = Evaluator(model, objective, self.state, out / "model.safetensors", self.sharded)
        self.log: Log | None = None
        self.signal: int | None = None  # that some process got, known to all
        self.out_of_time = self.checkpoint_due = self.evaluation_due = False  # by the clock of rank 0
        self.clock = 0.0  # used share of the time limit, by that clock
        self.evaluated_at = self.evaluation_seconds = 0.0  # when the last evaluation ended, and the time of the longest one
        self.saved_at = time.monotonic()
        self.batches = 1  # in this epoch
        self.checkpoint: checkpoints.Checkpoint | None = None
        self.log_length = 0  # at that checkpoint
        self.unestimated = self.first  # memory

    # -- begin and end -------------------------------------------------------------------------------------------------

    def restore(self, checkpoint: checkpoints.Checkpoint | None, resume: bool) -> None:
        """The state of a checkpoint, if there is one. Nothing is written."""
        self.checkpoint = checkpoint
        if checkpoint and not resume:
            raise RunExists(
                f"{self.out} already holds a run at step {checkpoint.step}; continue it with --resume, or choose another folder"
            )
        self.log_length = self.state.restore(self.checkpoint) if self.checkpoint else 0
        step = self.state.position.step
        self.evaluated_at = self.state.position.seconds
        self.clock = self._clock()
        self.out_of_time = self._seconds_left() <= 0
        if distributed.sums([step])[0] != step * distributed.world():
            raise BadConfig(f"the processes find different checkpoints in {self.out / 'state'}; use a folder that all of them can read")

    def finished(self) -> Result | None:
        """The result of a run that has ended before and whose budget is not larger now; the model gets its parameters."""
        position, path = self.state.position, self.out / "model.safetensors"
        final = last_event(self.out / "metrics.jsonl") if self.checkpoint and self._ended() else None
        if final is None or final["event"] != "final" or final.get("step") != position.step or not path.is_file():
            return None
        about = {"step", "ended_by", "chosen", "event"}
        metrics = {name: math.nan if value is None else float(value) for name, value in final.items() if name not in about}
        load_parameters(self.model, checkpoints.read_parameters(path), str(path))
        self.bar.say(f"{self.out} has finished: {final['ended_by']} after step {position.step}; give a larger budget to continue")
        return self._result(final["ended_by"], final["chosen"], metrics)

    def begin(self, ready: Callable[[], dict[str, Any]], began: float | None) -> None:
        """Write for the first time."""
        found, step = self.checkpoint, self.state.position.step
        self._choose_precision()
        if self.options.compile:
            logging.getLogger("torch._dynamo").setLevel(logging.ERROR)  # it warns where the losses become numbers for the log
            self.module.compile(dynamic=True)
        self.module = distributed.parallel(self.module)
        if self.first:
            more = ready()
            curves = Curves(self.trackers, self.out, step) if self.trackers else None
            self.log = Log(self.out / "metrics.jsonl", self.log_length, curves)
            for reason in found.skipped if found else ():
                self.bar.say(f"skipped checkpoint: {reason}")
            if found:
                self.bar.say(f"resuming from step {step}")
            if (idle := distributed.world() - self.options.accumulate) > 0:
                self.bar.say(
                    f"--accumulate {self.options.accumulate}, as the run was started, leaves {idle} of {distributed.world()} processes idle"
                )
            self.log.write("resume" if found else "start", {"step": step, **self._setting(), **more})
        if not found:
            self.save()  # an unwritable disk should fail now, not in an hour
        if not found and began is not None:
            self.state.position.seconds = time.monotonic() - began

    def _setting(self) -> dict[str, Any]:
        """Conditions beside the options that decide the last bits of the result; and the metric that decides."""
        return {
            "metric": self.objective.metric.name,
            "higher": self.objective.metric.higher,
            "device": str(self.device),
            "threads": torch.get_num_threads(),
            "processes": distributed.world(),
            "precision": self.state.position.precision,
            "deterministic": self.options.deterministic,
            "torch": torch.__version__,
        }

    def _choose_precision(self) -> None:
        position = self.state.position
        mine, message = choose_precision(self.options.precision, self.device, position.precision)
        all_can = distributed.sums([mine == "bfloat16"])[0] == distributed.world()  # two processes may have measured differently
        position.precision = "bfloat16" if all_can else "float32"
        if message:
            self.bar.say(message)

    def run(self) -> Result:
        self.model.train()
        self.trained.train()
        if self.sharded:
            distributed.empty(self.model)
        ended_by = ""
        while not (ended_by := self._ended()):
            self._epoch()
        return self._finish(ended_by)

    def _ended(self) -> str:
        position, patience = self.state.position, self.options.patience
        if patience and position.stale >= patience:
            return "patience"
        return "budget" if self.out_of_time or self.options.why_over(position.step, position.epoch) else ""

    def _epoch(self) -> None:
        """The rest of the epoch, or of the budget."""
        position, size = self.state.position, self.options.accumulate
        items = self.objective.batches(position.epoch)
        self.batches = len(items)
        if not self.batches:
            raise BadConfig(f"epoch {position.epoch} of {type(self.objective).__name__} has no batches; check that the data are not empty")
        batches = self._batches(items)
        while position.index < len(items) and not self._ended():
            began = time.monotonic()
            self._step(len(items[position.index : position.index + size]), batches)
            position.index += size
            at_edge = position.index >= len(items)
            if at_edge:
                position.epoch, position.index = position.epoch + 1, 0
            stepped = time.monotonic()
            position.seconds += stepped - began
            position.window.seconds += stepped - began
            self._after_step(at_edge)
            position.seconds += time.monotonic() - stepped  # the budget includes the time of evaluations and checkpoints
            if at_edge:
                return

    def _batches(self, items: Sequence[Any]) -> Iterator[tuple[int, Any, bool]]:
        """(index in the epoch, batch, whether it counts) of this process, from here to the end of the epoch."""
        epoch, first, size = self.state.position.epoch, self.state.position.index, self.options.accumulate

        def jobs() -> Iterator[tuple[int, Any, bool]]:
            for start in range(first, len(items), size):
                for n, item, counts in distributed.share(items[start : start + size], distributed.rank(), distributed.world()):
                    yield start + n, item, counts

        def make(job: tuple[int, Any, bool]) -> tuple[int, Any, bool]:
            index, item, counts = job
            return index, self.objective.batch(item, seeded(self.options.seed, epoch, index)), counts

        return ahead(make, jobs(), self.device)

    def _after_step(self, at_edge: bool) -> None:
        options, position = self.options, self.state.position
        if position.step % options.log_every == 0:
            self._write_window()
        if self._due(at_edge):
            self._evaluate()
        if self.checkpoint_due or self.signal or (position.step % options.save_every == 0 if options.save_every else at_edge):
            self.save()
        if self.signal:
            if self.sharded:
                self.evaluator.load(parameters_of(self.trained))
            distributed.barrier()  # no process leaves before the checkpoint is on disk
            raise Interrupted(
                self.signal, f"after step {position.step}; the state is saved in {self.out / 'state'}; continue with --resume"
            )

    def _due(self, at_edge: bool) -> bool:
        """True if it is time for an evaluation: by steps if their interval is given, by the clock if that limits the training, or by epochs."""
        options, position = self.options, self.state.position
        if options.evaluate_every:
            return position.step % options.evaluate_every == 0
        if options.minutes is not None:
            return self.evaluation_due
        least = (options.max_steps or 0) // EVALUATIONS if options.epochs is None else 1
        return at_edge and position.step - max(position.evaluated, 0) >= least

    def _finish(self, ended_by: str) -> Result:
        """Compare the last, the best and the averaged parameters by the deciding metric; keep the best of them."""
        position, metric = self.state.position, self.objective.metric
        if position.window.steps:
            self._write_window()
        if position.evaluated != position.step:
            self._evaluate()
        self.save()
        candidates = self.evaluator.candidates()
        chosen = self.evaluator.choose(candidates)
        self.evaluator.load(candidates[chosen].parameters)
        if self.log:
            self.evaluator.write(parameters_of(self.model))
            self.log.write("final", {"step": position.step, "ended_by": ended_by, "chosen": chosen, **candidates[chosen].metrics})
            self.log.length()
            why = self.options.why_over(position.step, position.epoch) or "time limit reached"
            if ended_by == "patience":
                why = f"no improvement in {self.options.patience} evaluations"
            tried = ", ".join(f"{name} {figures[metric.name]:.4g}" for name, (_, figures) in candidates.items())
            self.bar.say(f"Finished ({why}) at step {position.step}; best: step {position.best_step}")
            self.bar.say(f"Parameters kept: {chosen} ({metric.name}: {tried})")
        distributed.barrier()
        return self._result(ended_by, chosen, candidates[chosen].metrics)

    def _result(self, ended_by: str, chosen: str, metrics: dict[str, float]) -> Result:
        position = self.state.position
        return Result(position.step, position.epoch, position.tokens, position.skipped, position.seconds, ended_by, chosen, metrics)

    # -- one step ------------------------------------------------------------------------------------------------------

    def _step(self, size: int, batches: Iterator[tuple[int, Any, bool]]) -> None:
        """One optimizer step with the next `size` batches of the epoch."""
        position, clip, optimizer = self.state.position, self.options.clip, self.state.optimizer
        optimizer.zero_grad(set_to_none=True)
        rate = self.objective.before_step(Progress(used := self._used(), position.epoch + position.index / self.batches))
        total, count, extra = self._gradients(size, batches)
        position.step += 1
        position.tokens += count
        gradients = [distributed.local(p.grad) for p in self.trained.parameters() if p.grad is not None]
        length = float(torch.nn.utils.get_total_norm(gradients))
        if self.sharded:
            length = math.sqrt(distributed.sums([length * length], self.device)[0])
        norm = length / max(count, 1)
        # all processes have the same sums, so they decide alike
        if reason := self._skip_reason(total, count, norm):
            self._skip(reason, total / max(count, 1), norm, range(position.index, position.index + size))
            return
        factor = min(1.0, clip / (norm + 1e-6)) / count if clip else 1.0 / count
        for gradient in gradients:
            gradient.mul_(factor)
        for parameters in optimizer.param_groups:
            parameters["lr"] = self.schedule.at(position.step, used) * rate * parameters.get("rate", 1.0)
        try:
            optimizer.step()
        except KeyError as error:  # of a restored state: PyTorch checks it no earlier
            raise BadFile(f"the checkpoint that {self.out} was resumed from lacks {error} of the optimizer") from error
        self.objective.after_step(self.trained)
        position.in_a_row = 0
        if self.state.ema:
            self.state.ema.update(self.trained, position.step - position.skipped)
        window = position.window
        window.total += total
        window.count += count
        window.steps += 1
        window.norm += norm
        for name, number in extra.items():
            window.extra[name] = window.extra.get(name, 0.0) + number

    def _gradients(self, size: int, batches: Iterator[tuple[int, Any, bool]]) -> tuple[float, int, dict[str, float]]:
        """Accumulate gradients; returns losses, tokens and extras summed over the step's batches and all processes."""
        position = self.state.position
        total, count, extra = 0.0, 0, dict[str, float]()
        rounds = -(-size // distributed.world())
        for n in range(rounds):
            index, batch, counts = next(batches)
            batch = to_device(batch, self.device)
            if self.unestimated:
                self._estimate_memory(batch)
            seed_all(self.options.seed, position.epoch, index)
            with distributed.adding(self.module, now=n == rounds - 1):
                with autocast(position.precision, self.device):
                    summed, loss = self.module(batch)
                (summed if counts else summed * 0).backward()
            total += counts * float(loss.total.detach())
            count += counts * loss.count
            for name, number in loss.extra.items():
                extra[name] = extra.get(name, 0.0) + counts * float(number)
        asked, first = self.signals.asked, self.first
        clock = [first * self._clock(), first and self._seconds_left() <= 0, first and self._late(), first and self._evaluation_is_due()]
        numbers = [*(asked == number for number in STOPS), total, count, *clock, *extra.values()]
        *stops, total, tokens, self.clock, over, late, due = (summed := distributed.sums(numbers, self.device))[: len(STOPS) + 6]
        extras = summed[len(STOPS) + 6 :]
        self.signal = next((number for number, processes in zip(STOPS, stops, strict=True) if processes), None)
        self.out_of_time, self.checkpoint_due, self.evaluation_due = bool(over), bool(late), bool(due)
        return total, int(tokens), dict(zip(extra, extras, strict=True))

    def _estimate_memory(self, batch: Any) -> None:
        self.unestimated = False
        if message := warning(needed(self.trained, self.options, tokens_of(batch), distributed.world()), self.device):
            self.bar.say(message)

    def _skip_reason(self, total: float, count: int, norm: float) -> str:
        """Why this step is skipped, or ""."""
        position, limit = self.state.position, self.options.outlier
        if not (math.isfinite(total) and math.isfinite(norm)):
            return "not finite"
        if count == 0:
            return "nothing to predict"
        return "outlier" if position.is_outlier(norm, limit) else ""

    def _skip(self, reason: str, loss: float, norm: float, batches: range) -> None:
        """`batches` are their numbers in the epoch: with the seed they say which examples these were."""
        position = self.state.position
        position.skipped += 1
        position.in_a_row += 1
        self.state.optimizer.zero_grad(set_to_none=True)
        if self.log:
            where = {"epoch": position.epoch, "batches": list(batches)}
            values = {"step": position.step, **where, "reason": reason, "loss": loss, "norm": norm, "skipped": position.skipped}
            self.log.write("skip", values)
            self.bar.say(
                f"step {position.step} skipped: {reason} (loss {loss:.4g}, gradient {norm:.4g}; "
                f"epoch {position.epoch}, batch {', '.join(map(str, batches))})"
            )
        if position.in_a_row >= SKIPS_IN_A_ROW:
            raise Diverged(
                f"{position.in_a_row} steps in a row were skipped, the last at step {position.step} ({reason}); "
                "lower the learning rate, raise warmup_steps, or check the data; the last checkpoint is older"
            )

    # -- at intervals --------------------------------------------------------------------------------------------------

    def _evaluate(self) -> None:
        position, began = self.state.position, time.monotonic()
        self.evaluator.evaluate()
        self.evaluation_seconds = max(self.evaluation_seconds, time.monotonic() - began)
        self.evaluated_at = position.seconds
        if self.log:
            self.log.write("evaluation", {"step": position.step, "epoch": position.epoch, **position.metrics})
            figures = "  ".join(f"{name} {number:.4g}" for name, number in position.metrics.items())
            self.bar.say(f"step {position.step}  epoch {position.epoch}  {figures}{'' if position.stale else '  best so far'}")

    def _write_window(self) -> None:
        position, window = self.state.position, self.state.position.window
        if window.steps and self.log:
            values = position.averages(self.schedule.at(position.step, self._used()))
            self.log.write("train", values)
            share = self._used()
            self.bar.update(describe(values, self.objective.unit, position.seconds * (1 - share) / share if share else None), share)
        position.window = Window()

    def _used(self) -> float:
        """The used share of the budget; the same in all processes."""
        position = self.state.position
        return max(self.clock, self.options.used(position.step, position.epoch + position.index / self.batches))

    # -- the clock of this process -------------------------------------------------------------------------------------

    def _clock(self) -> float:
        """The used share of the time limit."""
        return 0.0 if self.options.minutes is None else min(1.0, 1 - self._seconds_left() / (self.options.minutes * 60))

    def _seconds_left(self) -> float:
        """Seconds until the last evaluations must begin, so that they end within the limit; infinite without one."""
        position, limit = self.state.position, self.options.minutes
        if limit is None:
            return math.inf
        last = self.evaluation_seconds * (1 + (len(self.state.ring.kept) > 1))
        return limit * 60 - last - position.seconds

    def _late(self) -> bool:
        return time.monotonic() - self.saved_at >= CHECKPOINT_MINUTES * 60

    def _evaluation_is_due(self) -> bool:
        """True if the clock decides on evaluations, and the last one is long enough ago for what it took."""
        position, limit = self.state.position, self.options.minutes
        if limit is None:
            return False
        wait = max(limit * 60 / EVALUATIONS, self.evaluation_seconds / EVALUATION_SHARE)
        return position.seconds - self.evaluated_at >= wait and self._seconds_left() > wait / 2

    def save(self) -> None:
        """Rank 0 writes; the others have the same state, or contribute their shards."""
        self.saved_at = time.monotonic()
        if not (self.log or self.sharded):
            return
        whole = self.state.checkpoint(self.log.length() if self.log else 0, keep=self.first)
        if self.log:
            checkpoints.save(self.out / "state", whole, self.options.keep)
            if self.state.position.best is None:  # nothing is known to be better yet
                self.evaluator.write(whole.tensors.get("ema", whole.tensors["model"]))
