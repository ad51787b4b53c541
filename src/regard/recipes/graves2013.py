"""The first soft attention: a network that writes by hand follows a text through a window that slides over its letters.

Paper: Graves 2013, "Generating sequences with recurrent neural networks", arXiv:1308.0850, section 5.
Run:   regard run graves2013        Takes: about 35 minutes on one CPU core; three seeds of two networks, equal steps.

Lines of one or two words of random letters in a connected script, each by another writer. What a network writes is read by a recogniser
that was trained on such strokes; texts and writers of the test are in no training line. The ablation has no window: it is the paper's
prediction network, which writes letters but not those it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .._extras import extra
from ..data.hershey import HersheyLine, hershey
from ..data.strokes import Writing
from ..decode import write
from ..look import capture
from ..models import Handwriting
from ..runs import Run
from ..tasks import HandwritingOptions, HandwritingTask, load_run
from ..tasks.handwriting_pictures import Points, curves, pen_path
from ..train import TrainOptions
from ._engine import Claim, Recipe, RecipeFacts, Reevaluation, Results, at_least, below, measured, validation_curves, variant_folder
from ._engine.recogniser import RecogniserVariant, reading_accuracy
from ._engine.variants import short_training, train_run

DATA = "hershey:scripts"
TEST = "scripts,count=400,words=1,letters=8,seed=1"
SHOWN = ("attention", "quick", "lazy")
TRAIN = TrainOptions(steps=1700, lr=4e-3, schedule="cosine", average=0, evaluate_every=340, log_every=50)
POINTS = 13.7  # per character, the mean of the data: how long a network writes that cannot know when it has finished
RECOGNISER = RecogniserVariant(data=f"{DATA},seed=2", train=short_training(400, 4e-3, "adamw"))


def test_lines() -> list[HersheyLine]:
    return hershey(TEST)


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """Texts that a trained run writes with some bias: the legible share, and the difference of four writings of one text."""

    bias: float

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        run = load_run(out, Handwriting)
        recogniser, units = RECOGNISER.load(variant_folder(out.parents[1], "recogniser", seed))
        texts = [one.text for one in test_lines()]
        lines = write_all(run, texts, self.bias, seed)
        again = write_all(run, [text for text in texts[:15] for _ in range(4)], self.bias, seed + 1)
        lengths_TR = torch.tensor([_length(one.points) for one in again]).view(-1, 4)
        return {
            "accuracy": reading_accuracy(recogniser, units, lines),
            "accuracy, other texts": reading_accuracy(
                recogniser, units, [Writing(a, b.points) for a, b in zip(texts, lines[1:], strict=False)]
            ),
            "diversity": float((lengths_TR.std(1) / lengths_TR.mean(1)).mean()),
        }


def write_all(run: Run[Handwriting], texts: Sequence[str], bias: float, seed: int) -> list[Writing]:
    """Each text as this run writes it, in the units of the data."""
    written = write(
        run.model, [run.processor.ids(text) for text in texts], bias=bias, seed=seed, max_points=int(3 * POINTS * max(map(len, texts)))
    )
    lines = []
    for text, one in zip(texts, written, strict=True):
        points_L3 = one.points_L3 if run.model.window is not None else one.points_L3[: round(POINTS * len(text))]
        lines.append(Writing(text, (points_L3 * torch.tensor([run.processor.scale, run.processor.scale, 1.0])).numpy()))
    return lines


def _length(points: Points) -> float:
    """Length of the pen's way."""
    return float(((points[1:, :2] ** 2).sum(1) ** 0.5).sum())


@dataclass(frozen=True, kw_only=True)
class WritingVariant:
    """A network trained to write; with a window, also how often the letter with the largest weight is the one being written."""

    options: HandwritingOptions
    settings: Mapping[str, Any]
    train: TrainOptions = TRAIN
    bias: float = 1.0

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        run, training = train_run(HandwritingTask, self.options, self.train.replace(seed=seed), out, settings=self.settings)
        found = HandwritingTask(self.options).evaluate(run, None, None).metrics
        aligned = {} if run.model.window is None else {"alignment": alignment(run)}
        return {**Sampled(bias=self.bias)(seed, out), **found, **aligned, **training}


@torch.no_grad()
def alignment(run: Run[Handwriting]) -> float:
    """The share of points of real lines, never trained on, at which the window is on the letter that the point belongs to."""
    right, count = 0, 0
    for line in test_lines()[:30]:
        points_L3, text_M = run.processor.points(Writing(line.text, line.points)), torch.tensor([*run.processor.ids(line.text), 0])
        with capture(run.model) as maps:
            run.model(points_L3[None, :-1], text_M[None])
        right += int((maps.join_calls("window").argmax()[0, 0] == torch.from_numpy(line.letters[1:])).sum())
        count += len(points_L3) - 1
    return right / count


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """Three words by each variant, with the first seed; above them lines of the data."""

    variants: Mapping[str, tuple[str, float]]  # title: whose run, bias

    def __call__(self, results: Results, out: Path) -> Path:
        with extra("look"):
            from matplotlib.figure import Figure

        rows: dict[str, list[Points]] = {"data": [one.points for one in test_lines()[: len(SHOWN)]]}
        for title, (variant, bias) in self.variants.items():
            run = load_run(variant_folder(out, variant, results.seeds[0]), Handwriting)
            rows[title] = [one.points for one in write_all(run, SHOWN, bias, 3)]
        figure = Figure(figsize=(10, 1.2 * len(rows)), layout="constrained")
        axes = figure.subplots(len(rows), len(SHOWN), squeeze=False)
        for line, (title, drawn) in zip(axes, rows.items(), strict=True):
            for n, (axis, points) in enumerate(zip(line, drawn, strict=True)):
                for stroke in pen_path(points):
                    axis.plot(*curves(stroke).reshape(-1, 2).T, "-", color="#1a1a2e", linewidth=1.2, solid_capstyle="round")
                axis.set(aspect="equal", xticks=(), yticks=(), ylabel=title if n == 0 else "")
                axis.yaxis.label.set(rotation=0, ha="right", va="center", fontsize=9)
                axis.invert_yaxis()
                axis.spines[:].set_visible(False)
                axis.set_title(test_lines()[n].text if title == "data" else SHOWN[n], fontsize=8, color="0.5")
        figure.savefig(out / "handwriting.png", dpi=120)
        return out / "handwriting.png"


SIZES = {"width": 128}
recipe = Recipe(
    facts=RecipeFacts("graves2013", 2013, "Generating sequences with recurrent neural networks", "arXiv:1308.0850", "about 35 minutes"),
    question="Does a window over the text make a network write that text?",
    variants={
        "recogniser": RECOGNISER,
        "window": WritingVariant(options=HandwritingOptions(data=DATA), settings=SIZES),
        "window, bias 0": Reevaluation("window", Sampled(bias=0.0)),
        "window, bias 3": Reevaluation("window", Sampled(bias=3.0)),
        "no window": WritingVariant(options=HandwritingOptions(data=DATA, text=False), settings=SIZES),
    },
    claims=(
        at_least("the recogniser reads at least 95 % of the characters of real lines", 0.95, "recogniser", kind="control"),
        at_least("it reads at least 90 % of what the network with a window writes", 0.9, "window"),
        Claim(
            "without the window the text is not followed: the network does no better than on texts that it was not asked for, up to 5 points",
            measured("no window") - measured("no window", "accuracy, other texts") <= 0.05,
            measured("no window") <= 0.3,
            kind="control",
        ),
        below("knowing the text lowers the loss by at least 0.3 nats per point", ("window", "loss"), ("no window", "loss"), by=0.3),
        at_least("the window is on the letter being written at 85 % of the points", 0.85, ("window", "alignment")),
        Claim(
            "bias trades diversity for legibility",
            measured("window") - measured("window, bias 0") >= 0,
            measured("window", "diversity") - measured("window, bias 0", "diversity") <= 0,
            source="section 5.3",
        ),
    ),
    pictures=(
        Sheet(variants={"bias 0": ("window", 0.0), "bias 1": ("window", 1.0), "bias 3": ("window", 3.0), "no window": ("no window", 1.0)}),
        validation_curves("loss"),
    ),
)
