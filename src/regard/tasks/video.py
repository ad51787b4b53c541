"""Classification of clips: a video vision transformer, from scratch on short clips, or from a model of images."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.clips import MOTION, Clip, GeneratedClip, LabelledClips, common_shape, load_clips, read_clip, read_labelled_clips
from ..data.images import Pixels
from ..errors import BadConfig, NotSupported
from ..look import Indices, Layers, Map, Maps, capture
from ..look.gradients import InputGradients
from ..look.layouts import Grid
from ..look.maps import MEAN
from ..models import SIZES, Model, ViT, ViViT
from ..models.vivit import Factorisation
from ..runs import Run
from ..train import Loss, Metric, TrainOptions
from ._base import Dataset, Example, NoOptions, Prediction, Report, Task, check_range, digest, require_parts
from ._image_processor import ImageProcessor
from ._labelled import classification_metrics, confusion_rows, counted
from ._options import DataOptions, Files, OnError, show_files

EVALUATED = 64  # clips per batch without gradients


@dataclass(frozen=True, kw_only=True)
class VideoOptions(DataOptions):
    """Which clips, and how attention is factorised over space and time."""

    data: Files = MOTION
    """Folder with a folder per class, of GIFs, .npy arrays or folders of frames; motion: moving digits, generated."""
    on_error: OnError = "stop"
    """Clips that cannot be read: stop with the name of the file, or skip and count them."""
    frames: int = 8
    """Frames per clip that the model reads: evenly spaced ones of longer clips; of shorter ones the last is repeated."""
    tubelet: int = 2
    """Frames per tubelet."""
    factorisation: Factorisation = "self_attention"
    """Attention over all tokens (joint), a temporal encoder over frames (encoder), in space then in time (self_attention), half the heads each (dot_product)."""
    inflation: Literal["central", "average"] = "central"
    """With --init-from a ViT: filters of tubelets begin at the frame in the middle, or at the mean of the frames."""
    image_size: tuple[int, ...] = ()
    """Height and width in pixels, or one number for both; that of the first clip if not given."""
    shuffle_frames: bool = False
    """Ablation: the frames of every clip in random order, in training and evaluation."""
    label_smoothing: float = 0.0
    """Probability that the target gives to all classes alike."""
    batch_size: int = 32
    """Clips per batch."""

    def __post_init__(self) -> None:
        check_range(
            self,
            frames=(self.frames >= 1, "1 or more"),
            tubelet=(self.tubelet >= 1 and self.frames % self.tubelet == 0, f"a divisor of frames={self.frames}"),
            image_size=(
                len(self.image_size) <= 2 and all(4 <= side <= 1024 for side in self.image_size),
                "one or two numbers from 4 to 1,024",
            ),
            label_smoothing=(0 <= self.label_smoothing < 1, "0 or more, below 1"),
            batch_size=(self.batch_size >= 1, "1 or more"),
        )


@dataclass(frozen=True, kw_only=True)
class VideoPredictOptions:
    """What to print."""

    nbest: int = 1
    """Labels per clip, most likely first, with their probabilities."""


@dataclass(frozen=True)
class ClipData:
    """Clips at the size of the model and the numbers of their labels."""

    pixels: Pixels  # (clips, frames, height, width[, 3])
    label_E: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.label_E)


class Video(Task[VideoOptions]):
    """Train a classifier of clips.

    As in:  regard train video --out runs/motion
            regard train video --data clips --frames 16 --image-size 64 --out runs/clips
            regard train video --data clips --init-from runs/photos --factorisation encoder --out runs/clips
    """

    name = "video"
    inputs = "file"
    Options = VideoOptions
    PredictOptions = VideoPredictOptions
    model_kind = ViViT
    default_model = "vivit"
    default_train = TrainOptions(epochs=10, lr=2e-3, schedule="cosine", weight_decay=0.05, warmup_steps=None, average=0)
    next_commands = "regard evaluate {out}        regard predict {out} clip.gif        regard look {out} clip.gif"

    # -- training ------------------------------------------------------------------------------------------------------

    def read(self) -> LabelledClips[Clip | GeneratedClip]:
        one = {
            name: _one(name, given)
            for name, given in (("data", self.options.data), ("valid", self.options.valid), ("test", self.options.test))
        }
        return read_labelled_clips(cast(str, one["data"]), one["valid"], one["test"], self.options.shares, self.options.on_error)

    def make_processor(self, raw: LabelledClips[Clip | GeneratedClip], base: ImageProcessor | None) -> ImageProcessor:
        labels = tuple(sorted({clip.label for clip in raw.train}))
        if len(labels) < 2:
            raise NotSupported(
                f"{show_files(self.options.data)}: all clips have the label {labels[0]!r}; give clips of at least two classes"
            )
        if base is not None:
            return replace(base, labels=labels)
        some = raw.train[:: max(1, len(raw.train) // 200)]
        height, width, channels = common_shape(some[:40], self.options.on_error)
        size = self.options.image_size or (height, width)
        fit = ImageProcessor(size=(size[0], size[-1]), channels=channels).fit
        pixels, _, _ = load_clips(some, channels, self.options.frames, fit, (size[0], size[-1]), self.options.on_error)
        return ImageProcessor.of_pixels(list(pixels.reshape(-1, *pixels.shape[2:])), labels)

    def load_processor(self, folder: Path) -> ImageProcessor:
        return ImageProcessor.load(folder)

    def encode(self, raw: LabelledClips[Clip | GeneratedClip], processor: ImageProcessor, cache: Path) -> Dataset[ClipData]:
        number, parts, skipped = {label: n for n, label in enumerate(processor.labels)}, list[ClipData](), list[str]()
        for clips in (raw.train, raw.valid, raw.test):
            unknown = sorted({clip.label for clip in clips} - number.keys())
            if unknown:
                raise NotSupported(
                    f"the label {unknown[0]!r} does not occur among the training clips, whose labels are {', '.join(processor.labels)[:200]}"
                )
            o = self.options
            pixels, labels, wrong = load_clips(clips, processor.channels, o.frames, processor.fit, processor.size, o.on_error)
            if o.shuffle_frames:
                pixels = shuffled(pixels)
            parts.append(ClipData(pixels, np.array([number[label] for label in labels], dtype=np.int64)))
            skipped += wrong
        fingerprint = digest(
            f"{hashlib.blake2b(clip.tobytes(), digest_size=8).hexdigest()} {label}"
            for part in parts
            for clip, label in zip(part.pixels, part.label_E.tolist(), strict=True)
        )
        words = f"{len(skipped):,} clips skipped, the first: {skipped[0]}" if skipped else ""
        return Dataset(parts[0], parts[1], parts[2], fingerprint, words, unit="clips")

    def model_settings(self, model: str, processor: ImageProcessor) -> dict[str, Any]:
        self.check_kind(model)
        o = self.options
        settings = {"image_size": processor.size, "channels": processor.channels, "classes": len(processor.labels), "frames": o.frames}
        if model in SIZES:
            return settings
        small = {"width": 64, "depth": 3, "hidden": 128, "temporal_depth": 2} if max(processor.size) <= 32 else {}
        return {**small, **settings, "patch_size": patch_of(processor.size), "tubelet": o.tubelet, "factorisation": o.factorisation}

    def adapt(self, body: Model, processor: ImageProcessor) -> ViViT:
        """The model for these classes; a ViT becomes a model of clips that begins as the ViT does."""
        o = self.options
        if isinstance(body, ViT):
            body = body if body.config.image_size == processor.size else body.with_image_size(processor.size)
            body = ViViT.from_vit(body, frames=o.frames, tubelet=o.tubelet, factorisation=o.factorisation, inflation=o.inflation)
        model = super().adapt(body, processor)
        assert isinstance(model, ViViT)
        c = model.config
        if (c.channels, c.image_size, c.frames) != (processor.channels, processor.size, o.frames):
            raise BadConfig(
                f"a model of {c.frames} frames of {c.image_size} pixels and {c.channels} channels for clips of {o.frames} frames of "
                f"{processor.size} and {processor.channels}; choose --frames {c.frames}"
            )
        return model if c.classes == len(processor.labels) else model.with_classes(len(processor.labels))

    def objective(self, dataset: Dataset[ClipData], processor: ImageProcessor, model: Model, seed: int) -> VideoObjective:
        require_parts(self.options.data, len(dataset.train), len(dataset.valid), "clips")
        return VideoObjective(dataset.train, dataset.valid, processor, self.options, seed)

    # -- use -----------------------------------------------------------------------------------------------------------

    def evaluate(self, run: Run[ViViT], data: Files | None, options: NoOptions) -> Report:
        labels, clips = run.processor.labels, self.test_data(run, data)
        logits_EN = clip_logits(run.model, run.processor, clips.pixels)
        counts = counted(clips.label_E, logits_EN.argmax(1).numpy(), len(labels))
        metrics = {"loss": float(F.cross_entropy(logits_EN, torch.from_numpy(clips.label_E)))}
        metrics |= {name: value for name, value in classification_metrics(counts, labels).items() if name in ("accuracy", "f1")}
        return Report(
            metrics=metrics,
            notes=(f"{self.test_name(data)}: {len(clips):,} clips of {self.options.frames} frames",),
            columns=("label", "support", "predicted", "precision", "recall"),
            rows=confusion_rows(counts, labels),
            details={"data": self.test_name(data), "examples": len(clips), "labels": list(labels), "confusion": counts.tolist()},
            outputs=[labels[n] for n in logits_EN.argmax(1)],
        )

    def predict(self, run: Run[ViViT], inputs: Sequence[str], options: VideoPredictOptions) -> list[Prediction]:
        """Names of GIFs, .npy arrays or folders of frames."""
        if not inputs:
            return []
        clips = np.stack([self._read(run, path) for path in inputs])
        return [_labelled(run.processor.labels, p_N, options.nbest) for p_N in clip_logits(run.model, run.processor, clips).softmax(-1)]

    def _read(self, run: Run[ViViT], path: str) -> Pixels:
        return read_clip(path, run.processor.channels, run.model.config.frames, run.processor.fit)

    @torch.no_grad()
    def attention_maps(self, run: Run[ViViT], text: str, layers: Layers, heads: Indices, options: NoOptions) -> tuple[str, Maps]:
        """How much attention each place of each frame gets in each layer, over the frames side by side; above it the likely labels."""
        model, clip = run.model, self._read(run, text)
        with capture(model, layers, heads) as maps:
            logits_1N = model(x_BTCHW := run.processor.encode(clip[None]))
        c = model.config
        strip = side_by_side(clip[c.tubelet // 2 :: c.tubelet])  # of each tubelet the frame in the middle
        rows = [(_layer_name(m.layer), received(m, model)) for m in maps.all]
        weights_1RM = torch.stack([x_TS.flatten() for _, x_TS in rows])[None]
        labels = [f"{row},{column} of step {step}" for step in range(c.steps) for row in range(c.grid[0]) for column in range(c.grid[1])]
        drawn = Map(
            layer="attention per frame",
            mechanism=maps.all[0].mechanism,
            call=0,
            run=0,
            heads=(MEAN,),
            rows=tuple(range(len(rows))),
            columns=tuple(range(len(labels))),
            queries=len(rows),
            weights_BHLM=weights_1RM[None],
            normalised=False,
            query_labels=(tuple(name for name, _ in rows),),
            key_labels=(tuple(labels),),
            layout=Grid(*c.grid, frames=c.steps),
        )
        label_1 = logits_1N.argmax(-1)
        gradients = InputGradients(
            model,
            (x_BTCHW,),
            lambda model: model(x_BTCHW),
            label_1,
            [run.processor.labels[int(label_1)]],
            {drawn.layer: 0},
            logits=lambda _, x_N: x_N,
        )
        return _labelled(run.processor.labels, logits_1N[0].softmax(-1), 3).text, Maps([drawn], image=strip, gradients=gradients)

    @classmethod
    def imported_options(cls, model: Model) -> VideoOptions:
        c = cast(ViViT, model).config
        return VideoOptions(data="", frames=c.frames, tubelet=c.tubelet, factorisation=c.factorisation)

    @classmethod
    def example(cls, folder: Path) -> Example:
        generator = np.random.default_rng(0)
        for label, step in (("left", -1), ("right", 1)):
            (folder / "clips" / label).mkdir(parents=True)
            for n in range(16):
                frame = generator.integers(0, 255, (8, 8), dtype=np.uint8)
                np.save(folder / "clips" / label / f"{n}.npy", np.stack([np.roll(frame, step * t, 1) for t in range(4)]))
        options = VideoOptions(data=str(folder / "clips"), frames=4, batch_size=8, shares=(0.1, 0.1))
        return Example(
            options=options,
            settings={"width": 16, "heads": 2, "depth": 1, "hidden": 16},
            input=str(folder / "clips" / "left" / "0.npy"),
            broken=_add_broken,
        )


def _add_broken(folder: Path) -> None:
    (folder / "left" / "text.gif").write_text("no image")


def _one(name: str, given: Files | None) -> str | None:
    if given is None or isinstance(given, str):
        return given
    if len(given) == 1:
        return given[0]
    raise NotSupported(f"--{name} {show_files(given)}: expected one folder")


def patch_of(size: tuple[int, int]) -> tuple[int, int]:
    """Patches that make some 16 to 200 tokens of a frame, and divide its height and width."""
    side = max(size)
    most = 4 if side <= 32 else 8 if side <= 64 else 16
    height, width = (max(p for p in range(1, most + 1) if one % p == 0) for one in size)
    return height, width


def shuffled(pixels: Pixels) -> Pixels:
    """The frames of each clip in a random order of its own, the same at every call."""
    generator = np.random.default_rng(0)
    return np.stack([clip[generator.permutation(len(clip))] for clip in pixels]) if len(pixels) else pixels


class VideoObjective:
    """What the training loop asks."""

    unit = "clips"
    metric = Metric("accuracy", higher=True)

    def __init__(self, train: ClipData, valid: ClipData, processor: ImageProcessor, options: VideoOptions, seed: int):
        self.train, self.valid, self.processor, self.options, self.seed = train, valid, processor, options, seed

    def batches(self, epoch: int) -> Sequence[npt.NDArray[np.int64]]:
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.train))
        return [order[at : at + self.options.batch_size] for at in range(0, len(order), self.options.batch_size)]

    def batch(self, item: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """x_BTCHW and label_B."""
        return self.processor.encode(self.train.pixels[item]), torch.from_numpy(self.train.label_E[item])

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Loss:
        x_BTCHW, label_B = batch
        logits_BN = model(x_BTCHW).float()
        total = F.cross_entropy(logits_BN, label_B, label_smoothing=self.options.label_smoothing, reduction="sum")
        return Loss(total, len(label_B), {"accuracy": float((logits_BN.argmax(1) == label_B).sum())})

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        logits_EN, label_E = clip_logits(cast(ViViT, model), self.processor, self.valid.pixels), torch.from_numpy(self.valid.label_E)
        right = (logits_EN.argmax(1) == label_E).double().mean()
        return {"loss": float(F.cross_entropy(logits_EN, label_E)), "accuracy": float(right)}


@torch.no_grad()
def clip_logits(model: ViViT, processor: ImageProcessor, pixels: Pixels) -> Tensor:
    """logits_EN of clips at the size of the model."""
    device = next(model.parameters()).device
    starts = range(0, len(pixels), EVALUATED)
    return torch.cat([model(processor.encode(pixels[at : at + EVALUATED]).to(device)).float().cpu() for at in starts])


def _labelled(labels: Sequence[str], p_N: Tensor, nbest: int) -> Prediction:
    """The most likely labels, a line each."""
    best = p_N.topk(min(max(nbest, 1), len(labels)))
    found = [{"label": labels[n], "probability": p} for p, n in zip(best.values.tolist(), best.indices.tolist(), strict=True)]
    return Prediction("\n".join(f"{one['label']}\t{one['probability']:.4f}" for one in found), {"labels": found})


# -- attention over frames ---------------------------------------------------------------------------------------------


def received(m: Map, model: ViViT) -> Tensor:
    """weights_TS: how much attention each place of each step gets in one call, from the class token if there is one, else on average.

    Attention in space is computed per step, attention in time per place, and that of a temporal encoder is the same for all places.
    """
    c, w_BHLM = model.config, m.weights_BHLM.float()
    prefix = model.class_tokens
    w_BM = (w_BHLM[:, :, 0] if prefix else w_BHLM.mean(2)).mean(1)[:, prefix:]
    if m.layer.startswith("temporal."):
        return w_BM[0, :, None].expand(c.steps, c.places) / c.places
    if ".time." in m.layer:
        return w_BM.T  # a row of the batch per place
    return w_BM.reshape(c.steps, c.places)  # of space, a row of the batch per step


def side_by_side(frames: Pixels) -> Pixels:
    """Frames in a row, enlarged without smoothing, with a thin white line after each but the last."""
    scale = max(1, 96 // frames.shape[1])
    large = frames.repeat(scale, 1).repeat(scale, 2)
    large[:-1, :, -max(1, scale // 4) :] = 255
    return np.concatenate(list(large), 1)


def _layer_name(path: str) -> str:
    """blocks.0.space.mixer.attention → layer 0, space."""
    number = next(part for part in path.split(".") if part.isdecimal())
    kind = next((kind for kind in ("space", "time", "temporal") if kind in path.split(".")), "")
    return f"layer {number}{f', {kind}' if kind else ''}"
