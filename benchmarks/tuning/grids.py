"""Problems and candidates, by task. A problem is some data and budgets; a candidate is a model with its sizes and options.

Candidates are few: what earlier trials (docs/log) have shown to be good, around the sizes that fit into the minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .published import sick, sst2, trec


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Data to tune with.

    Args:
        name: the data in words.
        minutes: budgets.
        options: options of the task that name the data, from the folder of published sets.
        tags: what candidates ask for.
    """

    name: str
    minutes: tuple[float, ...]
    options: Callable[[Path], dict[str, Any]]
    tags: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One setting.

    Args:
        name: short name.
        model: name of the model.
        settings: settings of the model.
        options: options of the task.
        train: training options.
        minutes: least and most minutes it is tried for.
        tags: tags that a problem must have, one of them at least; empty: any.
    """

    name: str
    model: str
    settings: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    minutes: tuple[float, float] = (0.0, 1e9)
    tags: frozenset[str] = frozenset()

    def fits(self, problem: Problem, minutes: float) -> bool:
        return self.minutes[0] <= minutes <= self.minutes[1] and (not self.tags or bool(self.tags & problem.tags))


def pairs(folder: str, train: str, valid: str, languages: str) -> Callable[[Path], dict[str, Any]]:
    source, target = languages.split("-")

    def options(data: Path) -> dict[str, Any]:
        named = {"data": train, "valid": valid}
        return {name: tuple(f"{data / folder / part}.{one}.gz" for one in (source, target)) for name, part in named.items()} | {
            "shares": (0.0, 0.0)
        }

    return options


def tags(*names: str) -> frozenset[str]:
    return frozenset(names)


MUON: dict[str, Any] = {"optimizer": "muon", "schedule": "cosine", "average": 0, "evaluate_every": 0}


def default(name: str, source: str = "") -> Problem:
    """What a task trains on without --data."""
    return Problem(name=name, minutes=(3,), options=lambda data: {"data": source} if source else {})


PROBLEMS: dict[str, list[Problem]] = {
    "language": [
        Problem(
            name="tinyshakespeare, characters", minutes=(2, 10),
            options=lambda data: {"data": str(data / "tinyshakespeare/input.txt"), "tokenizer": "char"}, tags=tags("characters"),
        ),
        Problem(name="the documentation of Python", minutes=(2, 5), options=lambda data: {"data": "python-docs"}, tags=tags("subwords")),
    ],
    "translation": [
        Problem(name="Multi30k en-de", minutes=(5, 15, 45), options=pairs("multi30k", "train", "val", "en-de"), tags=tags("captions")),
        Problem(name="number words en-de", minutes=(2,), options=lambda data: {"data": "numbers:en-de"}, tags=tags("numbers")),
    ],
    "classify": [
        Problem(name="SST-2", minutes=(1, 2), options=sst2, tags=tags("texts")),
        Problem(name="TREC", minutes=(1, 2), options=trec, tags=tags("texts")),
        Problem(name="SICK", minutes=(1, 2), options=sick, tags=tags("pairs")),
    ],
    "images": [
        Problem(name="digits", minutes=(1,), options=lambda data: {"data": "digits"}, tags=tags("tiny")),
        Problem(name="Fashion-MNIST", minutes=(2, 10, 30), options=lambda data: {"data": str(data / "fashion-mnist")}, tags=tags("small")),
        Problem(name="CIFAR-10", minutes=(15,), options=lambda data: {"data": str(data / "cifar10")}, tags=tags("small", "colour")),
    ],
    "masked": [default("the documentation of Python", "python-docs")],
    "question-answering": [default("generated facts")],
    "summarization": [default("match reports")],
    "captions": [default("generated scenes")],
    "clip": [default("generated scenes")],
    "dalle": [default("generated scenes of one object")],
    "draw": [default("digits")],
    "pixels": [default("digits")],
    "video": [default("moving digits")],
    "handwriting": [default("Hershey's scripts")],
}  # fmt: skip


def llama(width: int, depth: int, **more: Any) -> dict[str, Any]:
    heads = width // 32
    return {
        "width": width,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": 32,
        "depth": depth,
        "hidden": round(width * 8 / 3 / 8) * 8,
        "qk_norm": True,
        **more,
    }


CANDIDATES: dict[str, list[Candidate]] = {
    "language": [
        Candidate(
            name="llama 128 × 4, 16 × 64", model="llama", settings=llama(128, 4), options={"context_length": 64, "batch_size": 16},
            train=MUON | {"lr": 7e-3}, minutes=(0, 4),
        ),
        Candidate(
            name="llama 128 × 4, 12 × 128", model="llama", settings=llama(128, 4), options={"context_length": 128, "batch_size": 12},
            train=MUON | {"lr": 7e-3}, minutes=(1.5, 12),
        ),
        Candidate(
            name="llama 192 × 4, dropout 0.3", model="llama", settings=llama(192, 4, dropout=0.3), options={"context_length": 128, "batch_size": 12},
            train=MUON | {"lr": 6e-3, "weight_decay": 0.1}, minutes=(1.5, 20), tags=tags("subwords"),
        ),
        Candidate(
            name="llama 192 × 6, 12 × 128", model="llama", settings=llama(192, 6, dropout=0.05), options={"context_length": 128, "batch_size": 12},
            train=MUON | {"lr": 6e-3, "weight_decay": 0.1}, minutes=(4, 20),
        ),
        Candidate(
            name="llama 256 × 6, 12 × 192", model="llama", settings=llama(256, 6, dropout=0.1), options={"context_length": 192, "batch_size": 12},
            train=MUON | {"lr": 5e-3, "weight_decay": 0.1}, minutes=(8, 1e9),
        ),
    ],
    "translation": [
        Candidate(
            name="transformer 128 × 4", model="transformer",
            settings={"width": 128, "heads": 4, "depth": [4, 4], "hidden": 256, "position": "rotary", "dropout": 0.15},
            options={"vocab_size": 4000, "batch_tokens": 1600}, train=MUON | {"lr": 7e-3, "weight_decay": 0.01, "warmup_steps": 150}, minutes=(4, 30),
            tags=tags("captions"),
        ),
        Candidate(
            name="transformer 160 × 4", model="transformer",
            settings={"width": 160, "heads": 5, "depth": [4, 4], "hidden": 320, "position": "rotary", "dropout": 0.25},
            options={"vocab_size": 4000, "batch_tokens": 1600}, train=MUON | {"lr": 6e-3, "weight_decay": 0.01, "warmup_steps": 150}, minutes=(30, 1e9),
            tags=tags("captions"),
        ),
        Candidate(
            name="transformer 128 × 2", model="transformer",
            settings={"width": 128, "heads": 4, "depth": [2, 2], "hidden": 256, "position": "rotary", "dropout": 0.0},
            options={"batch_tokens": 1600}, train=MUON | {"lr": 7e-3, "warmup_steps": 60}, minutes=(0, 4), tags=tags("numbers"),
        ),
    ],
    "classify": [
        Candidate(
            name="self-attentive, words", model="self_attentive", options={"tokenizer": "word", "lowercase": True, "ngram_buckets": 65_536},
            train={"lr": 2e-3, "schedule": "linear", "average": 0}, tags=tags("texts"),
        ),
        Candidate(
            name="self-attentive, words, dropout 0.5, 7 epochs", model="self_attentive", settings={"dropout": 0.5},
            options={"tokenizer": "word", "lowercase": True, "ngram_buckets": 65_536},
            train={"lr": 2e-3, "schedule": "linear", "average": 0, "epochs": 7}, tags=tags("texts"),
        ),
        Candidate(
            name="self-attentive, words, dropout 0.5, EMA, 10 epochs", model="self_attentive", settings={"dropout": 0.5, "width": 96},
            options={"tokenizer": "word", "lowercase": True, "ngram_buckets": 65_536},
            train={"lr": 2e-3, "schedule": "linear", "average": 0, "epochs": 10, "ema": 0.995, "weight_decay": 0.1}, tags=tags("texts"),
        ),
        Candidate(name="esim, words", model="esim", options={"tokenizer": "word", "lowercase": True, "ngram_buckets": 65_536}, train={"lr": 2e-3, "schedule": "linear", "average": 0}, tags=tags("pairs")),
    ],
    "images": [
        Candidate(
            name="ViT 64 × 4, stem", model="vit",
            settings={"stem": [32], "width": 64, "depth": 3, "heads": 2, "hidden": 128, "patch_size": 2, "pool": "mean"},
            options={"flip": "no", "crop": 1, "batch_size": 64}, train={"optimizer": "muon", "lr": 5e-3, "schedule": "cosine", "average": 0, "weight_decay": 0.05},
            tags=tags("tiny"),
        ),
        Candidate(
            name="ViT 96 × 3, stem", model="vit",
            settings={"stem": [48, 96], "width": 96, "depth": 3, "heads": 3, "hidden": 192, "patch_size": 4, "pool": "mean"},
            options={"flip": "yes", "crop": 2, "batch_size": 128}, train={"optimizer": "muon", "lr": 3e-3, "schedule": "cosine", "average": 0, "weight_decay": 0.05},
            tags=tags("small"),
        ),
    ],
    "masked": [
        Candidate(
            name="modernbert 96 × 3", model="modernbert", settings={"width": 96, "heads": 3, "depth": 3, "hidden": 192},
            options={"mask_rate": 0.3, "max_length": 64, "next_sentence": "no"}, train=MUON | {"lr": 1e-2},
        ),
        Candidate(
            name="modernbert 128 × 4", model="modernbert", settings={"width": 128, "heads": 4, "depth": 4, "hidden": 256},
            options={"mask_rate": 0.3, "max_length": 64, "next_sentence": "no"}, train=MUON | {"lr": 1e-2},
        ),
    ],
    "question-answering": [
        Candidate(
            name="san 48", model="san", settings={"embedding": 48, "width": 48}, options={"tokenizer": "word", "max_length": 160},
            train=MUON | {"lr": 0.02},
        ),
    ],
    "summarization": [
        Candidate(
            name="pointer-generator 48 × 64", model="pointer_generator", settings={"embedding": 48, "width": 64},
            train={"optimizer": "adamw", "schedule": "cosine", "average": 0, "evaluate_every": 0, "lr": 5e-3},
        ),
    ],
    "captions": [
        Candidate(
            name="show, attend and tell 96", model="show_attend_tell", settings={"features": 64, "embedding": 64, "width": 96, "alignment": 48},
            train=MUON | {"lr": 0.02},
        ),
    ],
    "clip": [
        Candidate(
            name="clip 64", model="clip", train=MUON | {"lr": 0.01},
            settings={
                "width": 64, "heads": 4, "depth": 2, "hidden": 128, "embedding": 64, "patch_size": 4,
                "image_width": 64, "image_heads": 4, "image_depth": 3, "image_hidden": 128,
            },
        ),
    ],
    "dalle": [
        Candidate(
            name="dalle 64 × 4, 64 codes", model="dalle", options={"vae_share": 0.4},
            settings={"stride": 2, "codes": 64, "features": 32, "width": 64, "heads": 4, "depth": 4},
            train={"optimizer": "muon", "lr": 0.02, "schedule": "wsd", "warmup_steps": 20, "average": 0, "evaluate_every": 0},
        ),
    ],
    "draw": [
        Candidate(name="draw, as default", model="draw", train={"lr": 4e-3, "schedule": "cosine", "average": 0, "clip": 5.0, "evaluate_every": 0}),
    ],
    "pixels": [
        Candidate(
            name="image transformer 48 × 3", model="image_transformer", settings={"width": 48, "heads": 4, "depth": 3, "hidden": 128, "dropout": 0.1},
            options={"batch_size": 16}, train=MUON | {"lr": 2e-2},
        ),
        Candidate(
            name="image transformer 64 × 4", model="image_transformer", settings={"width": 64, "heads": 4, "depth": 4, "hidden": 192, "dropout": 0.2},
            options={"batch_size": 16}, train=MUON | {"lr": 1.5e-2},
        ),
    ],
    "video": [
        Candidate(name="vivit, as default", model="vivit", train=MUON | {"lr": 1e-2, "weight_decay": 0.05}),
    ],
    "handwriting": [
        Candidate(name="handwriting 96", model="handwriting", settings={"width": 96}, train=MUON | {"lr": 4e-3}),
        Candidate(name="handwriting 128", model="handwriting", settings={"width": 128}, train=MUON | {"lr": 4e-3}),
    ],
}  # fmt: skip
