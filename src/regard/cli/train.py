"""`regard train TASK`: the options of the task, of the training and of the model, each declared once, in the dataclasses the library takes."""

from __future__ import annotations

import argparse
import inspect
import os
import shlex
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_type_hints

from tyro.conf import Suppress, UseAppendAction

from ..errors import BadConfig, NotSupported, count
from ..processes import first_process, started_together
from ..run_config import RunConfig, parse_options, read_config_file, to_plain
from ..tasks import Declaration, declarations, find_declaration
from ..train.options import TrainOptions
from ._command import Command, format_settings, parse, parse_settings, print_table
from ._help import SETTING_SYNONYMS

if TYPE_CHECKING:
    from ..tasks import TrainResult

TaskOptions = TypeVar("TaskOptions")
PLANNED = (1.0, 2.0, 5.0, 15.0, 45.0)  # minutes that --plan shows


@dataclass(frozen=True, kw_only=True)
class Train(Command, Generic[TaskOptions]):
    """Train a model on your data.

    `regard train TASK --help` lists the options of a task.

    As in:  regard train language --out runs/python --minutes 5
            regard train translation --data numbers:en-de --out runs/numbers --minutes 2
    """

    task_name: Suppress[str] = ""
    given: Suppress[tuple[str, ...]] = ()  # names of the options on the command line and in --config
    out: Path | None = None
    """Run directory."""
    model: str = ""
    """Name from `regard list models`, or a published size, as in gpt2-small."""
    attention: str = ""
    """Mechanism of the self-attention layers: linear, local(radius=64), or one per layer in turn: softmax,local. With --init-from it replaces that of the run."""
    set: UseAppendAction[tuple[str, ...]] = ()
    """Setting of the model, as in --set width=128; may be repeated. `regard show MODEL` lists them."""
    init_from: Path | None = None
    """Run or transformers directory to start from: its model and its tokenizer."""
    from_scratch: bool = False
    """With --init-from: use only the architecture and the tokenizer of that run, with new parameters."""
    config: Path | None = None
    """File with the options, as --print-config prints them (or a config.json); options on the command line take precedence."""
    print_config: bool = False
    """Print all options, those that are chosen for the data and the budget among them, as a file for --config and exit."""
    plan: bool = False
    """Print what several budgets would get: model, options and the expected result; train nothing."""
    resume: bool = False
    """Continue the run in --out; all options come from it, and only --steps, --epochs and --minutes may be larger. --resume auto starts it if there is none, so that the same command can be run again, as by torchrun and Slurm."""
    nproc_per_node: int = 1
    """Processes on this machine; torchrun … -m regard train … works too."""
    quiet: bool = False
    """Plain lines instead of a progress bar."""
    task: TaskOptions
    train: TrainOptions = field(default_factory=TrainOptions)

    @classmethod
    def main(cls, arguments: Sequence[str]) -> None:
        arguments = _resumable(arguments)
        early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        early.add_argument("--config", type=Path)
        early.add_argument("--out", type=Path)
        early.add_argument("--model", default="")
        early.add_argument("--resume", action="store_true")
        known, _ = early.parse_known_args(list(arguments))
        named = bool(arguments) and not arguments[0].startswith("-")
        given = read_config_file(known.config) if known.config else None
        if known.resume and known.out is not None:
            from ..tasks import resumed_config

            given = resumed_config(known.out)
        if not named and given is None:
            raise BadConfig(f"expected a task before {arguments[0]}: {', '.join(declarations())}; see regard train --help")
        task = find_declaration(arguments[0] if named or given is None else given.task)
        if given is not None and given.task != task.name:
            raise BadConfig(f"{known.out if known.resume else known.config} is of the task {given.task}, not {task.name}")
        command = parse(
            cls[task.Options],  # type: ignore[index]
            arguments[1:] if named else arguments,
            f"regard train {task.name}",
            description=inspect.getdoc(task),
            default=train_defaults(cls, task, given, known.model),
        )
        names = _given(arguments, None if known.resume else given)
        replace(command, given=names, train=command.train if known.resume else _with_budget(command.train, names)).run()

    def run(self) -> None:
        from ..tasks import find_task, new_config, train, turn_dial
        from ..train import launch

        task, settings = find_task(self.task_name), parse_settings(self.set)
        if self.init_from is None and not self.resume:  # else the model is that of a run
            _check_settings(self.model, self.set)
        if self.attention:
            settings["attention_overrides"] = (("*", self.attention),)
        options: Any = self.task
        base: Any = self.init_from
        given = {*self.given, *settings}
        if self.print_config or self.plan:
            config = new_config(task, options, self.train, self.model, settings, base, self.from_scratch)
            if self.plan:
                self._print_plan(config, given)
            else:
                print(turn_dial(config, given).to_toml(), end="")
            return
        if self.out is None:
            raise BadConfig("no run directory was given; name one with --out")
        if self.nproc_per_node > 1 and not started_together():
            sys.exit(launch(self.nproc_per_node, ["-m", "regard", *sys.argv[1:]]))
        from ..machine import keep_memory

        keep_memory()
        options_of_training = self._with_threads()
        if base is not None and not self.resume:
            from .. import load_run

            base = load_run(base)
        result = train(
            task,
            options,
            options_of_training,
            self.out,
            model=self.model,
            settings=settings,
            init_from=base,
            from_scratch=self.from_scratch,
            resume=self.resume,
            progress=not self.quiet,
            given=given,
        )
        if first_process():
            self._report(task, result)

    def _with_threads(self) -> TrainOptions:
        """The options with the number of threads that is used: chosen once, so that a resumed run computes the same."""
        if started_together() or (not self.train.threads and "OMP_NUM_THREADS" in os.environ):
            return self.train
        import torch

        from ..machine import free_threads

        free, cores = free_threads()
        threads = self.train.threads or free
        torch.set_num_threads(threads)
        if threads < cores and not self.train.threads:
            busy = cores - threads
            print(f"{threads} of {cores} cores: {busy} {'is' if busy == 1 else 'are'} busy; --threads {cores} uses all", file=sys.stderr)
        return self.train.replace(threads=threads)

    def _print_plan(self, config: RunConfig, given: Collection[str]) -> None:
        """A row per budget."""
        from ..tasks import plan

        minutes = sorted({*PLANNED, *([self.train.minutes] if self.train.minutes else [])})
        rows = [(f"{one:g}", choice.expected, choice.words) for one, choice in plan(config, given, minutes).items()]
        if not rows:
            raise NotSupported(f"no tuning run of {self.task_name} has had such data or such a model, so nothing is known of its budgets")
        print_table(("minutes", "expected on validation", "model and options"), rows)

    def _report(self, task: Any, result: TrainResult) -> None:
        if result.seeds:
            for name in result.metrics:
                mean, low, high = result.spread(name)
                spread = f" ({low:.4f} to {high:.4f} over {len(result.seeds)} seeds)" if len(result.seeds) > 1 else ""
                print(f"{name:10} {mean:.4f}{spread}, on validation")
            print(f"Best seed, which is kept: {result.best_seed}")
        else:
            figures = ", ".join(f"{name} {value:.4g}" for name, value in result.metrics.items())
            print(f"{count(result.steps, 'step')}, {result.seconds:.0f} s; on validation: {figures}")
        if better := result.below():
            print(f"Below the baseline ({better}): give it more --minutes or more data, or start from a pretrained model with --init-from")
        print(f"Next:  {task.next_commands.format(out=shlex.quote(str(self.out)))}")


def _check_settings(model: str, given: Sequence[str]) -> None:
    """Refuse a setting that the model does not have, or a value that does not fit, as it was typed."""
    from ..bounds import words_for_type
    from ..models import find_model
    from ..models.model import as_setting

    kind = find_model(model).Config
    hints = get_type_hints(kind, include_extras=True)
    names = [field.name for field in fields(kind)]
    for text, (name, value) in zip(given, ((name, value) for one in given for name, value in parse_settings([one]).items()), strict=True):
        if (better := SETTING_SYNONYMS.get(name)) in names and name not in names:
            raise BadConfig(f"--set {text}: {model} calls it {better}; write --set {better}={text.partition('=')[2]}")
        if name not in names:
            continue  # `build` names those that there are
        try:
            as_setting(model, name, value, hints[name])
        except BadConfig as wrong:
            raise BadConfig(f"--set {text}: expected {words_for_type(hints[name])}; regard show {model} explains the settings") from wrong


def _resumable(arguments: Sequence[str]) -> list[str]:
    """Arguments with --resume auto replaced: by --resume where a run has begun in --out, by nothing where none has."""
    found = list(arguments)
    for n, word in enumerate(found):
        if word == "--resume=auto" or found[n : n + 2] == ["--resume", "auto"]:
            parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
            parser.add_argument("--out", type=Path)
            out = parser.parse_known_args(found)[0].out
            begun = out is not None and (out / "config.json").exists()
            return [*found[:n], *(["--resume"] if begun else []), *found[n + (1 if "=" in word else 2) :]]
    return found


def train_defaults(kind: type[Train[Any]], task: type[Declaration], given: RunConfig | None, model: str = "") -> Train[Any]:
    """Default options: from the run to resume, else the config file, else the task and model."""
    suitable = _suitable(task, model or (given.model if given is not None else "") or task.default_model).replace(device="auto")
    if given is None:
        return kind(task_name=task.name, model=task.default_model, task=task.Options(), train=suitable)
    where = f"the task {task.name}"
    return kind(
        task_name=task.name,
        model=given.model or task.default_model,
        set=format_settings(given.settings),
        init_from=None if given.init_from is None else Path(given.init_from),
        from_scratch=given.from_scratch,
        task=parse_options(task.Options, to_plain(task.Options()) | given.options, where),
        train=parse_options(TrainOptions, to_plain(suitable) | given.train, "training"),
    )


def _given(arguments: Sequence[str], config: RunConfig | None) -> tuple[str, ...]:
    """Names of the options on the command line and in a config file."""
    named = [one.partition("=")[0][2:].replace("-", "_").removeprefix("no_") for one in arguments if one.startswith("--")]
    if "attention" in named:
        named.append("attention_overrides")
    return tuple(dict.fromkeys([*named, *({} if config is None else {**config.options, **config.train, "model": config.model})]))


def _with_budget(options: TrainOptions, given: Collection[str]) -> TrainOptions:
    """Training options without the usual budget of the task, where the user has given another: --minutes 5 is not cut short by 6 epochs."""
    mine = {name for name in TrainOptions.BUDGETS if name in given}
    return options.replace(**{name: None for name in TrainOptions.BUDGETS if name not in mine}) if mine else options


def _suitable(task: type[Declaration], model: str) -> TrainOptions:
    """Training options that suit the task, and the model if it is not the usual one, which PyTorch must then be imported for."""
    if model == task.default_model:
        return task.default_train
    from ..tasks import find_task

    return find_task(task.name).train_defaults(model)
