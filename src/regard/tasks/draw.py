"""Drawing images step by step (DRAW, Gregor 2015): train on any images, draw new ones, see where the network reads and writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.images import Pixels
from ..data.labelled_images import Part
from ..data.splits import Splits
from ..errors import NotSupported, UnknownName
from ..look import Grid, Indices, Layers, Map, Maps
from ..machine import own_chance
from ..models import Draw, Drawing, device_of
from ..models.draw import bernoulli_nll
from ..models.filter_bank import Window
from ..runs import Run
from ..train import Loss
from .draw_pictures import Film, Frame, animation, strip
from .image_processor import ImageProcessor
from .image_task import ImageTask, Picture, channels_of
from .options import NoOptions
from .options.draw import DrawOptions, DrawTaskDeclaration, RedrawOptions
from .task import Prediction

SMALLEST = 24  # pixels: smaller images are drawn at this size, if none is given


class DrawTask(DrawTaskDeclaration, ImageTask[DrawOptions]):
    model_kind = Draw
    next_commands = "regard predict {out} image.png        regard look {out} image.png        regard evaluate {out}"

    def size(self, part: Part) -> tuple[int, int]:
        height, width = (min(max(side, SMALLEST), 64) for side in super().size(part))
        return self.options.size or (height, width)

    def make_processor(self, data: Splits[Part], base: ImageProcessor | None) -> ImageProcessor:
        if base is not None:
            return base
        channels = channels_of(data.train)
        return ImageProcessor(size=self.size(data.train), channels=channels, mean=(0.0,) * channels, std=(1.0,) * channels)

    def settings(self, model: str, data: Splits[Any]) -> dict[str, Any]:
        return {"image_size": self.processor.size, "channels": self.processor.channels}

    def batch(self, item: Sequence[Picture], generator: torch.Generator | None) -> Tensor:
        """x_BCHW from 0 to 1."""
        x_BCHW: Tensor = self.processor.encode(np.stack([one.pixels for one in item]))
        return (x_BCHW > 0.5).to(x_BCHW.dtype) if self.options.binary else x_BCHW

    def loss(self, model: Draw, x_BCHW: Tensor) -> Loss:
        """Bound on −log p of each image, with one sample of z: what the canvas leaves open, and what z tells."""
        drawing = model(x_BCHW)
        nll, kl = bernoulli_nll(x_BCHW, drawing.canvas_BTCHW[:, -1]).sum(), drawing.kl_BT.sum()
        return Loss(nll + kl, len(x_BCHW), {"reconstruction": nll.detach(), "kl": kl.detach()})

    # -- use -----------------------------------------------------------------------------------------------------------

    def predict(self, run: Run[Draw], inputs: Sequence[str], options: RedrawOptions) -> list[Prediction]:
        """Each image as it is drawn again, and new ones beside it."""
        return [self._redraw(run, path, options) for path in inputs]

    @torch.no_grad()
    def _redraw(self, run: Run[Draw], path: str, options: RedrawOptions) -> Prediction:
        x_1CHW = self.batch([self.parse(path)], None)
        device = device_of(run.model)
        with _seeded(options.seed, device):
            drawing = run.model(x_1CHW.to(device))
        nll, kl = float(bernoulli_nll(x_1CHW, drawing.canvas_BTCHW[:, -1].cpu())), float(drawing.kl_BT.sum())
        films = films_of(run, drawing, run.processor.decode(x_1CHW[0]))
        films += films_of(run, run.model.sample(options.samples, torch.Generator().manual_seed(options.seed))) if options.samples else []
        words = f"{nll + kl:.1f} nats: {kl:.1f} to say what to draw, {nll:.1f} for what the drawing lacks"
        return Prediction(words, {"loss": nll + kl, "kl": kl, "reconstruction": nll}, {".png": strip(films), ".gif": animation(films)})

    @torch.no_grad()
    def attention_maps(self, run: Run[Draw], text: str, layers: Layers, heads: Indices, options: NoOptions) -> tuple[str, Maps]:
        """Weight of each pixel in what is read, and in what is written, at each step."""
        if run.model.config.attention == "none":
            raise NotSupported(
                f"{run.folder}: the model reads and writes whole images, so there is no window to show; train with attention"
            )
        picture, device = self.parse(text), device_of(run.model)
        with _seeded(0, device):
            drawing = run.model(self.batch([picture], None).to(device))
        return "", Maps((window_map(run.model, name, drawing) for name in _chosen(layers)), image=picture.pixels)


def window_map(model: Draw, name: str, drawing: Drawing) -> Map:
    """Pixels that the windows called `name` cover, a row per step."""
    windows_T5 = (drawing.read_BT5 if name == "read" else drawing.write_BT5)[0]
    (rows, columns), count = model.config.image_size, model.config.read_size if name == "read" else model.config.write_size
    weights_TM = Window(*windows_T5.unbind(-1)).footprint(count, (rows, columns)).flatten(1)
    steps = [f"{name} {t + 1}" for t in range(len(weights_TM))]
    pixels = [f"{y},{x}" for y in range(rows) for x in range(columns)]
    return Map.of_matrix(weights_TM, name, "filter_bank", steps, pixels, Grid(rows, columns), head=0)


def films_of(run: Run[Draw], drawing: Drawing, target: Pixels | None = None) -> list[Film]:
    """Canvas after each step, with its windows."""
    c, films = run.model.config, []
    for canvas_TCHW, read_T5, write_T5 in zip(
        *(x.cpu() for x in (drawing.canvas_BTCHW.sigmoid(), drawing.read_BT5, drawing.write_BT5)), strict=True
    ):
        pixels = np.stack([run.processor.decode(x_CHW) for x_CHW in canvas_TCHW])
        films.append(Film(pixels, _frames(read_T5, c.read_size), _frames(write_T5, c.write_size), target))
    return films


def _frames(windows_T5: Tensor, count: int) -> list[Frame | None]:
    if not windows_T5.shape[1]:
        return [None] * len(windows_T5)
    found: list[Frame | None] = []
    for x, y, stride, std, _ in windows_T5.tolist():
        found.append(Frame(x, y, count / 2 * stride, std))
    return found


def _chosen(layers: Layers) -> list[str]:
    names = ["read", "write"]
    if layers is None or layers == "*":
        return names
    chosen = [layers] if isinstance(layers, str | int) else list(filter(layers, names)) if callable(layers) else list(layers)
    for one in chosen:
        if one not in (*names, 0, 1, -1, -2):
            raise UnknownName("window of draw", str(one), names)
    return [one if isinstance(one, str) else names[one] for one in chosen]


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers of its own, the same each time."""
    with own_chance(device):
        torch.manual_seed(seed)
        yield
