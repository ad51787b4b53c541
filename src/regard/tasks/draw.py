"""Drawing images step by step (DRAW, Gregor 2015): train on any images, draw new ones, see where the network reads and writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ..data.images import Channels, Pixels
from ..data.labelled_images import DIGITS, LabelledImages, load_pixels, read_labelled_images
from ..errors import NotSupported, UnknownName
from ..look import Grid, Indices, Layers, Map, Maps
from ..look.canvases import Film, Frame, animation, strip
from ..models import Draw, Drawing, Model
from ..models._filter_bank import Window
from ..models.draw import bernoulli_nll
from ..runs import Run
from ..train import Loss, Metric, TrainOptions
from ._base import Dataset, Example, NoOptions, Prediction, Report, Task, check_range, digest, require_parts
from ._image_processor import ImageProcessor
from ._options import DataOptions, Files, OnError

EVALUATED = 256  # images per batch without gradients
SMALLEST = 24  # pixels: smaller images are drawn at this size, if none is given


@dataclass(frozen=True, kw_only=True)
class DrawOptions(DataOptions):
    """Which images."""

    data: Files = DIGITS
    """Folder with a folder of images per class, or with IDX files (MNIST); .npz; images.npy labels.npy; or digits, which is embedded."""
    on_error: OnError = "stop"
    """Files that are not images: stop with the name of the file, or skip and count them."""
    image_size: tuple[int, ...] = ()
    """Height and width in pixels, or one number for both; if not given, that of the first image, 24 to 64."""
    binary: bool = True
    """Pixels are black or white, as the Bernoulli likelihood assumes; --no-binary: greys count as probabilities, and nats as a score only."""
    batch_size: int = 64
    """Images per batch."""

    def __post_init__(self) -> None:
        sizes = len(self.image_size) <= 2 and all(4 <= side <= 256 for side in self.image_size)
        check_range(self, image_size=(sizes, "one or two numbers from 4 to 256"), batch_size=(self.batch_size >= 1, "1 or more"))


@dataclass(frozen=True, kw_only=True)
class RedrawOptions:
    """What is drawn beside the image."""

    samples: int = 3
    """New images, drawn from noise."""
    seed: int = 0
    """Random seed."""

    def __post_init__(self) -> None:
        check_range(self, samples=(0 <= self.samples <= 64, "0 to 64"))


class DrawTask(Task[DrawOptions]):
    """Train a network that draws images step by step.

    As in:  regard train draw --out runs/draw
            regard train draw --data mnist --out runs/mnist --set glimpses=16
            regard train draw --out runs/whole --set attention=none
    """

    name = "draw"
    inputs = "file"
    Options = DrawOptions
    PredictOptions = RedrawOptions
    model_kind = Draw
    default_model = "draw"
    default_train = TrainOptions(steps=3000, lr=4e-3, schedule="cosine", average=0, clip=5.0)
    next_commands = "regard predict {out} image.png        regard look {out} image.png        regard evaluate {out}"

    # -- training ------------------------------------------------------------------------------------------------------

    def read(self) -> LabelledImages:
        return read_labelled_images(self.options.data, **self.options.parts())

    def make_processor(self, raw: LabelledImages, base: ImageProcessor | None) -> ImageProcessor:
        if base is not None:
            return base
        shapes = [raw.train.images.shape(n) for n in raw.train.numbers.tolist()]
        channels: Channels = 1 if all(shape.channels == 1 for shape in shapes) else 3
        given = self.options.image_size or (shapes[0].height, shapes[0].width)
        size = (given[0], given[-1]) if self.options.image_size else tuple(min(max(side, SMALLEST), 64) for side in given)
        return ImageProcessor(size=(size[0], size[1]), channels=channels, mean=(0.0,) * channels, std=(1.0,) * channels)

    def load_processor(self, folder: Path) -> ImageProcessor:
        return ImageProcessor.load(folder)

    def encode(self, raw: LabelledImages, processor: ImageProcessor, cache: Path) -> Dataset[Pixels]:
        parts, skipped = [], list(raw.skipped)
        for part in (raw.train, raw.valid, raw.test):
            pixels, _, wrong = load_pixels(part, processor.channels, processor.fit, processor.size, self.options.on_error)
            parts.append(pixels)
            skipped += wrong
        fingerprint = digest(part.images.key(n).hex() for part in (raw.train, raw.valid, raw.test) for n in part.numbers)
        words = f"{len(skipped):,} files skipped, the first: {skipped[0]}" if skipped else ""
        return Dataset(parts[0], parts[1], parts[2], fingerprint, words, unit="images")

    def model_settings(self, model: str, processor: ImageProcessor) -> dict[str, Any]:
        self.check_kind(model)
        return {"image_size": processor.size, "channels": processor.channels}

    def objective(self, dataset: Dataset[Pixels], processor: ImageProcessor, model: Model, seed: int) -> DrawObjective:
        require_parts(self.options.data, len(dataset.train), len(dataset.valid), "images")
        return DrawObjective(self._x(dataset.train, processor), self._x(dataset.valid, processor), self.options.batch_size, seed)

    def _x(self, pixels: Pixels, processor: ImageProcessor) -> Tensor:
        """x_BCHW from 0 to 1."""
        x_BCHW = processor.encode(pixels)
        return (x_BCHW > 0.5).to(x_BCHW.dtype) if self.options.binary else x_BCHW

    # -- use -----------------------------------------------------------------------------------------------------------

    def evaluate(self, run: Run[Draw], data: Files | None, options: NoOptions) -> Report:
        pixels = self.test_data(run, data)
        metrics = bound_terms(run.model, self._x(pixels, run.processor))
        return Report(metrics=metrics, notes=[f"{self.test_name(data)}: {len(pixels):,} images; a bound on −log p, in nats per image"])

    def predict(self, run: Run[Draw], inputs: Sequence[str], options: RedrawOptions) -> list[Prediction]:
        """Each image as it is drawn again, and new ones beside it."""
        return [self._redraw(run, path, options) for path in inputs]

    @torch.no_grad()
    def _redraw(self, run: Run[Draw], path: str, options: RedrawOptions) -> Prediction:
        x_BCHW = self._x(run.processor.read(path)[None], run.processor)
        with _seeded(options.seed):
            drawing = run.model(x_BCHW)
        nll, kl = float(bernoulli_nll(x_BCHW, drawing.canvas_BTCHW[:, -1])), float(drawing.kl_BT.sum())
        films = films_of(run, drawing, run.processor.decode(x_BCHW[0]))
        films += films_of(run, run.model.sample(options.samples, torch.Generator().manual_seed(options.seed))) if options.samples else []
        words = f"{nll + kl:.1f} nats: {kl:.1f} to say what to draw, {nll:.1f} for what the drawing lacks"
        return Prediction(words, {"loss": nll + kl, "kl": kl, "reconstruction": nll}, {".png": strip(films), ".gif": animation(films)})

    @torch.no_grad()
    def attention_maps(self, run: Run[Draw], text: str, layers: Layers, heads: Indices, options: NoOptions) -> tuple[str, Maps]:
        """How much each pixel counts in what is read, and in what is written, at each step."""
        if run.model.config.attention == "none":
            raise NotSupported(
                f"{run.folder}: the model reads and writes whole images, so there is no window to show; train with attention"
            )
        pixels = run.processor.read(text)
        with _seeded(0):
            drawing = run.model(self._x(pixels[None], run.processor))
        maps = Maps((window_map(run.model, name, drawing) for name in _chosen(layers)), image=pixels)
        return "", maps

    @classmethod
    def example(cls, folder: Path) -> Example:
        from PIL import Image

        generator = np.random.default_rng(0)
        for label in ("left", "right"):
            (folder / "images" / label).mkdir(parents=True)
            for n in range(20):
                pixels = generator.integers(0, 90, (8, 8), dtype=np.uint8)
                pixels[:5], pixels[5:, slice(0, 4) if label == "left" else slice(4, 8)] = 255 - n, 255 - n
                Image.fromarray(pixels).save(folder / "images" / label / f"{n}.png")

        def broken(copy: Path) -> None:
            (copy / "left" / "text.png").write_text("no image")

        return Example(
            options=DrawOptions(data=str(folder / "images"), batch_size=8, shares=(0.2, 0.2), image_size=(8,)),
            settings={"width": 8, "latent": 2, "glimpses": 2, "read_size": 2, "write_size": 3},
            input=str(folder / "images" / "left" / "0.png"),
            broken=broken,
        )


class DrawObjective:
    """What the training loop asks: the bound on −log p of each image."""

    unit = "images"
    metric = Metric("loss", higher=False)

    def __init__(self, train_ECHW: Tensor, valid_ECHW: Tensor, batch_size: int, seed: int):
        self.train, self.valid, self.size, self.seed = train_ECHW, valid_ECHW, batch_size, seed

    def batches(self, epoch: int) -> Sequence[npt.NDArray[np.int64]]:
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.train))
        return [order[at : at + self.size] for at in range(0, len(order), self.size)]

    def batch(self, item: npt.NDArray[np.int64]) -> Tensor:
        return self.train[torch.from_numpy(item)]

    def loss(self, model: nn.Module, x_BCHW: Tensor) -> Loss:
        drawing = model(x_BCHW)
        nll, kl = bernoulli_nll(x_BCHW, drawing.canvas_BTCHW[:, -1]).sum(), drawing.kl_BT.sum()
        return Loss(nll + kl, len(x_BCHW), {"kl": float(kl.detach()), "reconstruction": float(nll.detach())})

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        assert isinstance(model, Draw)
        return bound_terms(model, self.valid)


@torch.no_grad()
def bound_terms(model: Draw, x_ECHW: Tensor, seed: int = 0) -> dict[str, float]:
    """−ELBO in nats per image, one sample of z each: what the canvas leaves open, and what z tells."""
    nll, kl = 0.0, 0.0
    with _seeded(seed):
        for x_BCHW in x_ECHW.split(EVALUATED):
            drawing = model(x_BCHW)
            nll += float(bernoulli_nll(x_BCHW, drawing.canvas_BTCHW[:, -1]).double().sum())
            kl += float(drawing.kl_BT.double().sum())
    return {"loss": (nll + kl) / len(x_ECHW), "reconstruction": nll / len(x_ECHW), "kl": kl / len(x_ECHW)}


def window_map(model: Draw, name: str, drawing: Drawing) -> Map:
    """The pixels that the windows called `name` cover, a row per step."""
    windows_T5 = (drawing.read_BT5 if name == "read" else drawing.write_BT5)[0]
    (rows, columns), count = model.config.image_size, model.config.read_size if name == "read" else model.config.write_size
    weights_TM = Window(*windows_T5.unbind(-1)).footprint(count, (rows, columns)).flatten(1)
    return Map(
        layer=name,
        mechanism="filter_bank",
        call=0,
        run=0,
        heads=(0,),
        rows=tuple(range(len(weights_TM))),
        columns=tuple(range(rows * columns)),
        queries=len(weights_TM),
        weights_BHLM=weights_TM[None, None],
        normalised=True,
        query_labels=(tuple(f"{name} {t + 1}" for t in range(len(weights_TM))),),
        key_labels=(tuple(f"{y},{x}" for y in range(rows) for x in range(columns)),),
        layout=Grid(rows, columns),
    )


def films_of(run: Run[Draw], drawing: Drawing, target: Pixels | None = None) -> list[Film]:
    """What a drawing looked like after each step, with its windows."""
    c, films = run.model.config, []
    for canvas_TCHW, read_T5, write_T5 in zip(drawing.canvas_BTCHW.sigmoid(), drawing.read_BT5, drawing.write_BT5, strict=True):
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
def _seeded(seed: int) -> Iterator[None]:
    """Random numbers of its own, the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
