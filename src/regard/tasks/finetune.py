"""Fine-tuning: a model that has read much learns from few examples what a text is, how two texts relate, or what each word is.

    BOS text EOS                 a label of the text
    BOS text EOS text EOS        of the pair; an encoder is told which half is which
    BOS word word word EOS       a label a word: at its first token if the model reads from both sides, else at its last

The lower half of the layers stays as it is, learning slows down from the top layer to the bottom (`train.layerwise`), each of
several seeds stops when validation gets no better, and the best seed is kept beside what all of them reached: one run of a few hundred
examples says little (Dodge et al. 2020, arXiv:2002.06305). The ablation is the same model without what it has learned (`scratch`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data import Ragged, Tokenizer, Tokenizers
from ..data.corpus import Numbers
from ..data.frames import Frame
from ..data.labels import Examples, Labelled, Tagged, read_labelled, read_tagged
from ..data.splits import SHARES
from ..errors import BadConfig, NotSupported
from ..models import Labeller, LanguageModel, Model, TextEncoder, build, config_of
from ..train import AdamW, Budget, Linear, Loss, Metric, OptimizerConfig, Result, TrainConfig, depths, fit, layerwise
from .run import Run, unused, write_config

Task = Literal["classify", "label"]
OUTSIDE = "O"  # the label of words that are nothing in particular


@dataclass(frozen=True, kw_only=True)
class LabelConfig:
    """Which examples, which model to begin with, and how much of it may change."""

    data: str
    valid: str | None = None
    test: str | None = None
    fields: tuple[str, ...] = ()
    bad: Literal["stop", "skip"] = "stop"
    task: Task = "classify"  # texts and pairs, or "label": each word
    base: str | None = None  # the run to begin with; None: a new model
    scratch: bool = False  # a model like that of `base`, with its vocabulary and nothing else of it
    frozen: float = 0.5  # this share of the layers, from below, does not change, nor do embeddings
    decay: float = 0.9  # of the learning rate from one layer to the one below it
    tokens: Literal["bpe", "words", "characters", "bytes"] = "bpe"  # of a new model
    vocab: int = 4000
    length: int = 128  # tokens of an example, at most
    batch: int = 32  # examples
    metric: str = ""  # which figure of the validation set decides; accuracy, or f1_tokens of word labels

    def __post_init__(self) -> None:
        if not 0 <= self.frozen < 1 or not 0 < self.decay <= 1 or self.batch < 1 or self.length < 8:
            raise BadConfig(
                f"frozen={self.frozen}, decay={self.decay}, batch={self.batch}, length={self.length}; expected a share below 1, "
                "a share above 0, at least 1 and at least 8"
            )
        if self.task not in ("classify", "label") or (self.metric and self.metric not in METRICS):
            raise BadConfig(f"task={self.task!r}, metric={self.metric!r}; expected classify or label, and one of {', '.join(METRICS)}")

    def read(self, shares: tuple[float, float] = SHARES) -> Examples[Any]:
        read: Any = read_tagged if self.task == "label" else read_labelled
        found: Examples[Any] = read(self.data, valid=self.valid, test=self.test, fields=self.fields, bad=self.bad, shares=shares)
        return found


# -- examples as numbers -----------------------------------------------------------------------------------------------


_Row = tuple[list[int], int, list[int], list[int]]  # ids, tokens of the first text, places, labels


@dataclass(frozen=True)
class Shown:
    """Examples as token ids, with the places where labels are asked for (none: of the whole) and the numbers of these labels."""

    ids: Ragged
    first_E: Numbers  # tokens of the first text, its BOS and EOS included
    places: Ragged
    labels: Ragged

    def __len__(self) -> int:
        return len(self.ids)


@dataclass
class LabelBatch:
    ids_BL: Tensor
    n_B: Tensor
    kind_BL: Tensor
    at_T: Tensor  # rows, or places in the flattened rows
    label_T: Tensor

    def __len__(self) -> int:
        return len(self.ids_BL)


def shown(examples: Sequence[Labelled] | Sequence[Tagged], tokenizer: Tokenizer, labels: Sequence[str], length: int, last: bool) -> Shown:
    """Examples in at most `length` tokens. Long texts lose their end, of a pair the longer one first; long sentences are cut between words.

    Word labels are asked at the `last` token of a word, or at its first. A label that is not known is an error.
    """
    number, frame = {label: n for n, label in enumerate(labels)}, Frame.of(tokenizer)
    rows: list[_Row] = []

    def known(label: str) -> int:
        if label not in number:
            raise NotSupported(
                f"the label {label!r} does not occur among the training examples, whose labels are {', '.join(map(repr, labels))[:200]}; "
                "give it some to learn from, or leave out what has it"
            )
        return number[label]

    for one in examples:
        if isinstance(one, Tagged):
            rows += _by_words(*tokenizer.encode_words(one.words), [known(label) for label in one.labels], length, last, frame)
            continue
        texts = _shortened(tokenizer.encode_all(list(one.texts)), length - len(one.texts) - 1)
        rows.append(([frame.begin, *(i for text in texts for i in (*text, frame.end))], len(texts[0]) + 2, [], [known(one.label)]))
    ids_, first, places, numbers = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Shown(Ragged.of(ids_), np.array(first, dtype=np.int64), Ragged.of(places), Ragged.of(numbers))


def _shortened(texts: list[list[int]], room: int) -> list[list[int]]:
    """At most `room` tokens in all: the longest gives up its end."""
    while (over := sum(map(len, texts)) - room) > 0:
        longest = max(texts, key=len)
        other = max((len(text) for text in texts if text is not longest), default=0)
        del longest[max(len(longest) - over, min(other, len(longest) - 1)) :]
    return texts


def _by_words(ids: list[int], words: list[int], labels: list[int], length: int, last: bool, frame: Frame) -> list[_Row]:
    """The sentence in rows of whole words, each with the places of its labels. Of a word longer than a row the end is lost."""
    rows: list[_Row] = []
    room, begin, done = length - 2, 0, -1  # words up to `done` have been asked
    while begin < len(ids):
        end = min(begin + room, len(ids))
        while end < len(ids) and end > begin and words[end] == words[end - 1] >= 0:
            end -= 1
        end = end if end > begin else min(begin + room, len(ids))  # a word longer than a row
        places: dict[int, int] = {}
        for place in range(begin, end):
            if words[place] > done and (last or words[place] not in places):
                places[words[place]] = place - begin + 1
        rows.append(([frame.begin, *ids[begin:end], frame.end], end - begin + 2, list(places.values()), [labels[word] for word in places]))
        begin, done = end, max(done, *places, -1)
    return rows


def collate(some: Shown, index: Numbers) -> LabelBatch:
    ids_BL, n_B = some.ids.padded(index)
    kind_BL = (torch.arange(ids_BL.shape[1]) >= torch.from_numpy(some.first_E[index])[:, None]) & (
        torch.arange(ids_BL.shape[1]) < n_B[:, None]
    )
    at = [row * ids_BL.shape[1] + int(place) for row, one in enumerate(index) for place in some.places[one]]
    label_T = torch.from_numpy(np.concatenate([some.labels[one] for one in index]).astype(np.int64))
    return LabelBatch(
        ids_BL, n_B, kind_BL.long(), torch.tensor(at, dtype=torch.long) if len(some.places.values) else torch.arange(len(index)), label_T
    )


# -- how good ----------------------------------------------------------------------------------------------------------

METRICS = ("accuracy", "f1", "matthews", "f1_tokens")


def figures(confusion_NN: Numbers, labels: Sequence[str]) -> dict[str, float]:
    """Of counts (right label, label found): accuracy; F1, the mean over labels; Matthews' correlation; F1 of all labels but "O" together."""
    right, found, both = confusion_NN.sum(1).astype(float), confusion_NN.sum(0).astype(float), np.diag(confusion_NN).astype(float)
    total = right.sum()
    there = right + found > 0
    spread = (total**2 - (found**2).sum()) * (total**2 - (right**2).sum())
    inside = np.array([label != OUTSIDE for label in labels])
    return {
        "accuracy": float(both.sum() / total),
        "f1": float((2 * both[there] / (right + found)[there]).mean()),
        "matthews": float((both.sum() * total - (found * right).sum()) / spread**0.5) if spread > 0 else 0.0,
        "f1_tokens": float(2 * both[inside].sum() / max((right + found)[inside].sum(), 1.0)),
    }


@torch.no_grad()
def confusion(model: Labeller, some: Shown, count: int, batch: int = 32) -> tuple[Numbers, float]:
    """Counts (right label, label found), and nats a label."""
    counts, nats = np.zeros((count, count), dtype=np.int64), 0.0
    order = np.argsort(-some.ids.lengths, kind="stable")
    for at in range(0, len(order), batch):
        one = collate(some, order[at : at + batch])
        logits_TN = _logits(model, one)
        nats += float(F.cross_entropy(logits_TN, one.label_T, reduction="sum"))
        np.add.at(counts, (one.label_T.numpy(), logits_TN.argmax(1).numpy()), 1)
    return counts, nats / max(int(counts.sum()), 1)


def _logits(model: Labeller, batch: LabelBatch) -> Tensor:
    return model(batch.ids_BL, batch.n_B, batch.kind_BL).flatten(0, -2)[batch.at_T]  # type: ignore[no-any-return]


# -- training ----------------------------------------------------------------------------------------------------------


class LabelTask:
    """What the training loop asks."""

    def __init__(self, train: Shown, valid: Shown, labels: Sequence[str], config: LabelConfig, seed: int = 0):
        self.train, self.valid, self.labels, self.config, self.seed = train, valid, labels, config, seed
        self.metric = Metric(config.metric or ("f1_tokens" if config.task == "label" else "accuracy"), higher=True)

    def batches(self, epoch: int) -> Sequence[Any]:
        """Examples of like length together: pools of a random order are sorted, and their batches shuffled."""
        generator, size = np.random.default_rng([self.seed, epoch]), self.config.batch
        order = generator.permutation(len(self.train))
        pools = [order[at : at + 32 * size] for at in range(0, len(order), 32 * size)]
        by_length = np.concatenate([pool[np.argsort(self.train.ids.lengths[pool], kind="stable")] for pool in pools])
        batches = [by_length[at : at + size] for at in range(0, len(by_length), size)]
        return [batches[n] for n in generator.permutation(len(batches))]

    def batch(self, item: Any) -> LabelBatch:
        return collate(self.train, item)

    def loss(self, model: nn.Module, batch: LabelBatch) -> Loss:
        assert isinstance(model, Labeller)
        logits_TN = _logits(model, batch)
        right = float((logits_TN.argmax(1) == batch.label_T).sum())
        return Loss(F.cross_entropy(logits_TN, batch.label_T, reduction="sum"), len(batch.label_T), {"right": right})

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        assert isinstance(model, Labeller)
        counts, nats = confusion(model, self.valid, len(self.labels), self.config.batch)
        return {"nats": nats, **figures(counts, self.labels)}

    def rates(self, model: nn.Module) -> Mapping[str, float]:
        return layerwise(model, self.config.decay)


def freeze(model: Labeller, share: float) -> int:
    """Embeddings and the lower `share` of the layers stop learning; how many parameters that is."""
    depth = depths(model)
    layers = max(depth.values()) - 1  # the output is above them
    kept = 0
    for name, parameter in model.named_parameters():
        if share > 0 and depth[name] <= share * layers:
            parameter.requires_grad_(False)
            kept += parameter.numel()
    return kept


@dataclass(frozen=True)
class Tuned:
    """What all seeds reached on validation, and which one was kept."""

    results: dict[int, Result]
    best: int
    labels: tuple[str, ...]

    def spread(self, name: str) -> tuple[float, float, float]:
        """Mean, least and greatest of a figure over the seeds."""
        found = [result.metrics[name] for result in self.results.values()]
        return sum(found) / len(found), min(found), max(found)


def train_labels(
    out: Path,
    config: LabelConfig,
    model: str = "bert",
    settings: Mapping[str, Any] | None = None,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    epochs: int = 6,
    patience: int = 2,
    lr: float = 5e-4,
    optimizer: OptimizerConfig | None = None,
    resume: bool = False,
    progress: bool = True,
) -> Tuned:
    """Read the examples, fine-tune with each seed in a folder of its own, and make `out` the run of the best.

    With `config.base` the model is that run's, and `model` and `settings` are not looked at.
    """
    if not seeds:
        raise BadConfig("no seed given; one is the least")
    out, examples = Path(out), config.read()
    if not examples.train or not examples.valid:
        raise NotSupported(f"{config.data}: {examples}; training needs examples in both")
    labels = tuple(sorted({label for one in examples.train for label in (one.labels if isinstance(one, Tagged) else (one.label,))}))
    if len(labels) < 2:
        raise NotSupported(f"{config.data}: all examples are {labels[0]!r}; there is nothing to tell apart")
    base: Run[Model] | None = Run.load(config.base) if config.base else None
    tokenizer = base.tokenizer if base else _vocabulary(examples, config)
    results: dict[int, Result] = {}
    for folder in () if resume else (out, *(out / f"seed-{seed}" for seed in seeds)):
        unused(folder)
    for seed in seeds:
        torch.manual_seed(seed)
        body = _body(base, config, tokenizer, model, settings)
        length = min(config.length, body.config.length)
        made = Labeller(body, len(labels), each=config.task == "label")
        if base and not config.scratch:
            freeze(made, config.frozen)
        train, valid = (
            shown(part, tokenizer, labels, length, isinstance(body, LanguageModel)) for part in (examples.train, examples.valid)
        )
        steps = epochs * -(-len(train) // config.batch)
        how = TrainConfig(
            budget=Budget(epochs=epochs),
            optimizer=optimizer or AdamW(),
            schedule=Linear(peak=lr, warmup=steps // 10, steps=steps),
            patience=patience,
            seed=seed,
        )
        folder = out / f"seed-{seed}"
        about = asdict(config) | {"labels": list(labels), "skipped": str(examples.skipped) if len(examples.skipped) else ""}
        write_config(folder, config.task, about, config_of(body), how.to_json())
        Tokenizers(tokenizer).save(folder / "tokenizer.json")
        results[seed] = fit(made, LabelTask(train, valid, labels, config, seed), how, folder, resume=resume, progress=progress)
    name = config.metric or ("f1_tokens" if config.task == "label" else "accuracy")
    best = max(results, key=lambda seed: results[seed].metrics[name])
    for file in ("config.json", "tokenizer.json", "model.safetensors"):
        shutil.copyfile(out / f"seed-{best}" / file, out / file)
    found = {"best": best, "metric": name, "seeds": {str(seed): result.metrics for seed, result in results.items()}}
    (out / "seeds.json").write_text(json.dumps(found, indent=2), encoding="utf-8")
    return Tuned(results, best, labels)


def _vocabulary(examples: Examples[Any], config: LabelConfig) -> Tokenizer:
    texts = (text for one in examples.train for text in ((" ".join(one.words),) if isinstance(one, Tagged) else one.texts))
    return Tokenizer.train(texts, config.tokens, config.vocab)


def _body(
    base: Run[Model] | None, config: LabelConfig, tokenizer: Tokenizer, model: str, settings: Mapping[str, Any] | None
) -> LanguageModel | TextEncoder:
    if base is None:
        body: Model = build(model, {"vocab": len(tokenizer), "length": config.length, **(settings or {})})
    elif config.scratch:
        body = build(base.config["model"]["name"], base.config["model"]["config"])
    else:
        # read again for every seed: the one before has changed it
        loaded = Run.load(base.folder).model
        body = loaded.body if isinstance(loaded, Labeller) else loaded
    if not isinstance(body, LanguageModel | TextEncoder):
        raise NotSupported(
            f"{type(body).__name__} reads no single text; begin with a run of `regard train masked` or `regard train language`"
        )
    return body


# -- use ---------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def probabilities(run: Run[Labeller], texts: Sequence[tuple[str, ...]], batch: int = 32) -> Tensor:
    """p_EN of every label for each text or pair."""
    if run.task != "classify":
        raise NotSupported(f"{run.folder}: a run of the task {run.task}; to classify texts takes one of `regard train classify`")
    some = _unlabelled(run, [Labelled(tuple(one), run.labels[0]) for one in texts])
    parts = [_logits(run.model, collate(some, np.arange(at, min(at + batch, len(some))))).softmax(-1) for at in range(0, len(some), batch)]
    return torch.cat(parts) if parts else torch.zeros(0, len(run.labels))


@torch.no_grad()
def tagged(run: Run[Labeller], sentences: Sequence[Sequence[str]], batch: int = 32) -> list[list[tuple[str, float]]]:
    """A label and its probability for each word of each sentence. A word that the tokenizer makes nothing of is nothing in particular."""
    if run.task != "label":
        raise NotSupported(f"{run.folder}: a run of the task {run.task}; to label words takes one of `regard train label`")
    answers = []
    for words in sentences:
        some = _unlabelled(run, [Tagged(tuple(words), (run.labels[0],) * len(words))])
        parts = [_logits(run.model, collate(some, np.array([n]))).softmax(-1) for n in range(len(some))]
        best, number = torch.cat([torch.zeros(0, len(run.labels)), *parts]).max(-1)
        there = sorted({n for n in run.tokenizer.encode_words(words)[1] if n >= 0})
        found = dict(zip(there, ((run.labels[n], p) for n, p in zip(number.tolist(), best.tolist(), strict=True)), strict=True))
        nothing = (OUTSIDE if OUTSIDE in run.labels else run.labels[0], 0.0)
        answers.append([found.get(n, nothing) for n in range(len(words))])
    return answers


def judge_labels(run: Run[Labeller], data: str | None = None) -> tuple[dict[str, float], Numbers]:
    """The figures of a run on other examples, or on the test part of its own; and counts: rows are right labels, columns those found."""
    config = run.settings(LabelConfig)
    if not (data or config.data):
        raise NotSupported(f"{run.folder} was imported and has no examples of its own; name some with --data")
    whole = replace(config, data=data, valid=None, test=None).read(shares=(0.0, 0.0)).train if data else config.read().test
    if not whole:
        raise NotSupported(f"{data or 'the test part of this run'} holds no examples; name some with --data")
    counts, nats = confusion(run.model, _unlabelled(run, whole), len(run.labels), config.batch)
    return {"nats": nats, **figures(counts, run.labels)}, counts


def _unlabelled(run: Run[Labeller], examples: Sequence[Labelled] | Sequence[Tagged]) -> Shown:
    length = min(int(run.config["settings"].get("length", 1 << 30)), run.model.body.config.length)
    return shown(examples, run.tokenizer, run.labels, length, isinstance(run.model.body, LanguageModel))
