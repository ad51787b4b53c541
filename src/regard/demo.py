"""Two translators learn English → German number words; then we see how they align, and how `einundzwanzig` crosses.

English says twenty-one, German one-and-twenty: a translator that looks at the source while it writes has to look ahead for the
ones and back again for the tens. The Transformer (2017) and RNNsearch (2014) both find that out by themselves.
"""

from __future__ import annotations

import base64
import json
import shutil
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from .data import Parallel
from .look import Map, Maps
from .models import Translator
from .recipes.report import STYLE
from .tasks import Run, Score, TranslationConfig, alignment, score, train_translator, translations
from .train import AdamW, Budget, Every, InverseSquareRoot, TrainConfig

CONFIG = TranslationConfig(data="numbers:en-de", vocab=400, budget=2048)
MODELS: dict[str, dict[str, Any]] = {
    "transformer": {"width": 128, "heads": 4, "depth": (2, 2), "hidden": 256},
    "rnnsearch": {"embedding": 96, "width": 128, "alignment": 96, "maxout": 64},
}
SHOWN = "four thousand, three hundred and twenty-one"


@dataclass(frozen=True)
class Learned:
    """What became of one model."""

    name: str
    steps: int
    seconds: float
    score: Score
    samples: list[tuple[str, str, str]]  # source, translation, right
    text: str
    drawn: Map
    losses: list[tuple[int, float]]


def demo(out: Path = Path("demo"), *, seconds: float = 50.0, seed: int = 0, resume: bool = False) -> dict[str, float]:
    """Train both, say how good they are on numbers never seen, and write report.html; returns the exact match of each."""
    out.mkdir(parents=True, exist_ok=True)
    pairs = CONFIG.read()
    print(f"English → German number words, {pairs}.\n")
    learned = [_learn(name, settings, pairs, out / name, seconds, seed, resume) for name, settings in MODELS.items()]
    for one in learned:
        print(
            f"\n{one.name}: {one.score.exact:.1%} of {len(pairs.test):,} unseen numbers right, chrF {one.score.chrf:.1f} ({one.steps} steps, {one.seconds:.0f} s)"
        )
        for source, found, right in one.samples:
            print(f"  {source} → {found}{'' if found == right else f'   (right: {right})'}")
    best = max(learned, key=lambda one: one.score.exact)
    print(f"\nWhere {best.name} looked while it wrote {best.text}:\n")
    Maps([best.drawn]).show()
    report = _report(out, learned)
    print(f"\nBoth with curves and pictures: {report}")
    print(
        f'Next:  regard predict {out / "transformer"} "seventy-two"        regard look {out / "rnnsearch"} "ninety-nine"        regard list'
    )
    return {one.name: one.score.exact for one in learned}


def _learn(name: str, settings: dict[str, Any], pairs: Parallel, out: Path, seconds: float, seed: int, resume: bool) -> Learned:
    how = TrainConfig(
        budget=Budget(minutes=seconds / 60),
        optimizer=AdamW(betas=(0.9, 0.98)),
        schedule=InverseSquareRoot(peak=3e-3, warmup=150),
        every=Every(log=25, evaluate=250),
        average=3,
        seed=seed,
    )
    print(f"Training {name} for {seconds:.0f} s …")
    if not resume and (out / "config.json").exists():  # what an earlier demo left; the next one begins anew
        shutil.rmtree(out)
    done = train_translator(out, CONFIG, how, name, settings, resume=resume)
    run = Run.load(out, Translator)
    sources, right = [s for s, _ in pairs.test], [t for _, t in pairs.test]
    found = [text for text, _ in translations(run.model, run.tokenizers, sources)]
    text, drawn = alignment(run, SHOWN)
    picked = range(0, len(sources), max(1, len(sources) // 3))
    return Learned(
        name,
        done.steps,
        done.seconds,
        score(found, right, sources),
        [(sources[n], found[n], right[n]) for n in picked][:3],
        text,
        drawn,
        _losses(out),
    )


def _losses(out: Path) -> list[tuple[int, float]]:
    events = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [(event["step"], event["loss"]) for event in events if event.get("event") == "train"]


def _report(out: Path, learned: list[Learned]) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axis = figure.subplots()
    for one in learned:
        axis.plot(*zip(*one.losses, strict=True), label=one.name) if one.losses else None
    axis.set(xlabel="step", ylabel="loss in nats a token (smoothed)", title="Learning curves")
    axis.legend(frameon=False)
    figure.savefig(out / "curves.png", dpi=140)
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'><title>regard demo</title>",
        f"<style>{STYLE}</style><h1>Two translators, English → German number words</h1>",
        "<table><tr><th>model<th>exact match<th>chrF<th>steps<th>seconds",
        *(
            f"<tr><td>{one.name}<td class=number>{one.score.exact:.1%}<td class=number>{one.score.chrf:.1f}"
            f"<td class=number>{one.steps}<td class=number>{one.seconds:.0f}"
            for one in learned
        ),
        "</table>",
        _image(out / "curves.png"),
    ]
    for one in learned:
        picture = Maps([one.drawn]).save_png(out / f"{one.name}.png")
        parts += [
            f"<h2>{one.name}</h2><p>{escape(SHOWN)} → <b>{escape(one.text)}</b>",
            _image(picture),
            "<table><tr><th>source<th>translation",
        ]
        for source, found, right in one.samples:
            note = "" if found == right else f" (right: {escape(right)})"
            parts += [f"<tr><td>{escape(source)}<td class={'held' if found == right else 'failed'}>{escape(found)}{note}"]
        parts += ["</table>"]
    path = out / "report.html"
    path.write_text("\n".join([*parts, "</html>"]), encoding="utf-8")
    return path


def _image(path: Path) -> str:
    return f"<img alt='{escape(path.stem)}' src='data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}'>"
