"""Handwriting from text (Graves 2013): train on pen strokes, write any text as SVG and PNG, look at the window over the letters."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import quoteattr

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ..data.examples import Examples
from ..data.hershey import hershey
from ..data.strokes import MAX_POINTS, Writing, read_strokes
from ..decode import Written, write
from ..errors import BadFile, NotSupported
from ..files import read_json, write_json
from ..look import Indices, Layers, Maps, capture
from ..look.pen import END, draw_strokes, to_svg
from ..look.pictures import png
from ..models import Handwriting, Model
from ..runs import Run
from ..train import Loss, Metric, TrainOptions
from ._base import Dataset, Example, Prediction, Report, Task, check_range, require_parts
from ._options import DataOptions, Files
from .classification import one_file

FILE = "strokes.json"


@dataclass(frozen=True, kw_only=True)
class HandwritingOptions(DataOptions):
    """Which strokes."""

    data: Files = "hershey:scripts"
    """Folder of IAM-OnDB .xml files, an .npz or .npy file of (dx, dy, lifted) rows, or an embedded source such as hershey:futural,count=2000."""
    text: bool = True
    """Write a given text; --no-text: a prediction network, which knows none."""
    max_points: int = 1000
    """Longest line, in points; longer ones are left out."""
    batch_size: int = 32
    """Lines per batch."""

    def __post_init__(self) -> None:
        check_range(
            self,
            max_points=(2 <= self.max_points <= MAX_POINTS, f"2 to {MAX_POINTS}"),
            batch_size=(self.batch_size >= 1, "1 or more"),
        )


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """In which hand."""

    bias: float = 1.0
    """0: as varied as the training data; larger values write more carefully, and more alike."""
    prime: str | None = None
    """Write on in the hand of this line: data as --data takes it, of which the first line counts."""
    seed: int = 0
    """Random seed of the points that are drawn."""

    def __post_init__(self) -> None:
        check_range(self, bias=(0 <= self.bias <= 100, "0 to 100"))


@dataclass(frozen=True)
class StrokeProcessor:
    """Characters and the unit of length: points are divided by `scale`, so that offsets have a standard deviation of one."""

    characters: str
    scale: float

    @classmethod
    def of(cls, writings: Sequence[Writing], text: bool) -> StrokeProcessor:
        scale = float(np.concatenate([one.points[:, :2] for one in writings]).std())
        return cls("".join(sorted({letter for one in writings for letter in one.text})) if text else "", max(scale, 1e-6))

    def ids(self, text: str) -> list[int]:
        """Characters from 1; 0 stands for one that was not in the training data."""
        return [self.characters.find(letter) + 1 for letter in text]

    def points(self, writing: Writing) -> Tensor:
        return torch.from_numpy(writing.points / np.array([self.scale, self.scale, 1], dtype=np.float32))

    def save(self, folder: Path) -> None:
        write_json(folder / FILE, {"characters": self.characters, "scale": self.scale})

    @classmethod
    def load(cls, folder: Path) -> StrokeProcessor:
        plain = read_json(folder / FILE)
        if not isinstance(plain, dict) or not isinstance(plain.get("characters"), str) or not isinstance(plain.get("scale"), float):
            raise BadFile(f"{folder / FILE}: expected characters, a text, and scale, a number")
        if len(set(plain["characters"])) != len(plain["characters"]) or not 0 < plain["scale"] < 1e9:
            raise BadFile(
                f"{folder / FILE}: characters that repeat, or a scale of {plain['scale']}; expected each once, and a positive number"
            )
        return cls(plain["characters"], plain["scale"])


class HandwritingTask(Task[HandwritingOptions]):
    """Train a network that writes text by hand.

    As in:  regard train handwriting --out runs/hand
            regard train handwriting --data lineStrokes --out runs/iam --set width=400
            regard train handwriting --data sketches.npz --no-text --out runs/sketches
    """

    name = "handwriting"
    Options = HandwritingOptions
    PredictOptions = WriteOptions
    LookOptions = WriteOptions
    model_kind = Handwriting
    default_model = "handwriting"
    default_train = TrainOptions(steps=3000, lr=4e-3, schedule="cosine", average=0, evaluate_every=300)
    next_commands = 'regard predict {out} "any text"        regard look {out} "any text"        regard evaluate {out}'

    # -- training ------------------------------------------------------------------------------------------------------

    def read(self) -> Examples[Writing]:
        return read_strokes(one_file(self.options.data), longest=self.options.max_points, **self.options.parts())

    def make_processor(self, raw: Examples[Writing], base: StrokeProcessor | None) -> StrokeProcessor:
        processor = base or StrokeProcessor.of(raw.train, self.options.text)
        if self.options.text and not processor.characters:
            raise NotSupported(f"{self.options.data}: strokes without texts; train a prediction network with --no-text, or add the texts")
        return processor

    def load_processor(self, folder: Path) -> StrokeProcessor:
        return StrokeProcessor.load(folder)

    def encode(self, raw: Examples[Writing], processor: StrokeProcessor, cache: Path) -> Dataset[list[Writing]]:
        whole = hashlib.blake2b(digest_size=8)
        for part in (raw.train, raw.valid, raw.test):
            for one in part:
                whole.update(one.text.encode() + b"\n" + one.points.tobytes())
        return Dataset(raw.train, raw.valid, raw.test, whole.hexdigest(), str(raw.skipped) if len(raw.skipped) else "", "lines")

    def model_settings(self, model: str, processor: StrokeProcessor) -> dict[str, Any]:
        self.check_kind(model)
        return {"vocab_size": len(processor.characters)}

    def objective(self, dataset: Dataset[list[Writing]], processor: StrokeProcessor, model: Model, seed: int) -> HandwritingObjective:
        require_parts(self.options.data, len(dataset.train), len(dataset.valid), "lines")
        return HandwritingObjective(dataset.train, dataset.valid, processor, self.options.batch_size, seed)

    # -- use -----------------------------------------------------------------------------------------------------------

    def evaluate(self, run: Run[Handwriting], data: Files | None, options: Any) -> Report:
        writings = self.test_data(run, data)
        metrics = pen_loss(run.model, writings, run.processor, self.options.batch_size)
        return Report(metrics=metrics, notes=[f"{self.test_name(data)}: {len(writings):,} lines, loss in nats per point"])

    def predict(self, run: Run[Handwriting], inputs: Sequence[str], options: WriteOptions) -> list[Prediction]:
        """Each by itself, so that the same input and seed give the same strokes."""
        return [_prediction(text, self.write(run, text, options)) for text in inputs]

    def write(self, run: Run[Handwriting], text: str, options: WriteOptions) -> Written:
        """One text in strokes. A run that knows no text draws something for any name."""
        processor: StrokeProcessor = run.processor
        seed, ids, head = options.seed, list[int](), list[int]()
        if processor.characters:
            if unknown := sorted(set(text) - set(processor.characters)):
                raise NotSupported(
                    f"{text!r}: the run has not learned {' '.join(map(repr, unknown))}; it can write {processor.characters!r}"
                )
            ids = processor.ids(text)
        else:
            seed = int.from_bytes(hashlib.blake2b(f"{seed}/{text}".encode(), digest_size=6).digest())
        prime = None
        if options.prime is not None:
            first = first_writing(options.prime)
            head = processor.ids(f"{first.text} ") if processor.characters else []
            prime = (head, processor.points(first))
        (written,) = write(run.model, [ids], bias=options.bias, seed=seed, prime=prime)
        return written

    def attention_maps(self, run: Run[Handwriting], text: str, layers: Layers, heads: Indices, options: WriteOptions) -> tuple[str, Maps]:
        """The window's weights over the characters, a row per pen point that it writes."""
        if run.model.window is None:
            raise NotSupported(f"{run.folder}: a prediction network has no window over a text; train one without --no-text")
        written = self.write(run, text, options)
        text_BM = torch.tensor([[*run.processor.ids(text), 0]])
        with torch.no_grad(), capture(run.model, layers, heads) as maps:
            run.model(written.points_L3[None], text_BM)
        joined = Maps(maps.join_calls(layer) for layer in maps.layers)
        labels = [f"{n}{'↑' if lifted > 0.5 else ''}" for n, lifted in enumerate(written.points_L3[:, 2].tolist())]
        return _summary(text, written), joined.label(queries=labels, keys=[*text, END])

    @classmethod
    def example(cls, folder: Path) -> Example:
        data = folder / "lines"
        data.mkdir()
        for n, (text, points, _) in enumerate(hershey("futural,count=20,words=1,letters=3")):
            (data / f"line-{n:02}.xml").write_text(to_iam(Writing(text, points)), encoding="utf-8")

        def broken(copy: Path) -> None:
            (copy / "line-99.xml").write_text("<WhiteboardCaptureSession><Stroke><Point x='1'/></Stroke>", encoding="utf-8")

        options = HandwritingOptions(data=str(data), shares=(0.2, 0.2), batch_size=4)
        settings = {"width": 8, "window_components": 2, "components": 2, "max_length": 60}
        return Example(options=options, settings=settings, input=text, broken=broken)


class PenBatch(NamedTuple):
    """Lines of one batch: points_BL3, text_BM with 0 after each text, and which of the points after the first are there."""

    points_BL3: Tensor
    text_BM: Tensor
    there_BL: Tensor


class HandwritingObjective:
    """What the training loop asks: log-likelihood of each point after those before it."""

    unit = "points"
    metric = Metric("loss", higher=False)

    def __init__(self, train: list[Writing], valid: list[Writing], processor: StrokeProcessor, batch_size: int, seed: int):
        self.train, self.valid, self.processor, self.size, self.seed = train, valid, processor, batch_size, seed

    def batches(self, epoch: int) -> Sequence[list[int]]:
        """Lines of similar length together, in another order each epoch."""
        generator = random.Random(f"{self.seed}/{epoch}")
        order = sorted(range(len(self.train)), key=lambda n: len(self.train[n].points) * generator.uniform(1, 1.2))
        return generator.sample(groups := [order[at : at + self.size] for at in range(0, len(order), self.size)], len(groups))

    def batch(self, rows: list[int]) -> PenBatch:
        return collate([self.train[n] for n in rows], self.processor)

    def loss(self, model: nn.Module, batch: PenBatch) -> Loss:
        total = -(model(batch.points_BL3[:, :-1], batch.text_BM).log_prob(batch.points_BL3[:, 1:]) * batch.there_BL).sum()
        return Loss(total, int(batch.there_BL.sum()))

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        assert isinstance(model, Handwriting)
        return pen_loss(model, self.valid, self.processor, self.size)


@torch.no_grad()
def pen_loss(model: Handwriting, writings: Sequence[Writing], processor: StrokeProcessor, batch_size: int) -> dict[str, float]:
    """Negative log-likelihood in nats per point, and per line as the paper has it; in units of the processor's scale."""
    total, count = 0.0, 0
    order = sorted(writings, key=lambda one: len(one.points))
    for at in range(0, len(order), batch_size):
        batch = collate(order[at : at + batch_size], processor)
        nll_BL = -model(batch.points_BL3[:, :-1], batch.text_BM).log_prob(batch.points_BL3[:, 1:])
        total, count = total + float((nll_BL * batch.there_BL).sum()), count + int(batch.there_BL.sum())
    return {"loss": total / count, "nats_per_line": total / len(order)}


def collate(writings: Sequence[Writing], processor: StrokeProcessor) -> PenBatch:
    points = [processor.points(one) for one in writings]
    n_B = torch.tensor([len(one) for one in points])
    points_BL3 = pad_sequence(points, batch_first=True)
    text_BM = pad_sequence([torch.tensor([*processor.ids(one.text), 0]) for one in writings], batch_first=True)
    return PenBatch(points_BL3, text_BM, torch.arange(points_BL3.shape[1] - 1) < n_B[:, None] - 1)


def first_writing(data: str) -> Writing:
    """The first line of some data, to prime with; of an embedded source without a count, only that one is made."""
    data = f"{data},count=1" if data.startswith("hershey:") and "count=" not in data else data
    raw = read_strokes(data, shares=(0.0, 0.0))
    return raw.train[0]


def to_iam(writing: Writing) -> str:
    """A line as an .xml file like those of IAM-OnDB, with its text."""
    at = writing.points[:, :2].cumsum(0)
    strokes = np.split(at, np.flatnonzero(writing.points[:-1, 2]) + 1)
    points = ["".join(f'<Point x="{x:.3f}" y="{y:.3f}"/>' for x, y in stroke) for stroke in strokes]
    body = "".join(f"<Stroke>{each}</Stroke>" for each in points)
    text = f"<Transcription><TextLine text={quoteattr(writing.text)}/></Transcription>"
    return f"<WhiteboardCaptureSession>{text}<StrokeSet>{body}</StrokeSet></WhiteboardCaptureSession>\n"


def _summary(text: str, written: Written) -> str:
    strokes = int((written.points_L3[:, 2] > 0.5).sum())
    unfinished = "" if written.complete or not written.weights_LM.shape[1] else "; the text was not finished"
    return f"{text}: {len(written.points_L3)} points, {strokes} strokes{unfinished}"


def _prediction(text: str, written: Written) -> Prediction:
    points, weights = written.points_L3.numpy(), written.weights_LM.numpy()
    line = np.round(points.astype(np.float64), 3).tolist()
    values = {"points": len(points), "strokes": int((points[:, 2] > 0.5).sum()), "complete": written.complete, "line": line}
    pictures = {".svg": to_svg(points, text, weights).encode(), ".png": png(draw_strokes(points, text, weights))}
    return Prediction(_summary(text, written), values, pictures)
