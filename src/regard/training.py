"""The commands that train: `regard train translation`, `language`, `masked`, `classify`, `label`. Each parses, calls the library, and prints."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import UseAppendAction, subcommand

from .commands import settings_of
from .errors import BadConfig
from .kernels import keep_memory

Kind = Literal["bpe", "words", "characters", "bytes"]
Optimizer = Literal["adamw", "adam", "radam", "lamb", "muon", "adafactor"]  # the names of train.OPTIMIZERS


@dataclass(frozen=True, kw_only=True)
class Loop:
    """What every training of one model may be told."""

    out: Path
    """the run directory"""
    set: UseAppendAction[tuple[str, ...]] = ()
    """a setting of the model, as in --set width=128; may be given several times"""
    minutes: float | None = None
    """stop after so long"""
    epochs: int | None = None
    """stop after so many passes over the data"""
    steps: int | None = None
    """stop after so many steps; 3,000 if nothing else is given"""
    optimizer: Optimizer = "adamw"
    """which way to step: muon takes the fewest steps, adafactor the least memory (give it --lr 1e-2), lamb is for very large batches"""
    lr: float = 2e-3
    """the highest learning rate"""
    warmup: int = 400
    """steps up to it; it falls with the square root after"""
    average: int = 5
    """try the mean of the weights at so many last evaluations too"""
    accumulate: int = 1
    """batches a step, over all processes together"""
    nproc_per_node: int = 1
    """processes on this machine; torchrun … -m regard train … works too"""
    sharding: Literal["none", "full"] = "none"
    """full: each process keeps a part of the weights and of the optimizer, not all of them"""
    precision: Literal["float32", "bfloat16", "auto"] = "float32"
    """of products on the way forward; auto: bfloat16 if this machine is sure and faster with it"""
    compile: bool = False
    """train with torch.compile: minutes to start; for large models on batches of few shapes"""
    tensorboard: bool = False
    """write curves for TensorBoard too"""
    seed: int = 0
    """of weights, data order and dropout"""
    resume: bool = False
    """go on from the last checkpoint"""
    quiet: bool = False
    """plain lines instead of a progress bar"""

    def launched(self) -> None:
        """With several processes this one only starts them and waits."""
        from . import train as training

        if self.nproc_per_node > 1 and "RANK" not in os.environ:
            sys.exit(training.launch(self.nproc_per_node, ["-m", "regard", *sys.argv[1:]]))

    def how(self, evaluate: int = 0) -> Any:
        """The same as the library takes it."""
        from . import train as training

        nothing = self.minutes is None and self.epochs is None and self.steps is None
        return training.TrainConfig(
            budget=training.Budget(steps=3000 if nothing else self.steps, epochs=self.epochs, minutes=self.minutes),
            optimizer=training.OPTIMIZERS[self.optimizer](),
            schedule=training.InverseSquareRoot(peak=self.lr, warmup=self.warmup),
            every=training.Every(evaluate=evaluate),
            average=self.average,
            accumulate=max(self.accumulate, int(os.environ.get("WORLD_SIZE", "1"))),  # no process may be without a batch
            seed=self.seed,
            sharding=self.sharding,
            precision=self.precision,
            compile=self.compile,
            tensorboard=self.tensorboard,
        )

    def said(self, done: Any, after: str) -> None:
        """How it went, and what may be done next."""
        if os.environ.get("RANK", "0") != "0":
            return  # the first process speaks for all
        figures = ", ".join(f"{name} {value:.4g}" for name, value in done.metrics.items())
        print(f"{done.steps} steps, {done.seconds:.0f} s; on validation: {figures}")
        print(f"Next:  {after}")


@dataclass(frozen=True, kw_only=True)
class Translation(Loop):
    """Train a translator on pairs of sentences; stop and resume at will.

    As in:  regard train translation --data numbers:en-de --out runs/numbers --minutes 2
            regard train translation --data "train.en train.de" --valid "val.en val.de" --out runs/mine --set width=128 --set heads=4
    """

    data: str = "numbers:en-de"
    """two files, a .tsv or .jsonl (.gz too), or an embedded source: numbers:en-de, dates:en-fr, gettext:fr"""
    valid: str | None = None
    """validation pairs; cut from the data if not given"""
    test: str | None = None
    """test pairs; cut from the data if not given"""
    bad: Literal["stop", "skip"] = "stop"
    """what to do with a bad line"""
    model: str = "transformer"
    """a model from `regard list models`"""
    tokens: Kind = "bpe"
    """how text is cut"""
    vocab: int = 8000
    """tokens to learn, at most"""
    bpe_dropout: float = 0.0
    """leave out each merge of bpe with this probability, other ones each epoch; 0.1 helps where data are few"""
    budget: int = 2048
    """tokens a batch"""
    smoothing: float = 0.1
    """label smoothing"""

    def run(self) -> None:
        from .tasks import TranslationConfig, train_translator

        self.launched()
        config = TranslationConfig(
            data=self.data, valid=self.valid, test=self.test, tokens=self.tokens, vocab=self.vocab, budget=self.budget,
            smoothing=self.smoothing, bad=self.bad, bpe_dropout=self.bpe_dropout,
        )  # fmt: skip
        done = train_translator(
            self.out, config, self.how(), self.model, settings_of(self.set), resume=self.resume, progress=not self.quiet
        )
        self.said(
            done, f'regard evaluate {self.out}        regard predict {self.out} "a sentence"        regard look {self.out} "a sentence"'
        )


@dataclass(frozen=True, kw_only=True)
class Text(Loop):
    """What training on running text may be told, too."""

    data: str = "python-docs"
    """a file, a folder, or several; .jsonl holds an object a line; .gz and .xz too. python-docs: the documentation of this Python"""
    valid: str | None = None
    """text for validation; cut from the data if not given: whole documents, or of few documents the end"""
    test: str | None = None
    """text for test; cut from the data if not given"""
    field: str = "text"
    """where the text is in an object of JSON lines; page.body reaches inside"""
    separator: str | None = None
    """a line that ends a document of a text file, as <|endoftext|>; "" for blank lines; without it a file is a document"""
    suffixes: tuple[str, ...] = ()
    """of the files to read in a folder; .txt .text .md .rst .jsonl .ndjson if not given"""
    bad: Literal["stop", "skip"] = "stop"
    """what to do with a bad line"""
    base: Path | None = None
    """a run to go on with: its model and vocabulary, on this text"""
    tokens: Kind = "bpe"
    """how text is cut"""
    vocab: int = 4000
    """tokens to learn, at most"""
    cache: Path | None = None
    """where tokens are kept, for several runs to share; the run directory if not given"""
    evaluate: int = 500
    """steps between evaluations"""
    lr: float = 1e-3
    warmup: int = 100

    def text(self) -> dict[str, Any]:
        from .data.text import SUFFIXES

        return {
            "data": self.data, "valid": self.valid, "test": self.test, "field": self.field, "separator": self.separator,
            "suffixes": self.suffixes or SUFFIXES, "bad": self.bad, "tokens": self.tokens, "vocab": self.vocab,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Language(Text):
    """Train a language model on running text: what comes next?

    As in:  regard train language --out runs/python --minutes 5
            regard train language --data input.txt --tokens characters --length 64 --batch 12 --set width=128 --out runs/shakespeare
            regard train language --data folder --suffixes .py --model llama --out runs/code
    """

    model: str = "gpt2"
    """a language model from `regard list models`"""
    length: int = 256
    """tokens of a window"""
    batch: int = 16
    """windows a batch"""
    documents: Literal["auto", "apart", "joined"] = "auto"
    """apart: each document is read as if it were alone (auto, where there are several); joined: what stands before it is seen too"""

    def run(self) -> None:
        from .tasks import LanguageConfig, train_language

        self.launched()
        apart = {"auto": None, "apart": True, "joined": False}[self.documents]
        config = LanguageConfig(**self.text(), length=self.length, batch=self.batch, documents=apart)
        done = train_language(
            self.out, config, self.how(self.evaluate), self.model, settings_of(self.set), base=self.base, cache=self.cache,
            resume=self.resume, progress=not self.quiet,
        )  # fmt: skip
        self.said(
            done, f'regard evaluate {self.out}        regard complete {self.out} "a beginning"        regard look {self.out} "a text"'
        )


@dataclass(frozen=True, kw_only=True)
class Masked(Text):
    """Train an encoder on running text: which words are hidden, and does one part follow the other?

    As in:  regard train masked --out runs/encoder --minutes 5
            regard train masked --data pages.jsonl.gz --field body --following no --set width=128 --out runs/encoder
    """

    model: str = "bert"
    """a text encoder from `regard list models`"""
    length: int = 128
    """tokens of a row"""
    batch: int = 32
    """rows a batch"""
    hidden: float = 0.15
    """share of the words that are chosen"""
    following: Literal["auto", "yes", "no"] = "auto"
    """also ask whether the second half of a row follows the first (auto: where there are several documents)"""

    def run(self) -> None:
        from .tasks import MaskedConfig, train_masked

        self.launched()
        following = {"auto": None, "yes": True, "no": False}[self.following]
        config = MaskedConfig(**self.text(), length=self.length, batch=self.batch, hidden=self.hidden, following=following)
        done = train_masked(
            self.out, config, self.how(self.evaluate), self.model, settings_of(self.set), base=self.base, cache=self.cache,
            resume=self.resume, progress=not self.quiet,
        )  # fmt: skip
        self.said(
            done, f"regard evaluate {self.out}        regard train classify --base {self.out} --data examples.tsv --out runs/classifier"
        )


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What fine-tuning may be told."""

    data: str
    """examples: .tsv or .jsonl (.gz, .xz too)"""
    out: Path
    """the run directory: of the best seed, with a folder for each"""
    valid: str | None = None
    """examples for validation; cut from the data if not given"""
    test: str | None = None
    """examples for test; cut from the data if not given"""
    fields: tuple[str, ...] = ()
    """names of columns or fields, or numbers of columns from 1: the texts, then the label; names in use are found without"""
    bad: Literal["stop", "skip"] = "stop"
    """what to do with a bad line"""
    base: Path | None = None
    """the run to begin with, of `regard train masked`, `language` or `regard import`; without it a new model"""
    scratch: bool = False
    """take the shape and the vocabulary of --base, and nothing that it has learned"""
    frozen: float = 0.5
    """this share of the layers, from below, stays as it is"""
    decay: float = 0.9
    """of the learning rate from one layer to the one below it"""
    model: str = "bert"
    """without --base: a text encoder or language model from `regard list models`"""
    set: UseAppendAction[tuple[str, ...]] = ()
    """without --base: a setting of the model, as in --set width=128; may be given several times"""
    tokens: Kind = "bpe"
    """without --base: how text is cut"""
    vocab: int = 4000
    """without --base: tokens to learn, at most"""
    length: int = 128
    """tokens of an example, at most"""
    batch: int = 32
    """examples a batch"""
    epochs: int = 6
    """passes over the data, at most"""
    patience: int = 2
    """stop after so many evaluations (one an epoch) without a better one; 0 is never"""
    optimizer: Optimizer = "adamw"
    """which way to step: muon takes the fewest steps, adafactor the least memory (give it --lr 1e-2), lamb is for very large batches"""
    lr: float = 5e-4
    """the highest learning rate, of the top; it falls to nothing in a straight line"""
    seeds: tuple[int, ...] = (0, 1, 2)
    """each trains anew; the best on validation is kept"""
    metric: Literal["", "accuracy", "f1", "matthews", "f1_tokens"] = ""
    """which figure decides; accuracy, or f1_tokens of word labels"""
    resume: bool = False
    """go on from the last checkpoints"""
    quiet: bool = False
    """plain lines instead of a progress bar"""

    def tuned(self, task: Literal["classify", "label"], after: str) -> None:
        from .tasks import LabelConfig, train_labels
        from .train import OPTIMIZERS

        if self.scratch and self.base is None:
            raise BadConfig("--scratch takes the shape of a run: name it with --base, or leave --scratch out and choose a --model")
        config = LabelConfig(
            data=self.data, valid=self.valid, test=self.test, fields=self.fields, bad=self.bad, task=task, base=None if self.base is None else str(self.base),
            scratch=self.scratch, frozen=self.frozen, decay=self.decay, tokens=self.tokens, vocab=self.vocab, length=self.length,
            batch=self.batch, metric=self.metric,
        )  # fmt: skip
        done = train_labels(
            self.out, config, self.model, settings_of(self.set), seeds=self.seeds, epochs=self.epochs, patience=self.patience, lr=self.lr,
            optimizer=OPTIMIZERS[self.optimizer](), resume=self.resume, progress=not self.quiet,
        )  # fmt: skip
        for name in next(iter(done.results.values())).metrics:
            mean, low, high = done.spread(name)
            print(f"{name:10} {mean:.4f} ({low:.4f} to {high:.4f} over {len(done.results)} seeds), on validation")
        print(f"kept: seed {done.best}, {len(done.labels)} labels: {', '.join(done.labels)[:200]}")
        print(f"Next:  regard evaluate {self.out}        {after}")


@dataclass(frozen=True, kw_only=True)
class Classify(Tuning):
    """Teach a model what a text is, or how two texts relate, from examples.

    As in:  regard train classify --data reviews.tsv --base runs/encoder --out runs/reviews
            regard train classify --data nli.jsonl --fields premise hypothesis label --base runs/encoder --out runs/nli
    """

    def run(self) -> None:
        self.tuned("classify", f'regard predict {self.out} "a text"')


@dataclass(frozen=True, kw_only=True)
class Label(Tuning):
    """Teach a model what each word of a sentence is, from examples.

    As in:  regard train label --data names.tsv --base runs/encoder --out runs/names
            regard train label --data names.jsonl --fields tokens tags --base runs/encoder --out runs/names
    """

    def run(self) -> None:
        self.tuned("label", f'regard predict {self.out} "words of a sentence"')


TASKS = {"translation": Translation, "language": Language, "masked": Masked, "classify": Classify, "label": Label}


@dataclass(frozen=True)
class Train:
    """Train a model: translation, language, masked, classify or label. `regard train language --help` says more.

    As in:  regard train language --out runs/python --minutes 5
            regard train translation --data numbers:en-de --out runs/numbers --minutes 2
    """

    task: (
        Annotated[Translation, subcommand("translation")]
        | Annotated[Language, subcommand("language")]
        | Annotated[Masked, subcommand("masked")]
        | Annotated[Classify, subcommand("classify")]
        | Annotated[Label, subcommand("label")]
    )

    def run(self) -> None:
        keep_memory()
        self.task.run()
