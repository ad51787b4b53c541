"""The commands that work on a run: evaluate, predict, look, import, export; and compare. Each parses, calls the library, and prints."""

from __future__ import annotations

import ast
import json as json_
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional

from .errors import BadConfig, NotSupported


@dataclass(frozen=True)
class Evaluate:
    """How good a run is: BLEU and chrF of a translator, perplexity and bits a byte of a language model, F1 of a classifier.

    As in:  regard evaluate runs/numbers
            regard evaluate runs/mine --data "test.en test.de" --beam 5
            regard evaluate runs/python --data other.txt --stride 64
    """

    folder: Positional[Path]
    """a run directory"""
    data: str | None = None
    """what to judge by, in the form the run was trained on; its own test part if not given"""
    beam: int = 4
    """of a translator: hypotheses kept in the search; 1 is greedy"""
    stride: int | None = None
    """of a language model: by how many tokens the window moves on; half its length if not given"""
    json: bool = False
    """print JSON"""

    def run(self) -> None:
        from .tasks import Run

        run = Run.load(self.folder)
        tasks = {"translation": self._translation, "language": self._language, "masked": self._masked}
        tasks |= dict.fromkeys(("classify", "label"), self._labels)
        if run.task not in tasks:
            raise NotSupported(f"{self.folder}: a run of the task {run.task}, which has nothing to be judged by; train it on a task first")
        tasks[run.task](run)

    def _translation(self, run: Any) -> None:
        from dataclasses import asdict

        from rich.console import Console
        from rich.table import Table

        from .data import read
        from .tasks import TranslationConfig, score, translations

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

    def _language(self, run: Any) -> None:
        from dataclasses import asdict

        from .tasks import judge_language

        found = judge_language(run, self.data, self.stride)
        if self.json:
            print(json_.dumps(asdict(found), indent=2))
            return
        print(f"loss {found.nats:.4f} nats a token  perplexity {found.perplexity:.2f}  bits per byte {found.bits_per_byte:.4f}")
        print(f"{found.tokens:,} tokens, {found.bytes:,} bytes; {found.right:.1%} of the tokens were the likeliest")
        if found.unknown:
            print(f"{found.unknown:.2%} of the tokens are unknown to the vocabulary: bits per byte leave out what they were")

    def _masked(self, run: Any) -> None:
        from .tasks import judge_masked

        found = judge_masked(run, self.data)
        if self.json:
            print(json_.dumps(found, indent=2))
            return
        told = f"  told rightly what follows {found['followed']:.1%}" if "followed" in found else ""
        print(f"loss {found['nats']:.4f} nats a hidden word  guessed right {found['right']:.1%}{told}")

    def _labels(self, run: Any) -> None:
        from rich.console import Console
        from rich.table import Table

        from .tasks import judge_labels

        figures, counts = judge_labels(run, self.data)
        if self.json:
            print(json_.dumps(figures | {"labels": list(run.labels), "confusion": counts.tolist()}, ensure_ascii=False, indent=2))
            return
        print("  ".join(f"{name} {value:.4f}" for name, value in figures.items()))
        table = Table("label", "there", "found", "precision", "recall", box=None, header_style="bold")
        for n, name in enumerate(run.labels):
            there, found, both = int(counts[n].sum()), int(counts[:, n].sum()), int(counts[n, n])
            shares = (f"{both / of:.1%}" if of else "–" for of in (found, there))
            table.add_row(name, f"{there:,}", f"{found:,}", *shares)
        Console().print(table)


@dataclass(frozen=True)
class Predict:
    """Translate, or label: the arguments, or a line each from standard input.

    As in:  regard predict runs/numbers "twenty-one" "three hundred"
            regard predict runs/mine --beam 5 --nbest 3 < sentences.txt
            regard predict runs/reviews "a waste of two hours"
    """

    folder: Positional[Path]
    """a run directory"""
    sentences: Positional[tuple[str, ...]] = ()
    """what to translate or label (a tab between the two texts of a pair); standard input if nothing is given"""
    beam: int = 4
    """of a translator: hypotheses kept in the search; 1 is greedy"""
    nbest: int = 1
    """answers a sentence, best first, with their scores"""
    alignments: Literal["none", "pharaoh"] = "none"
    """of a translator: pharaoh: after each translation a tab and pairs source-target of word numbers"""

    def run(self) -> None:
        from .models import Translator
        from .tasks import Run

        run = Run.load(self.folder)
        wanted = self.sentences or tuple(line.rstrip("\n") for line in sys.stdin)
        filled = [line for line in wanted if line.strip()]
        labels = run.task in ("classify", "label")
        given = iter(self._labels(run, filled) if labels else self._translations(run.of(Translator), filled))
        for line in wanted:
            print("\n".join(next(given)) if line.strip() else "")  # an empty line stays an empty line, so that lines still match

    def _translations(self, run: Any, wanted: list[str]) -> list[list[str]]:
        from .tasks import translations

        pharaoh = self.alignments == "pharaoh"
        found = translations(run.model, run.tokenizers, wanted, _beam(self.beam, self.nbest), want_weights=pharaoh)

        def said(sentence: str, hypothesis: Any) -> str:
            text = run.tokenizers.target.decode(hypothesis.ids).replace("\n", " ")
            score = f"{hypothesis.score:.4f}\t" if self.nbest > 1 else ""
            links = f"\t{_pharaoh(run, sentence, hypothesis)}" if pharaoh else ""
            return f"{score}{text}{links}"

        return [[said(line, one) for one in hypotheses[: self.nbest]] for line, (_, hypotheses) in zip(wanted, found, strict=True)]

    def _labels(self, run: Any, wanted: list[str]) -> list[list[str]]:
        from .tasks import probabilities, tagged

        if run.task == "label":
            sentences = [line.split() for line in wanted]
            found = tagged(run, sentences)
            return [
                [" ".join(f"{word}/{label}({p:.2f})" for word, (label, p) in zip(words, labels, strict=True))]
                for words, labels in zip(sentences, found, strict=True)
            ]
        best = probabilities(run, [tuple(line.split("\t")) for line in wanted]).topk(min(self.nbest, len(run.labels)))
        return [
            [f"{run.labels[n]}\t{p:.4f}" for p, n in zip(ps, numbers, strict=True)]
            for ps, numbers in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]


@dataclass(frozen=True)
class Look:
    """Where a translator looks while it writes, and any other model while it reads: a heat map in the terminal, and a PNG file if asked.

    As in:  regard look runs/numbers "twenty-one" --png map.png
            regard look runs/book "Once upon a time" --layer 0 --head 2
    """

    folder: Positional[Path]
    """a run directory"""
    text: Positional[str]
    """what to read, or to translate (a tab between the two texts of a pair)"""
    layer: str | None = None
    """by number or name, * for any part of it; if not given, the source as the last layer of a translator sees it, else the last in the
    terminal and all in the picture"""
    head: int | None = None
    """by number; if not given, the mean of all in the terminal, and all in the picture"""
    beam: int = 1
    """of a translator: hypotheses kept in the search"""
    png: Path | None = None
    """write the picture to this file too"""

    def run(self) -> None:
        from .look import Maps
        from .models import Translator
        from .tasks import Run, alignment, looked, translation_looked

        _writable(self.png, ".png", "--png")
        run = Run.load(self.folder)
        layers = int(self.layer) if self.layer and self.layer.lstrip("-").isdecimal() else self.layer
        if not isinstance(run.model, Translator):
            maps = looked(run, self.text, layers)
        else:
            if self.layer is None and self.head is None:
                said, drawn = alignment(run.of(Translator), self.text, _beam(self.beam))
                maps = Maps([drawn])
            else:
                said, maps = translation_looked(run.of(Translator), self.text, _beam(self.beam), layers)
            print(said)
        for name in maps.layers if self.layer is not None else maps.layers[-1:]:
            maps.show(name, self.head)
        if self.png is not None:
            print(f"wrote {maps.save_png(self.png, head=self.head)}")


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
        from .models import Labeller

        model = import_checkpoint(self.folder, self.out)
        count = sum(parameter.numel() for parameter in model.parameters())
        if isinstance(model, Labeller):
            print(f"{model.body.facts.name} with labels, {count:,} parameters. wrote {self.out}")
            print(f'Next:  regard predict {self.out} "some text"')
            return
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

        for path, suffix, option in ((self.plot, ".png", "--plot"), (self.json, "", "--json")):
            _writable(path, suffix, option)  # before minutes are spent
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


def _writable(path: Path | None, suffix: str, option: str) -> None:
    if path is None or path == Path("-"):
        return
    if suffix and path.suffix.lower() != suffix:
        raise NotSupported(f"{option} {path}: the picture is a PNG file, so the name must end in {suffix}")
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


def settings_of(given: tuple[str, ...]) -> dict[str, Any]:
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
