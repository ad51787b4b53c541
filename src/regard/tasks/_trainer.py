"""One trainer for every task: read the data, make or load the processor, build the model, train it in the one loop, leave a run.

With several seeds each is trained in a folder of its own, OUT/seed-N, and OUT becomes the run of the best.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ..errors import BadConfig, MissingFile
from ..models import Classifier, Model, build, config_of
from ..runs import (
    CONFIG,
    PARAMETERS,
    Run,
    RunConfig,
    check_unused,
    create,
    first_process,
    parse_options,
    read_config,
    to_plain,
    write_config,
)
from ..train import Result, TrainOptions, fit
from ..train.checkpoint import has_checkpoint
from ..train.parameters import load_parameters, parameters_of
from ._base import DataOptions, Dataset, Task, find_task, load_run


@dataclass(frozen=True)
class TrainResult(Result):
    """What came of a training; with several seeds that of the best one."""

    seeds: Mapping[int, Result] = field(default_factory=dict)  # all of them
    best_seed: int = 0

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
) -> TrainResult:
    """Train a task and leave a run in `out`.

    options:        of the task; its own defaults if not given.
    train_options:  the task's `default_train` if not given.
    model:          a name, and `settings` of it. With `init_from` the model and its tokenizer are those of that run.
    from_scratch:   with `init_from`: the shape and the tokenizer of that run, and nothing that it has learned.
    resume:         continue what is in `out`; nothing but budgets may then be given otherwise than at the beginning.
    """
    kind, out = find_task(task), Path(out)
    if resume:
        config = resumed_config(out, options, train_options, model, settings, init_from)
        if config.task != kind.name:
            raise BadConfig(f"{out} is a run of the task {config.task}, not {kind.name}; resume it as that")
    else:
        config = new_config(kind, options, train_options, model, settings, init_from, from_scratch)
        if first_process():
            check_unused(out)
    return _Training(kind, config, out, init_from if isinstance(init_from, Run) else None, resume, progress).run()


def new_config(
    kind: type[Task[Any]],
    options: DataOptions | None,
    train_options: TrainOptions | None,
    model: str | None,
    settings: Mapping[str, Any] | None,
    init_from: Run[Any] | Path | str | None,
    from_scratch: bool,
) -> RunConfig:
    """What a run begins with: `settings` are those that were given, not yet those of the built model."""
    if from_scratch and init_from is None:
        raise BadConfig(
            "--from-scratch takes the shape of a run: name it with --init-from, or leave --from-scratch out and choose a --model"
        )
    return RunConfig(
        task=kind.name,
        options=to_plain(options or kind.Options()),
        model=model or kind.default_model,
        settings=dict(settings or {}),
        train=to_plain((train_options or kind.default_train).for_processes()),
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
    """The config of a run that is continued, with budgets that may be extended. Any other change is refused by name."""
    if not (out / CONFIG).exists():
        raise MissingFile(f"nothing to resume in {out}: it holds no {CONFIG}; leave --resume out to start a run")
    stored = read_config(out)
    training, free = to_plain(train_options), {*TrainOptions.BUDGETS, *TrainOptions.RESUMABLE}
    fixed = {name: value for name, value in training.items() if name not in free}
    given = _by_flag(to_plain(options), to_plain(settings), model, _folder(init_from), fixed)
    began = _by_flag(stored.options, stored.settings, stored.model, stored.init_from, stored.train)
    for name, value in given.items():
        if began.get(name) != value:
            raise BadConfig(
                f"--{name.replace('_', '-')} is {value!r}, and {out} began with {began.get(name)!r}; "
                "a resumed run may only be given larger --steps, --epochs or --minutes"
            )
    for name in TrainOptions.BUDGETS:
        new, old = training.get(name), stored.train.get(name)
        if new is not None and old is not None and new < old:
            raise BadConfig(f"--{name} {new} is below {old}, which {out} began with; a budget can only be extended")
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

    def __init__(self, kind: type[Task[Any]], config: RunConfig, out: Path, base: Run[Any] | None, resume: bool, progress: bool):
        self.task: Task[Any] = kind(parse_options(kind.Options, config.options, f"the task {kind.name}"))
        self.options = parse_options(TrainOptions, config.train, "training")
        self.config, self.out, self.resume, self.progress = config, out, resume, progress
        self.base = base

    def run(self) -> TrainResult:
        if not self.task.options.data:
            raise BadConfig(f"no data to train {self.task.name} on; name some with --data")
        raw = self.task.read()
        if self.resume:
            self.processor = self.task.load_processor(self.out)
        else:
            base = self._load_base()
            self.processor = self.task.make_processor(raw, None if base is None else base.processor)
        dataset = self.task.encode(raw, self.processor, self.out)
        if self.resume and self.config.digest not in (None, dataset.digest):
            raise BadConfig(
                f"the data are not those that {self.out} began with, so the result would not be that of one training; restore them, "
                f"or start another run with --init-from {self.out}"
            )
        self.task = self.task.settle(dataset)
        self.config = replace(self.config, digest=dataset.digest, skipped=dataset.skipped)
        if self.options.seeds:
            return self._all_seeds(dataset)
        return TrainResult(**vars(self._one_seed(dataset, self.out, self.options)), best_seed=self.options.seed)

    def _load_base(self) -> Run[Any] | None:
        if self.base is None and self.config.init_from is not None:
            self.base = load_run(self.config.init_from)
        return self.base

    def _all_seeds(self, dataset: Dataset[Any]) -> TrainResult:
        """Train with each seed, then make `out` the run of the best."""
        results: dict[int, Result] = {}
        for seed in self.options.seeds:
            results[seed] = self._one_seed(dataset, self.out / f"seed-{seed}", self.options.replace(seed=seed, seeds=()))
        sign = 1 if self.metric.higher else -1
        best = max(results, key=lambda seed: sign * results[seed].metrics[self.metric.name])
        if first_process():
            kept = read_config(self.out / f"seed-{best}")
            write_config(self.out, replace(kept, train=to_plain(self.options)))
            shutil.copyfile(self.out / f"seed-{best}" / PARAMETERS, self.out / PARAMETERS)
            found = {"best": best, "metric": self.metric.name, "seeds": {str(seed): result.metrics for seed, result in results.items()}}
            (self.out / "seeds.json").write_text(json.dumps(found, indent=2), encoding="utf-8")
        return TrainResult(**vars(results[best]), seeds=results, best_seed=best)

    def _one_seed(self, dataset: Dataset[Any], out: Path, options: TrainOptions) -> Result:
        """Train with one seed in one folder."""
        resume = self.resume and (out / CONFIG).exists()
        torch.manual_seed(options.seed)
        body = self._body(read_config(out) if resume and has_checkpoint(out / "state") else None)
        model = self.task.adapt(body, self.processor)
        if self.config.init_from is not None and not self.config.from_scratch:
            self.task.freeze(model)
        objective = self.task.objective(dataset, self.processor, model, options.seed)
        self.metric = objective.metric
        name, settings = config_of(body)
        config = replace(self.config, model=name, settings=settings, train=to_plain(options))
        if not resume:
            if out != self.out and not (self.out / CONFIG).exists():  # the first of several seeds
                create(self.out, self.config, self.processor)
            create(out, config, self.processor)
        elif first_process():
            write_config(out, config)
        steps = -(-len(objective.batches(0)) // options.accumulate) if options.needs_steps else None
        return fit(model, objective, options.to_config(steps), out, resume=resume, progress=self.progress)

    def _body(self, stored: RunConfig | None) -> Model:
        """The model before it is adapted to the task: as stored if a checkpoint has its parameters, of the run to initialise from, or by name."""
        if stored is not None:
            return build(stored.model, stored.settings)
        if (base := self._load_base()) is None:
            return build(self.config.model, {**self.task.model_settings(self.config.model, self.processor), **self.config.settings})
        body = base.model.body if isinstance(base.model, Classifier) else base.model
        copy = build(*config_of(body))  # drawn anew also if it is filled: so what is added to it is the same with and without pretraining
        if not self.config.from_scratch:
            load_parameters(copy, parameters_of(body))
        return copy
