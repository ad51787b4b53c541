"""Handwriting from text (Graves 2013): train on pen strokes, write any text as SVG and PNG, look at the window over the letters."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..data import Splits
from ..data.batches import Numbers
from ..data.strokes import Writing, read_strokes
from ..decode import Written, write
from ..errors import NotSupported
from ..look import Indices, Layers, Maps, capture
from ..look.pictures import png
from ..models import Handwriting, device_of
from ..runs import Run
from ..train import Loss
from .handwriting_pictures import END, draw_strokes, to_svg
from .options.handwriting import HandwritingOptions, HandwritingTaskDeclaration, WriteOptions
from .stroke_processor import PenBatch, StrokeProcessor, collate
from .task import Prediction, Task


class HandwritingTask(HandwritingTaskDeclaration, Task[HandwritingOptions]):
    unit = "lines"
    loss_unit = "points"
    Processor = StrokeProcessor
    model_kind = Handwriting
    next_commands = 'regard predict {out} "any text"        regard look {out} "any text"        regard evaluate {out}'

    def read(self) -> Splits[list[Writing]]:
        o = self.options
        files = {name: o.one_file(name) for name in ("valid", "test")}
        return read_strokes(str(o.one_file("data")), longest=o.max_points, **o.parts() | files)

    def make_processor(self, data: Splits[list[Writing]], base: StrokeProcessor | None) -> StrokeProcessor:
        processor = base or StrokeProcessor.of(data.train, self.options.text)
        if self.options.text and not processor.characters:
            raise NotSupported(f"{self.options.data}: strokes without texts; train a prediction network with --no-text, or add the texts")
        return processor

    def settings(self, model: str, data: Splits[Any]) -> dict[str, Any]:
        return {"vocab_size": len(self.processor.characters)}

    def parse(self, text: str) -> str:
        return text

    def input_text(self, example: Writing) -> str:
        return example.text

    def lengths(self, rows: Sequence[Writing]) -> Numbers:
        return np.array([len(one.points) for one in rows], dtype=np.int64)

    def batch(self, item: Sequence[Writing], generator: torch.Generator | None) -> PenBatch:
        return collate(item, self.processor)

    def loss(self, model: Handwriting, batch: PenBatch) -> Loss:
        """Negative log-likelihood of each point after those before it, in nats, in units of the processor's scale."""
        nll_BL = -model(batch.points_BL3[:, :-1], batch.text_BM).log_prob(batch.points_BL3[:, 1:])
        return Loss((nll_BL * batch.there_BL).sum(), batch.points)

    def metrics(self, sums: Mapping[str, float], answers: Sequence[Any], examples: Sequence[Writing]) -> dict[str, float]:
        """Nats per point, and per line as the paper has it."""
        return {"loss": sums["loss"] / sums["count"], "nats_per_line": sums["loss"] / len(examples)}

    # -- use -----------------------------------------------------------------------------------------------------------

    def predict(self, run: Run[Handwriting], inputs: Sequence[str], options: WriteOptions) -> list[Prediction]:
        """Strokes of each text, written by itself, so that the same input and seed give the same strokes."""
        return [_prediction(text, self.write(run, text, options)) for text in inputs]

    def write(self, run: Run[Handwriting], text: str, options: WriteOptions) -> Written:
        """Strokes of one text. A run that knows no text draws something for any name.

        Args:
            run: run of this task.
            text: characters to write.
            options: bias, seed, and writing to prime with.
        """
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
        """Weights of the window over the characters, a row per pen point that it writes."""
        if run.model.window is None:
            raise NotSupported(f"{run.folder}: a prediction network has no window over a text; train one without --no-text")
        written, device = self.write(run, text, options), device_of(run.model)
        text_BM = torch.tensor([[*run.processor.ids(text), 0]], device=device)
        with torch.no_grad(), capture(run.model, layers, heads) as maps:
            run.model(written.points_L3[None].to(device), text_BM)
        joined = Maps(maps.join_calls(layer) for layer in maps.layers)
        labels = [f"{n}{'↑' if lifted > 0.5 else ''}" for n, lifted in enumerate(written.points_L3[:, 2].tolist())]
        return _summary(text, written), joined.label(queries=labels, keys=[*text, END])


def first_writing(data: str) -> Writing:
    """The first line of some data, to prime with; of an embedded source without a count, only that one is made."""
    data = f"{data},count=1" if data.startswith("hershey:") and "count=" not in data else data
    raw = read_strokes(data, shares=(0.0, 0.0))
    return raw.train[0]


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
