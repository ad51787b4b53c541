"""`regard demo`: two translators learn English → German number words; then we see how they align, and how `einundzwanzig` crosses.

English says twenty-one, German one-and-twenty: a translator that looks at the source while it writes has to look ahead for the
ones and back again for the tens. The Transformer (2017) and RNNsearch (2014) both find that out by themselves.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from shlex import quote
from typing import Any

from .._extras import extra
from ..look import Map, Maps
from ..metrics.bleu import TranslationScore, score_translations
from ..models import Translator
from ..tasks import Translation, TranslationOptions, alignment, load_run, train, translations
from ..train import TrainOptions, read_metrics

OPTIONS = TranslationOptions(data="numbers:en-de", vocab_size=400, batch_tokens=2048)
MODELS: dict[str, dict[str, Any]] = {
    "transformer": {"width": 128, "heads": 4, "depth": (2, 2), "hidden": 256},
    "rnnsearch": {"embedding": 96, "width": 128, "alignment": 96, "maxout": 64},
}
SHOWN = "four thousand, three hundred and twenty-one"
Pairs = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Learned:
    """Result of one model."""

    name: str
    steps: int
    seconds: float
    score: TranslationScore
    samples: list[tuple[str, str, str]]  # source, translation, reference
    text: str
    drawn: Map
    losses: list[tuple[int, float]]


def run_demo(out: Path, *, steps: int, seed: int = 0, resume: bool = False) -> dict[str, float]:
    """Train both, print how good they are on unseen numbers, and write report.html; returns the exact match of each."""
    out.mkdir(parents=True, exist_ok=True)
    pairs = Translation(OPTIONS).read()
    print(f"English → German number words, {pairs}.\n")
    learned = [_learn(name, settings, pairs.test, out / name, steps, seed, resume) for name, settings in MODELS.items()]
    for one in learned:
        print(
            f"\n{one.name}: {one.score.exact_match:.1%} of {len(pairs.test):,} unseen numbers right, chrF {one.score.chrf:.1f} "
            f"({one.steps} steps, {one.seconds:.0f} s)"
        )
        for source, found, right in one.samples:
            print(f"  {source} → {found}{'' if found == right else f'   (right: {right})'}")
    best = max(learned, key=lambda one: one.score.exact_match)
    print(f"\nWhich source tokens {best.name} attended to while it wrote {best.text}:\n")
    Maps([best.drawn]).show()
    report = _report(out, learned)
    print(f"\nBoth with curves and pictures: {report}")
    print(
        f'Next:  regard predict {quote(str(out / "transformer"))} "seventy-two"        regard look {quote(str(out / "rnnsearch"))} "ninety-nine"        regard list'
    )
    return {one.name: one.score.exact_match for one in learned}


def _learn(name: str, settings: dict[str, Any], test: Pairs, out: Path, steps: int, seed: int, resume: bool) -> Learned:
    options = TrainOptions(steps=steps, lr=3e-3, warmup_steps=150, log_every=25, evaluate_every=250, average=3, seed=seed)
    print(f"Training {name} for {steps} steps …")
    resume = resume and (out / "config.json").exists()
    if not resume:
        shutil.rmtree(out, ignore_errors=True)  # what an earlier demo left
    done = train(Translation, OPTIONS, options, out, model=name, settings=settings, resume=resume)
    run = load_run(out, Translator)
    sources, right = [s for s, _ in test], [t for _, t in test]
    found = [text for text, _ in translations(run, sources)]
    text, drawn = alignment(run, SHOWN)
    picked = range(0, len(sources), max(1, len(sources) // 3))
    samples = [(sources[n], found[n], right[n]) for n in picked][:3]
    losses = [(event["step"], event["loss"]) for event in read_metrics(out, "train")]
    return Learned(name, done.steps, done.seconds, score_translations(found, right, sources), samples, text, drawn, losses)


def _report(out: Path, learned: list[Learned]) -> Path:
    with extra("look"):
        from matplotlib.figure import Figure

    from ..recipes._engine.report import image, write_page

    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axis = figure.subplots()
    for one in learned:
        axis.plot(*zip(*one.losses, strict=True), label=one.name) if one.losses else None
    axis.set(xlabel="step", ylabel="loss in nats per token (smoothed)", title="Learning curves")
    axis.legend(frameon=False)
    figure.savefig(out / "curves.png", dpi=140)
    parts = [
        "<table><tr><th>model<th>exact match<th>chrF<th>steps<th>seconds",
        *(
            f"<tr><td>{one.name}<td class=number>{one.score.exact_match:.1%}<td class=number>{one.score.chrf:.1f}"
            f"<td class=number>{one.steps}<td class=number>{one.seconds:.0f}"
            for one in learned
        ),
        "</table>",
        image(out / "curves.png"),
    ]
    for one in learned:
        picture = Maps([one.drawn]).save_png(out / f"{one.name}.png")
        parts += [
            f"<h2>{one.name}</h2><p>{escape(SHOWN)} → <b>{escape(one.text)}</b>",
            image(picture),
            "<table><tr><th>source<th>translation",
        ]
        for source, found, right in one.samples:
            note = "" if found == right else f" (right: {escape(right)})"
            parts += [f"<tr><td>{escape(source)}<td class={'held' if found == right else 'failed'}>{escape(found)}{note}"]
        parts += ["</table>"]
    return write_page(out / "report.html", "regard demo", "Two translators, English → German number words", parts)
