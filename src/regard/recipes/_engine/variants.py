"""Variants that train a task of `regard.tasks`, translation or language modelling, and what trained and timed variants share.

The text of language models is CPython's documentation with every paragraph kept once: topics quote each other, and almost half of any
held-out topic would otherwise be in the training data.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ... import tasks
from ...data import Texts, TokenizedText
from ...data.lm_batches import gather
from ...decode import Beam
from ...errors import NotSupported
from ...metrics.bleu import score_translations
from ...models import LanguageModel, Translator
from ...runs import Run
from ...train import Result, TrainOptions, read_metrics
from ...train.checkpoint import load_latest
from ...train.parameters import Ring, load_parameters
from .claims import Proportion
from .parts import unwatched

SHARES_OF_ITEMS = ("accuracy", "exact_match")


def short_training(
    steps: int, lr: float, optimizer: Literal["muon", "adamw"] = "muon", *, evaluations: int = 5, weight_decay: float | None = None
) -> TrainOptions:
    """A warm-up over a tenth of the steps, then half a cosine down to zero. Muon by default, because it needs the fewest steps."""
    every = max(1, steps // evaluations)
    return TrainOptions(
        steps=steps,
        optimizer=optimizer,
        lr=lr,
        schedule="cosine",
        warmup_steps=None,
        weight_decay=weight_decay,
        average=0,
        log_every=every,
        evaluate_every=every,
        save_every=steps,
    )


def train_run(
    task: type[tasks.Task[Any]], options: tasks.DataOptions, train: TrainOptions, out: Path, **model: Any
) -> tuple[Run[Any], dict[str, float]]:
    """Train a task in `out`, with `model` and `settings` as `tasks.train` takes them; the run, and the metrics of the training."""
    result = tasks.train(task, options, train, out, **model, progress=False)
    run = tasks.load_run(out)
    return run, training_metrics(result, run.model, out, "loss")


def metrics_of_test(run: Run[Any]) -> Mapping[str, float]:
    """Metrics on the test part."""
    return tasks.evaluate(run).metrics


def as_proportions(metrics: Mapping[str, float], items: int) -> dict[str, float]:
    """Metrics, of which those that are shares of the test items know their number."""
    plain = {name for name, value in metrics.items() if name in SHARES_OF_ITEMS and not isinstance(value, Proportion)}
    return {name: Proportion(value, items) if name in plain else value for name, value in metrics.items()}


@dataclass(frozen=True, kw_only=True)
class TaskVariant:
    """A model trained on a task from scratch, then evaluated: on the test part if `evaluate` is not given."""

    task: type[tasks.Task[Any]]
    options: tasks.DataOptions
    train: TrainOptions
    model: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    evaluate: Callable[[Run[Any]], Mapping[str, float]] = metrics_of_test

    def data(self, out: Path) -> tasks.DataOptions:
        """Options of the task; files that they name may be written to `out`."""
        return self.options

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        run, training = train_run(self.task, self.data(out), self.train.replace(seed=seed), out, model=self.model, settings=self.settings)
        items = len(tasks.task_of(run).test_data(run, None))
        return {**as_proportions(self.evaluate(run), items), **training}


@dataclass(frozen=True, kw_only=True)
class BaselineVariant:
    """A baseline of a task (`Task.baselines`), fitted to the training part and measured on the test part. It has no seed.

    Args:
        task: class of the task.
        options: its options.
        name: name of the baseline.
    """

    task: type[tasks.Task[Any]]
    options: tasks.DataOptions
    name: str

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        task = self.task(self.options)
        raw = task.read()
        task.processor = task.make_processor(raw, None)
        data = task.prepare(raw, out)
        return as_proportions(task.baselines(data.train, data.test)[self.name], len(data.test))


def training_metrics(result: Result, model: nn.Module, out: Path, validation: str) -> dict[str, float]:
    """Cost of a training and size of its model, and the metric `validation` at each evaluation."""
    curve = {f"validation {validation}, step {event['step']}": event[validation] for event in read_metrics(out, "evaluation")}
    parameters = sum(p.numel() for p in model.parameters())
    tuned_by = result.metrics["objective" if "objective" in result.metrics else "loss"]
    return {
        "steps": float(result.steps),
        "seconds": result.seconds,
        "parameters": float(parameters),
        "validation_loss": tuned_by,
        **curve,
    }


# -- timing ------------------------------------------------------------------------------------------------------------


@contextmanager
def one_thread() -> Iterator[None]:
    """On a busy machine, threads waiting for each other would be measured instead of the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def milliseconds(call: Callable[[], object], repeats: int) -> float:
    """CPU time of the fastest of `repeats` calls after a warm-up, without gradients, on one thread; other processes do not count."""
    with torch.inference_mode(), one_thread(), unwatched():
        call()
        seconds = []
        for _ in range(repeats):
            start = time.thread_time()
            call()
            seconds.append(time.thread_time() - start)
    return min(seconds) * 1e3


# -- language models ---------------------------------------------------------------------------------------------------


def topics() -> dict[str, list[str]]:
    """The paragraphs of each topic of the documentation by its title, each paragraph in the first topic that has it."""
    seen: set[str] = set()
    found: dict[str, list[str]] = {}
    for piece in Texts("python-docs", shares=(0.0, 0.0)).pieces():
        own = [part for part in dict.fromkeys(piece.text.split("\n\n")) if part not in seen]
        seen.update(own)
        found.setdefault(piece.text.partition("\n")[0], []).extend(own)
    return {title: paragraphs for title, paragraphs in found.items() if paragraphs}


def write_documentation(path: Path, without: Set[str] = frozenset()) -> Path:
    """Write the topics as JSON lines, `without` some paragraphs."""
    texts = ["\n\n".join(part for part in paragraphs if part not in without) for paragraphs in topics().values()]
    return write_jsonl(path, [{"text": text} for text in texts if text.strip()])


def write_jsonl(path: Path, objects: Iterable[Mapping[str, str]]) -> Path:
    """Write one JSON object per line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in objects), encoding="utf-8")
    return path


@torch.no_grad()
def loss_by_context(model: LanguageModel, tokens: TokenizedText, length: int) -> dict[str, float]:
    """Loss per token (nats) by the number of tokens read, over windows of exactly `length` tokens that do not overlap."""
    pairs = zip(tokens.starts.tolist(), tokens.ends.tolist(), strict=True)
    span_B2 = np.array([(at, at + length) for begin, end in pairs for at in range(begin, end - length, length)], dtype=np.int64)
    loss_L = torch.zeros(length)
    for some in np.array_split(span_B2.reshape(-1, 2), max(1, len(span_B2) // 16)):
        batch = gather(tokens, some, apart=False)
        loss_L += F.cross_entropy(model(batch.ids_BL).flatten(0, 1), batch.wanted_BL.flatten(), reduction="none").view(-1, length).sum(0)
    edges = [0, *(2**n for n in range(length.bit_length())), length]
    return {
        f"loss by context, {low + 1} to {high}": float(loss_L[low:high].mean()) / len(span_B2)
        for low, high in pairwise(edges)
        if low < high
    }


def loss_and_contexts(run: Run[Any]) -> dict[str, float]:
    task = tasks.task_of(run)
    return {**tasks.evaluate(run).metrics, **loss_by_context(run.model, task.test_data(run, None), task.options.context_length)}


@dataclass(frozen=True, kw_only=True)
class TextVariant(TaskVariant):
    """A language model trained on the documentation. Loss on the test topics: in all, and by the number of tokens before."""

    task: type[tasks.Task[Any]] = tasks.Language
    evaluate: Callable[[Run[Any]], Mapping[str, float]] = loss_and_contexts

    def data(self, out: Path) -> tasks.DataOptions:
        return replace(self.options, data=str(write_documentation(out / "text.jsonl")))


@dataclass(frozen=True, kw_only=True)
class TextBaseline(BaselineVariant):
    """A baseline of language models on the documentation."""

    task: type[tasks.Task[Any]] = tasks.Language

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        options = replace(self.options, data=str(write_documentation(out / "text.jsonl")))
        return BaselineVariant(task=self.task, options=options, name=self.name)(seed, out)


# -- translators -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TranslationMetrics:
    """Metrics of the translator in `out` on at most `pairs` pairs of `test`, or of the test part of its own data."""

    test: str | tuple[str, ...] | None = None
    pairs: int = 500
    beam: int = 1
    parameters: Literal["best", "last", "average"] = "best"  # on validation; of the last step; the mean that TrainOptions.average keeps
    step: int = 6  # source words per length group

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        run = tasks.load_run(out, Translator)
        if self.parameters != "best":
            _load_parameters(run, self.parameters)
        task = tasks.task_of(run) if self.test is None else tasks.Translation(tasks.TranslationOptions(data=self.test))
        pairs = task.read().test[: self.pairs]
        sources, references = [s for s, _ in pairs], [t for _, t in pairs]
        answers = tasks.translations(run, sources, Beam(size=self.beam))
        found = score_translations([text for text, _ in answers], references, sources, self.step)
        loss, accuracy = tasks.likelihood(run, pairs)
        return {
            "exact_match": Proportion(found.exact_match, len(pairs)),
            "accuracy": accuracy,
            "loss": loss,
            "chrf": found.chrf,
            "bleu": found.bleu,
            "log_probability": sum(hypotheses[0].log_prob for _, hypotheses in answers) / len(answers),
            **{f"bleu, {length} words": bleu for length, (_, bleu, _) in found.by_length.items()},
            **{f"exact_match, {length} words": Proportion(exact, count) for length, (count, _, exact) in found.by_length.items()},
        }


@dataclass(frozen=True, kw_only=True)
class TranslationVariant:
    """A translator trained from scratch, then evaluated."""

    options: tasks.TranslationOptions
    train: TrainOptions
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    evaluate: TranslationMetrics = field(default_factory=TranslationMetrics)

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        _, training = train_run(
            tasks.Translation, self.options, self.train.replace(seed=seed), out, model=self.model, settings=self.settings
        )
        return {**self.evaluate(seed, out), **training}


def _load_parameters(run: Run[Translator], which: str) -> None:
    """Replace the best parameters by others of the last checkpoint."""
    found = load_latest(run.folder / "state")
    size = int(run.config.train["average"])
    if found is None or (which == "average" and size < 2):
        raise NotSupported(
            f"{run.folder} holds no {which} parameters; train with TrainOptions(average=N) to keep the mean of N evaluations"
        )
    if which == "last":
        load_parameters(run.model, found.tensors.get("ema") or found.tensors["model"], str(run.folder))
        return
    ring = Ring(size)
    ring.fill(found.tensors["ring"])
    load_parameters(run.model, ring.mean(), str(run.folder))
