"""One trainer for every task: read the data, make or load the processor, build the model, train it in the one loop, leave a run.

Check first, write last: until the loop is ready to train, nothing in the folder is changed, and what a refused or failed start has added is
removed again. With several seeds each is trained in a folder of its own, OUT/seed-N, and OUT becomes the run of the best.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from .. import files
from ..data.splits import Splits
from ..errors import BadConfig, BadFile, MissingFile, count
from ..layers.spec import split_names
from ..machine import find_device
from ..models import Model, body_of, build, config_of
from ..processes import first_process, world_size
from ..runs import (
    CONFIG,
    METRICS,
    PARAMETERS,
    SEEDS,
    Run,
    RunConfig,
    build_within,
    check_unused,
    create,
    parse_options,
    read_config,
    to_plain,
    write_config,
)
from ..train import Metric, Result, TrainOptions, fit
from ..train.checkpoint import has_checkpoint
from ..train.lock import locked
from ..train.log import check_installed
from ..train.memory import memory_errors
from ..train.options import STEPS
from ..train.parameters import load_parameters, parameters_of
from . import dial, start_message
from .choosing import build_task, changed_options, choose, fill_in
from .dial import SIZES
from .measuring import TaskObjective
from .options import DataOptions
from .runs import find_task, load_run
from .task import Start, Task

LOSS = Metric("loss", higher=False)


@dataclass(frozen=True)
class TrainResult(Result):
    """Result of a training; with several seeds that of the best one."""

    seeds: Mapping[int, Result] = field(default_factory=dict)  # all of them
    best_seed: int = 0  # that the parameters are of
    baselines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # metrics on validation of what costs nothing, by name
    metric: Metric = LOSS  # that decides

    def below(self) -> str:
        """The best baseline, in words, if it is better than the result; else "" (also if it has another metric)."""
        name, sign = self.metric.name, 1 if self.metric.higher else -1
        known = {one: sign * metrics[name] for one, metrics in self.baselines.items() if name in metrics}
        best = max(known, key=lambda one: known[one], default=None)
        return f"{best}: {name} {sign * known[best]:.4g}" if best is not None and known[best] > sign * self.metrics[name] else ""

    def spread(self, metric: str) -> tuple[float, float, float]:
        """Mean, minimum and maximum of a metric over the seeds."""
        found = [result.metrics[metric] for result in self.seeds.values()]
        return sum(found) / len(found), min(found), max(found)


def train(
    task: str | type[Task[Any]],
    options: DataOptions | None = None,
    train_options: TrainOptions | None = None,
    out: Path | str = "run",
    *,
    model: str | None = None,
    settings: Mapping[str, Any] | None = None,
    init_from: Run[Any] | Path | str | None = None,
    from_scratch: bool = False,
    resume: bool = False,
    progress: bool = True,
    given: Collection[str] | None = None,
) -> TrainResult:
    """Train a task and leave a run in `out`.

    Args:
        task: name or class.
        options: options of the task; None: their defaults.
        train_options: training options; None: the dial chooses what suits the data and the budget, as for all that `given` does not name.
        out: run directory.
        model: name of a model; None: the choice of the dial, or the task's default.
        settings: settings of the model, by name.
        init_from: run whose model and tokenizer to start from.
        from_scratch: with `init_from`: take the shape and the tokenizer of that run, and nothing that it has learned.
        resume: continue what is in `out`; nothing but larger budgets, the learning rate and intervals may then differ from the beginning.
        progress: show a progress bar.
        given: names of the options and settings that stay as they are; the dial chooses the others. None: with `train_options` all, without them
            those that differ from their defaults.
    """
    kind, out = find_task(task), Path(out)
    if given is None and train_options is None:
        given = changed_options(options) | set(settings or ()) | ({"model"} if model else set())
    if resume:
        config = resumed_config(out, options, train_options, model, settings, init_from)
        if config.task != kind.name:
            raise BadConfig(f"{out} is a run of the task {config.task}, not {kind.name}; resume it as that")
    else:
        config = new_config(kind, options, train_options, model, settings, init_from, from_scratch)
        if first_process():
            check_unused(out)
    training = _Training(kind, config, out, init_from if isinstance(init_from, Run) else None, resume, progress, given)
    with _folder_of(training), locked(out), _undone(training), memory_errors("preparing the training"):
        return training.run()


def new_config(
    kind: type[Task[Any]],
    options: DataOptions | None,
    train_options: TrainOptions | None,
    model: str | None,
    settings: Mapping[str, Any] | None,
    init_from: Run[Any] | Path | str | None,
    from_scratch: bool,
) -> RunConfig:
    """Beginning of a run, before the model is built.

    Args:
        kind: class of the task.
        options: options of the task; None: their defaults.
        train_options: training options; None: the defaults of the task for the model.
        model: name of the model; None: the task's default.
        settings: settings of the model that were given.
        init_from: run to start from, or its folder.
        from_scratch: take only the shape and the tokenizer of that run.
    """
    if from_scratch and init_from is None:
        raise BadConfig("--from-scratch takes the shape of a run: name it with --init-from, or omit --from-scratch and choose a --model")
    return RunConfig(
        task=kind.name,
        options=to_plain((options or kind.Options()).absolute()),
        model=model or kind.default_model,
        settings=dict(settings or {}),
        train=to_plain((train_options or kind.train_defaults(model or kind.default_model)).for_processes()),
        init_from=_folder(init_from),
        from_scratch=from_scratch,
    )


def resumed_config(
    out: Path,
    options: DataOptions | None = None,
    train_options: TrainOptions | None = None,
    model: str | None = None,
    settings: Mapping[str, Any] | None = None,
    init_from: Run[Any] | Path | str | None = None,
) -> RunConfig:
    """The config of a run that is continued, with those options changed that may be. Any other change is refused by name.

    Args:
        out: run directory to continue.
        options: options of the task that were given; None: none.
        train_options: training options that were given; None: none.
        model: name of the model, if it was given.
        settings: settings of the model that were given.
        init_from: run to start from, if it was given.
    """
    if not (out / CONFIG).exists():
        raise MissingFile(f"nothing to resume in {out}: it holds no {CONFIG}; omit --resume to start a new run")
    stored = read_config(out)
    training, free = to_plain(train_options), {*TrainOptions.BUDGETS, *TrainOptions.RESUMABLE}
    if train_options is not None and stored.train.get("accumulate") == train_options.for_processes().accumulate:
        del training["accumulate"]  # it was raised at the start, as it would be now
    fixed = {name: value for name, value in training.items() if name not in free}
    given = _by_flag(to_plain(options and options.absolute()), to_plain(settings), model, _folder(init_from), fixed)
    began = _by_flag(stored.options, stored.settings, stored.model, stored.init_from, stored.train)
    for name, value in given.items():
        if began.get(name) != value:
            raise BadConfig(
                f"--{name.replace('_', '-')} is {value!r}, but {out} was started with {'the default' if began.get(name) is None else repr(began.get(name))}; "
                "a resumed run may only be given larger --steps, --epochs or --minutes, another --lr and other intervals"
            )
    budget = {name: stored.train.get(name) for name in TrainOptions.BUDGETS}
    budget = budget if any(budget.values()) else {"steps": STEPS}
    for name, old in budget.items():
        new = training.get(name)
        if old is not None and not isinstance(old, int | float):
            raise BadFile(f"{out / CONFIG}: train.{name} is {str(old)[:80]!r}; expected a number")
        if new is not None and old is not None and new < old:
            raise BadConfig(f"--{name} {new} is less than {old}, which {out} was started with; a budget can only be extended")
    changes = {name: value for name, value in training.items() if name in free and value is not None}
    return replace(stored, train=stored.train | changes)


def _folder(run: Run[Any] | Path | str | None) -> str | None:
    return None if run is None else str(run.folder if isinstance(run, Run) else run)


def _by_flag(
    options: dict[str, Any], settings: dict[str, Any], model: str | None, base: str | None, train: dict[str, Any]
) -> dict[str, Any]:
    """All that is given, by the flags of the command line."""
    named = {name: value for name, value in (("model", model), ("init_from", base)) if value}
    return {**options, **{f"set {name}": value for name, value in settings.items()}, **named, **train}


class _Training:
    """One call of `train`."""

    def __init__(
        self,
        kind: type[Task[Any]],
        config: RunConfig,
        out: Path,
        base: Run[Any] | None,
        resume: bool,
        progress: bool,
        given: Collection[str] | None,
    ):
        self.task = build_task(config, kind)  # the class that was given, even if another one is registered under its name
        self.options = parse_options(TrainOptions, config.train, "training")
        self.config, self.out, self.resume, self.progress = config, out, resume, progress
        self.base, self.given = base, given
        self.began = time.monotonic()  # when the part of the time limit began that no seed has used yet
        self.choice: dial.Choice | None = None
        self.baselines: dict[str, dict[str, float]] = {}
        self.written = False  # whether a resumed run has been written to
        self.created: list[Path] = []  # config.json and the files of the processor

    def run(self) -> TrainResult:
        if not self.task.options.data:
            raise BadConfig(f"there is no data to train {self.task.name} on; name some with --data")
        check_installed([name for name in ("tensorboard", "wandb", "mlflow") if getattr(self.options, name)])
        raw = self.task.read()
        if self.given is not None and not self.resume and self.config.init_from is None:
            self._turn_dial(raw, self.given)
        if self.resume:
            self.task.processor = self.task.load_processor(self.out)
        else:
            base = self._load_base()
            self.task.processor = self.task.make_processor(raw, None if base is None else base.processor)
        data = self.task.prepare(raw, self.out)
        if self.resume and self.config.digest not in (None, data.digest):
            raise BadConfig(
                f"the data differ from those that {self.out} was started with, so it cannot be resumed; restore them, "
                f"or start another run with --init-from {self.out}"
            )
        self.config = replace(self.config, digest=data.digest, skipped=str(data.skipped) if len(data.skipped) else "")
        if self.config.skipped:
            self._say(self.config.skipped)
        if self.options.seeds:
            found = self._all_seeds(data)
        else:
            found = TrainResult(**vars(self._one_seed(data, self.out, self.options)), best_seed=self.options.seed)
        return replace(found, baselines=self.baselines, metric=self.metric)

    def _measure_baselines(self, data: Splits[Any]) -> None:
        """Say what costs nothing reaches on validation data."""
        self.baselines = self.task.baselines(data.train, self.task.validation(data.valid))
        name = self.metric.name
        known = [f"{one} {metrics[name]:.4g}" for one, metrics in self.baselines.items() if name in metrics]
        if known:
            self._say(f"Baselines, {name} on validation: {', '.join(known)}")

    def _turn_dial(self, data: Splits[Any], given: Collection[str]) -> None:
        """Fill in model, sizes and options that the user has not given."""
        choice = choose(self.task, data, self.options, self.config, given)
        if choice is None:
            return
        self.config = fill_in(self.config, choice, given)
        self.task = build_task(self.config, type(self.task))
        self.options = parse_options(TrainOptions, self.config.train, "training")
        self.choice = choice

    def _load_base(self) -> Run[Any] | None:
        if self.base is None and self.config.init_from is not None:
            self.base = load_run(self.config.init_from)
        return self.base

    def _all_seeds(self, data: Splits[Any]) -> TrainResult:
        """Train with each seed, for its share of the time limit; `out` is the run of the best so far."""
        results: dict[int, Result] = {}
        minutes, seeds = self.options.minutes, self.options.seeds
        if minutes is not None and len(seeds) > 1:
            minutes /= len(seeds)
            self._say(f"{len(seeds)} seeds share the {self.options.minutes:g} minutes: {minutes:.2g} minutes each")
        for seed in seeds:
            options = self.options.replace(seed=seed, seeds=(), minutes=minutes)
            results[seed] = self._one_seed(data, self.out / f"seed-{seed}", options)
            sign = 1 if self.metric.higher else -1
            best = max(results, key=lambda seed: sign * results[seed].metrics[self.metric.name])
            if first_process() and best == seed:
                kept = self.out / f"seed-{best}" / PARAMETERS
                _write(self.out / PARAMETERS, kept.read_bytes())
        if first_process():
            found = {"best": best, "metric": self.metric.name, "seeds": {str(seed): result.metrics for seed, result in results.items()}}
            _write(self.out / SEEDS, json.dumps(found, indent=2))
        return TrainResult(**vars(results[best]), seeds=results, best_seed=best)

    def _one_seed(self, data: Splits[Any], out: Path, options: TrainOptions) -> Result:
        """Train with one seed in one folder."""
        resume = self.resume and (out / CONFIG).exists()
        torch.manual_seed(options.seed)
        stored = read_config(out) if resume and has_checkpoint(out / "state") else None
        body = self._body(data) if stored is None else build_within(out, stored, lambda: build(stored.model, stored.settings))
        start: Start = "new" if stored is None else "loaded"
        if self.config.init_from is not None and not self.config.from_scratch:
            start = "pretrained"
        model = self.task.adapt(body, data, start).to(find_device(options.device))
        objective = TaskObjective(self.task, data, model, options.seed)
        self.metric = objective.metric
        name, settings = config_of(body_of(model))
        if not resume:
            options = self._begin(name, settings, model, data, objective, options)
        config = replace(self.config, model=name, settings=settings, train=to_plain(options))

        def ready() -> dict[str, Any]:
            """The loop has checked everything: the first thing that is written."""
            self.written = self.resume
            if self.choice is not None:
                self._say(f"Chosen: {self.choice.words}")
                self._say(f"Expected on validation: {self.choice.expected}")
            if self.progress and not self.baselines:
                self._measure_baselines(data)
            if out != self.out:  # of several seeds
                self._record(self.out, replace(config, train=to_plain(self.options)))
            return self._record(out, config)

        result = fit(model, objective, options, out, resume=resume, progress=self.progress, ready=ready, began=self.began)
        self.began = time.monotonic()
        return result

    def _begin(
        self, name: str, settings: dict[str, Any], model: Model, data: Splits[Any], objective: TaskObjective, options: TrainOptions
    ) -> TrainOptions:
        """Say what is about to happen; the options with a warm-up that fits the budget."""
        per_epoch = -(-len(objective.batches(0)) // options.accumulate)
        measure = first_process() and (self.progress or options.minutes is not None)
        seconds = start_message.seconds_per_step(model, objective, options.accumulate) if measure else None
        alone = world_size() == 1  # several processes must agree, and measure different speeds
        reach = start_message.budget_steps(options, per_epoch, seconds if alone else None)
        decided = options.with_warmup(reach, self.task.most_warmup)
        for line in start_message.describe(name, settings, model, data, self.task.unit, decided, per_epoch, seconds):
            self._say(line)
        if data.note:
            self._say(data.note)
        return decided

    def _say(self, line: str) -> None:
        if first_process():
            print(line, file=sys.stderr, flush=True)

    def _record(self, out: Path, config: RunConfig) -> dict[str, Any]:
        """Begin a run, or note the options that are changed when it is resumed; an unchanged config is not written again."""
        if not (out / CONFIG).exists():
            self.created += create(out, config, self.task.processor)
            return {}
        stored = read_config(out)
        if config != stored:
            write_config(out, config)
        changed = {name: [stored.train.get(name), value] for name, value in config.train.items() if stored.train.get(name) != value}
        return {"changed": changed} if changed else {}

    def _body(self, data: Splits[Any]) -> Model:
        """The model before it is adapted to the task: of the run to initialise from, or by name."""
        if (base := self._load_base()) is None:
            self.task.check_kind(self.config.model)  # before settings of another kind of model are reported as unknown
            given, wanted = self.config.settings, self.task.settings(self.config.model, data)
            sizes = {} if given.keys() & SIZES else self.task.sizes(self.config.model, data)
            return build(self.config.model, {**sizes, **wanted, **given})
        body = body_of(base.model)
        copy = build(*config_of(body))  # drawn again even if it is filled: so what is added to it is the same with and without pretraining
        if not self.config.from_scratch:
            load_parameters(copy, parameters_of(body))
        return self._swapped(copy)

    def _swapped(self, model: Model) -> Model:
        """The model of the run to initialise from, with the attention that was asked for; its other settings are fixed."""
        given = dict(self.config.settings)
        asked = given.pop("attention_overrides", ()) or given.pop("attention", ())
        mine = config_of(model)[1]
        for name, value in given.items():
            if mine.get(name) != (list(value) if isinstance(value, tuple) else value):
                raise BadConfig(
                    f"--set {name}={value} with --init-from: that run has {name}={mine.get(name)}; only attention can be replaced"
                )
        if not asked:
            return model
        line = (
            ", ".join(asked) if isinstance(asked, tuple) and isinstance(asked[0], str) else asked if isinstance(asked, str) else asked[0][1]
        )
        swapped = model.with_attention(tuple(split_names(line)))
        self._say(f"Attention replaced by {line} in {count(len(model.attentions()), 'layer')} of {self.config.init_from}")
        return swapped


# -- a start that is refused or fails ----------------------------------------------------------------------------------


@contextmanager
def _undone(training: _Training) -> Iterator[None]:
    """If the training is refused or fails before its first checkpoint, what it has added to the folder is removed."""
    before = set(_parts(training.out))
    try:
        yield
    except BaseException:
        saved = training.written if training.resume else any(map(has_checkpoint, _parts(training.out, "state", "seed-*/state")))
        for path in () if saved or not first_process() else {*_parts(training.out), *training.created} - before:
            with suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        raise


def _parts(out: Path, *names: str) -> list[Path]:
    """Names of what training writes into its folder: nothing else that is there may be removed."""
    names = names or (METRICS, PARAMETERS, "state", "tensorboard", "tokens", "tokens/*", "seed-*")
    return [path for name in names for path in out.glob(name)]


@contextmanager
def _folder_of(training: _Training) -> Iterator[None]:
    """If the folder was made for nothing, it goes away again, and those above it."""
    out = training.out
    new = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        yield
    except BaseException:
        for folder in new if first_process() else ():
            with suppress(OSError):  # it is not empty
                folder.rmdir()
        raise


def _write(path: Path, content: str | bytes) -> None:
    try:
        files.write(path, content)
    except OSError as wrong:
        raise files.cannot(path, wrong) from wrong
