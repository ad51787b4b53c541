"""The commands that work on a run: train, evaluate, predict, look, import, export; and compare. Each parses, calls the library, and prints."""

from __future__ import annotations

import ast
import json as json_
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional, UseAppendAction

from .errors import BadConfig, NotSupported, UnknownName


@dataclass(frozen=True)
class Train:
    """Train a translator on pairs of sentences; stop and resume at will.

    As in:  regard train translation --data numbers:en-de --out runs/numbers --minutes 2
            regard train translation --data "train.en train.de" --valid "val.en val.de" --out runs/mine --set width=128 --set heads=4
    """

    task: Positional[str]
    """translation"""
    out: Path
    """the run directory"""
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
    set: UseAppendAction[tuple[str, ...]] = ()
    """a setting of the model, as in --set width=128; may be given several times"""
    tokens: Literal["bpe", "words", "characters", "bytes"] = "bpe"
    """how text is cut"""
    vocab: int = 8000
    """tokens to learn, at most"""
    bpe_dropout: float = 0.0
    """leave out each merge of bpe with this probability, other ones each epoch; 0.1 helps where data are few"""
    budget: int = 2048
    """tokens a batch"""
    minutes: float | None = None
    """stop after so long"""
    epochs: int | None = None
    """stop after so many passes over the data"""
    steps: int | None = None
    """stop after so many steps; 3,000 if nothing else is given"""
    lr: float = 2e-3
    """the highest learning rate"""
    warmup: int = 400
    """steps up to it; it falls with the square root after"""
    smoothing: float = 0.1
    """label smoothing"""
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

    def run(self) -> None:
        from . import train as training
        from .tasks import TranslationConfig, train_translator

        if self.task != "translation":
            raise UnknownName("task", self.task, ["translation"])
        if self.nproc_per_node > 1 and "RANK" not in os.environ:
            sys.exit(training.launch(self.nproc_per_node, ["-m", "regard", *sys.argv[1:]]))
        nothing = self.minutes is None and self.epochs is None and self.steps is None
        config = TranslationConfig(
            data=self.data, valid=self.valid, test=self.test, tokens=self.tokens, vocab=self.vocab, budget=self.budget,
            smoothing=self.smoothing, bad=self.bad, bpe_dropout=self.bpe_dropout,
        )  # fmt: skip
        how = training.TrainConfig(
            budget=training.Budget(steps=3000 if nothing else self.steps, epochs=self.epochs, minutes=self.minutes),
            optimizer=training.AdamW(betas=(0.9, 0.98)),
            schedule=training.InverseSquareRoot(peak=self.lr, warmup=self.warmup),
            average=self.average,
            accumulate=max(self.accumulate, int(os.environ.get("WORLD_SIZE", "1"))),  # no process may be without a batch
            seed=self.seed,
            sharding=self.sharding,
            precision=self.precision,
            compile=self.compile,
            tensorboard=self.tensorboard,
        )
        done = train_translator(self.out, config, how, self.model, _settings(self.set), resume=self.resume, progress=not self.quiet)
        if os.environ.get("RANK", "0") != "0":
            return  # the first process speaks for all
        figures = ", ".join(f"{name} {value:.4g}" for name, value in done.metrics.items())
        print(f"{done.steps} steps, {done.seconds:.0f} s; on validation: {figures}")
        print(f'Next:  regard evaluate {self.out}        regard predict {self.out} "a sentence"        regard look {self.out} "a sentence"')


@dataclass(frozen=True)
class Evaluate:
    """BLEU (sacrebleu, with signature), chrF and exact match of a run, also by sentence length.

    As in:  regard evaluate runs/numbers
            regard evaluate runs/mine --data "test.en test.de" --beam 5
    """

    folder: Positional[Path]
    """a run directory"""
    data: str | None = None
    """pairs to judge by; the run's own test part if not given"""
    beam: int = 4
    """hypotheses kept in the search; 1 is greedy"""
    json: bool = False
    """print JSON"""

    def run(self) -> None:
        from dataclasses import asdict

        from rich.console import Console
        from rich.table import Table

        from .data import read
        from .tasks import Run, TranslationConfig, score, translations

        run = Run.load(self.folder)
        if self.data is None:
            kept = {key: value for key, value in run.config["settings"].items() if key != "digest"}
            pairs = TranslationConfig(**kept).read().test
        else:
            pairs = read(self.data, shares=(0.0, 0.0)).train
        if not pairs:
            raise NotSupported(f"{self.data or 'the test part of this run'} holds no pairs; name some with --data")
        sources, right = [s for s, _ in pairs], [t for _, t in pairs]
        found = score([text for text, _ in translations(run.model, run.tokenizers, sources, _beam(self.beam))], right, sources)
        if self.json:
            print(json_.dumps(asdict(found), ensure_ascii=False, indent=2))
            return
        print(f"BLEU {found.bleu:.2f}  chrF {found.chrf:.2f}  exact match {found.exact:.1%}  of {len(pairs):,} sentences")
        print(f"signature: {found.signature}")
        table = Table("source words", "sentences", "BLEU", "exact match", box=None, header_style="bold")
        for length, (count, bleu, exact) in found.by_length.items():
            table.add_row(length, f"{count:,}", f"{bleu:.1f}", f"{exact:.1%}")
        Console().print(table)


@dataclass(frozen=True)
class Predict:
    """Translate sentences: the arguments, or a line each from standard input.

    As in:  regard predict runs/numbers "twenty-one" "three hundred"
            regard predict runs/mine --beam 5 --nbest 3 < sentences.txt
    """

    folder: Positional[Path]
    """a run directory"""
    sentences: Positional[tuple[str, ...]] = ()
    """what to translate; standard input if nothing is given"""
    beam: int = 4
    """hypotheses kept in the search; 1 is greedy"""
    nbest: int = 1
    """translations a sentence, best first, with their scores"""
    alignments: Literal["none", "pharaoh"] = "none"
    """pharaoh: after each translation a tab and pairs source-target of word numbers"""

    def run(self) -> None:
        from .tasks import Run, translations

        run = Run.load(self.folder)
        wanted = self.sentences or tuple(line.rstrip("\n") for line in sys.stdin)
        filled = [n for n, line in enumerate(wanted) if line.strip()]
        pharaoh = self.alignments == "pharaoh"
        found = dict(
            zip(
                filled,
                translations(run.model, run.tokenizers, [wanted[n] for n in filled], _beam(self.beam, self.nbest), want_weights=pharaoh),
                strict=True,
            )
        )
        for n in range(len(wanted)):
            if n not in found:
                print()  # an empty line stays an empty line, so that lines still match
                continue
            for hypothesis in found[n][1][: self.nbest]:
                text = run.tokenizers.target.decode(hypothesis.ids).replace("\n", " ")
                score = f"{hypothesis.score:.4f}\t" if self.nbest > 1 else ""
                links = f"\t{_pharaoh(run, wanted[n], hypothesis)}" if pharaoh else ""
                print(f"{score}{text}{links}")


@dataclass(frozen=True)
class Look:
    """Where a translator looks while it writes: a heat map in the terminal, and a PNG file if asked.

    As in:  regard look runs/numbers "twenty-one" --png map.png
    """

    folder: Positional[Path]
    """a run directory"""
    sentence: Positional[str]
    """what to translate"""
    beam: int = 1
    """hypotheses kept in the search"""
    png: Path | None = None
    """write the picture to this file too"""

    def run(self) -> None:
        from .look import Maps
        from .tasks import Run, alignment

        text, drawn = alignment(Run.load(self.folder), self.sentence, _beam(self.beam))
        print(text)
        maps = Maps([drawn])
        maps.show()
        if self.png is not None:
            print(f"wrote {maps.save_png(self.png)}")


@dataclass(frozen=True)
class Import:
    """Make a run of a published checkpoint: a directory with config.json and safetensors, as transformers writes it.

    As in:  regard import downloads/bert-base-uncased --out runs/bert
    """

    folder: Positional[Path]
    """the directory"""
    out: Path
    """the run directory to make"""

    def run(self) -> None:
        from .interop import import_checkpoint

        model = import_checkpoint(self.folder, self.out)
        count = sum(parameter.numel() for parameter in model.parameters())
        print(f"{model.facts.name}, {count:,} parameters. wrote {self.out}")
        print(f'Next, in Python:  model = regard.load("{self.out}"); model.with_attention("longformer")')


@dataclass(frozen=True)
class Export:
    """Write a run as a directory that transformers' from_pretrained reads.

    As in:  regard export runs/bert --to huggingface --out published/bert
    """

    folder: Positional[Path]
    """a run directory"""
    out: Path
    """the directory to make"""
    to: Literal["huggingface"] = "huggingface"
    """whose files to write"""

    def run(self) -> None:
        from .interop import export_run

        export_run(self.folder, self.out)
        written = ", ".join(sorted(path.name for path in self.out.iterdir()))
        print(f"wrote {self.out}: {written}")


@dataclass(frozen=True)
class Compare:
    """What mechanisms cost on this machine, and from which length each beats exact attention.

    As in:  regard compare
            regard compare linear local performer --lengths 512 2048 8192 --width 512 --heads 8 --plot cost.png
    """

    mechanisms: Positional[tuple[str, ...]] = ()
    """names from `regard list`; all if none is given"""
    lengths: tuple[int, ...] = (256, 1024, 4096)
    """tokens"""
    width: int = 256
    """of the model; each head has width / heads"""
    heads: int = 4
    """heads"""
    batch: int = 1
    """sequences at once"""
    full: bool = False
    """every token sees all others; without it, those before it only, and steps of decoding are measured too"""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """of inputs and parameters"""
    projections: bool = False
    """with the projections to heads and back"""
    threads: int | None = None
    """as many as PyTorch takes if not given"""
    repeats: int = 5
    """at most; fewer when the time is over"""
    minutes: float = 2.0
    """stop after so long; what was not measured by then is named"""
    memory: float | None = None
    """GiB a mechanism may take; four fifths of what is free if not given"""
    seed: int = 0
    """of inputs and parameters"""
    json: Path | None = None
    """write everything to this file; - for standard output, without tables"""
    plot: Path | None = None
    """draw time against length into this .png"""
    quiet: bool = False
    """no progress"""

    def run(self) -> None:
        from rich.console import Console

        from .compare import compare

        for path, suffix in ((self.plot, ".png"), (self.json, "")):
            _writable(path, suffix)  # before minutes are spent
        found = compare(
            self.mechanisms or None, self.lengths, width=self.width, heads=self.heads, batch=self.batch, causal=not self.full,
            dtype=self.dtype, projections=self.projections, threads=self.threads, repeats=self.repeats, minutes=self.minutes,
            memory=self.memory, seed=self.seed, progress=not self.quiet,
        )  # fmt: skip
        if self.plot is not None:
            found.plot(self.plot)
        if self.json == Path("-"):
            print(found.to_json())
            return
        if self.json is not None:
            self.json.write_text(found.to_json() + "\n", encoding="utf-8")
        console = Console() if sys.stdout.isatty() else Console(width=200)
        console.print(f"{found.machine}; {found.took:.0f} s\n", highlight=False, markup=False)
        console.print(found.table(), "")
        if len(found.settings.lengths) > 1:
            console.print(found.by_length("train"), "")
        if found.noise > 0.25:
            print(f"Repeats differ by {found.noise:.0%}: something else is running, so small differences mean nothing.\n")
        for line in found.refusals():
            console.print(line, highlight=False, markup=False)
        for path in (self.json, self.plot):
            if path is not None:
                print(f"wrote {path}")


def _writable(path: Path | None, suffix: str) -> None:
    if path is None or path == Path("-"):
        return
    if suffix and path.suffix.lower() != suffix:
        raise NotSupported(f"--plot {path}: the picture is a PNG file, so the name must end in {suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotSupported(f"cannot write to {path}: {error.strerror}; choose another place") from error
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise NotSupported(f"cannot write to {path}; choose another place")


def _beam(width: int, nbest: int = 1) -> Any:
    from .decode import Beam

    return Beam(width=max(width, nbest), nbest=nbest)


def _pharaoh(run: Any, sentence: str, hypothesis: Any) -> str:
    """Which source word each target word looked at most, as `i-j` pairs of word numbers."""
    from .decode import align

    source, target = run.tokenizers.source, run.tokenizers.target
    weights_LM = align.words(hypothesis.weights_LM, target.word_numbers(hypothesis.ids), source.word_numbers(source.encode(sentence)))
    return align.pharaoh(align.best(weights_LM))


def _settings(given: tuple[str, ...]) -> dict[str, Any]:
    """--set width=128: numbers, true/false and lists as Python writes them, anything else a name."""
    found: dict[str, Any] = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not equals or not key.isidentifier():
            raise BadConfig(f"--set {one}: expected a name, =, and a value, as in --set width=128")
        try:
            found[key] = ast.literal_eval({"true": "True", "false": "False"}.get(value, value))
        except (ValueError, SyntaxError):
            found[key] = value
    return found
