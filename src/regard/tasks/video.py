"""Video classification: a video vision transformer, from scratch on short clips, or from a model of images."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ..data.clips import GeneratedClip, VideoClip, common_shape, load_clips, read_clip, read_labelled_clips
from ..data.images import Pixels
from ..data.lines import Skipped
from ..data.splits import Splits, digest
from ..errors import BadConfig
from ..look import Indices, Layers, Map, Maps, capture
from ..look.images import enlarge, sheet
from ..look.layouts import Grid
from ..models import SIZES, Model, ViT, ViViT, device_of
from ..runs import Run
from .dial import Profile
from .image_processor import ImageProcessor
from .image_task import ImageClassification, Picture, Pictures, label_gradients, likely_labels, patch_side
from .options import NoOptions
from .options.video import VideoDeclaration, VideoOptions
from .task import Start

Clips = list[VideoClip | GeneratedClip]


class Video(VideoDeclaration, ImageClassification[VideoOptions]):
    unit = "clips"
    model_kind = ViViT
    next_commands = "regard evaluate {out}        regard predict {out} clip.gif        regard look {out} clip.gif"

    # -- data ----------------------------------------------------------------------------------------------------------

    def read(self) -> Splits[Clips]:
        o = self.options
        return read_labelled_clips(cast(str, o.one_file("data")), o.one_file("valid"), o.one_file("test"), o.shares, o.on_error)

    def profile(self, data: Splits[Clips]) -> Profile:
        height, width, _ = common_shape(data.train[:40], self.options.on_error)
        height, width = self.options.size or (height, width)
        return {"examples": len(data.train), "pixels": height * width, "frames": self.options.frames}

    def make_processor(self, data: Splits[Clips], base: ImageProcessor | None) -> ImageProcessor:
        o, labels = self.options, self.label_names({clip.label for clip in data.train})
        if base is not None:
            return base.with_labels(labels)
        some = data.train[:: max(1, len(data.train) // 200)]
        height, width, channels = common_shape(some[:40], o.on_error)
        size = o.size or (height, width)
        fit = ImageProcessor(size=size, channels=channels).fit
        pixels, _ = load_clips(some, channels, o.frames, fit, size, Skipped(on_error=o.on_error))
        return ImageProcessor.of_pixels(list(pixels.reshape(-1, *pixels.shape[2:])), labels)

    def prepare(self, data: Splits[Clips], cache: Path) -> Splits[Pictures]:
        skipped = Skipped(unit="clip", on_error=self.options.on_error)
        train, valid, test = parts = [self._load(clips, skipped) for clips in data.parts]
        hashes = (hashlib.blake2b(one.pixels.tobytes(), digest_size=8).hexdigest() + f" {one.label}" for part in parts for one in part)
        return Splits(train, valid, test, skipped, digest(hashes))

    def _load(self, clips: Clips, skipped: Skipped) -> Pictures:
        o, p = self.options, self.processor
        self.label_numbers([clip.label for clip in clips])
        pixels, names = load_clips(clips, p.channels, o.frames, p.fit, p.size, skipped)
        return Pictures(shuffled(pixels) if o.shuffle_frames else pixels, self.label_numbers(names))

    def parse(self, text: str) -> Picture:
        return Picture(read_clip(text, self.processor.channels, self.options.frames, self.processor.fit))

    def batch_size(self, evaluating: bool) -> int:
        return 64 if evaluating else self.options.batch_size

    # -- model ---------------------------------------------------------------------------------------------------------

    def settings(self, model: str, data: Splits[Any]) -> dict[str, Any]:
        o, p = self.options, self.processor
        settings = {"image_size": p.size, "channels": p.channels, "classes": len(p.labels), "frames": o.frames}
        if model in SIZES:
            return settings
        small = {"width": 64, "depth": 3, "hidden": 128, "temporal_depth": 2} if max(p.size) <= 32 else {}
        return {**small, **settings, "patch_size": patch_of(p.size), "tubelet": o.tubelet, "factorisation": o.factorisation}

    def adapt(self, body: Model, data: Splits[Any] | None = None, start: Start = "loaded") -> ViViT:
        """Fit the model to these classes; a ViT becomes a model of clips that begins as the ViT does."""
        o, p = self.options, self.processor
        if isinstance(body, ViT):
            body = body if body.config.image_size == p.size else body.with_image_size(p.size)
            body = ViViT.from_vit(body, frames=o.frames, tubelet=o.tubelet, factorisation=o.factorisation, inflation=o.inflation)
        model = super().adapt(body, data, start)
        assert isinstance(model, ViViT)
        c = model.config
        if (c.channels, c.image_size, c.frames) != (p.channels, p.size, o.frames):
            raise BadConfig(
                f"a model of {c.frames} frames of {c.image_size} pixels and {c.channels} channels for clips of {o.frames} frames of "
                f"{p.size} and {p.channels}; choose --frames {c.frames}"
            )
        return model if c.classes == len(p.labels) else model.with_classes(len(p.labels))

    @classmethod
    def imported_options(cls, model: Model) -> VideoOptions:
        c = cast(ViViT, model).config
        return VideoOptions(data="", frames=c.frames, tubelet=c.tubelet, factorisation=c.factorisation)

    # -- use -----------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def attention_maps(self, run: Run[ViViT], text: str, layers: Layers, heads: Indices, options: NoOptions) -> tuple[str, Maps]:
        """Attention that each place of each frame gets in each layer, over the frames side by side; above it the likely labels."""
        model, clip = run.model, self.parse(text).pixels
        x_BTCHW = run.processor.encode(clip[None]).to(device_of(model))
        with capture(model, layers, heads) as maps:
            logits_1N = model(x_BTCHW)
        c = model.config
        strip = film_strip(clip[c.tubelet // 2 :: c.tubelet])  # of each tubelet the frame in the middle
        rows = [(_layer_name(m.layer), received(m, model)) for m in maps.all]
        places = [f"{row},{column} of step {step}" for step in range(c.steps) for row in range(c.grid[0]) for column in range(c.grid[1])]
        drawn = Map.of_matrix(
            torch.stack([x_TS.flatten() for _, x_TS in rows]),
            "attention per frame",
            maps.all[0].mechanism,
            [name for name, _ in rows],
            places,
            Grid(*c.grid, frames=c.steps),
            normalised=False,
        )
        gradients = label_gradients(model, x_BTCHW, logits_1N, run.processor.labels, [drawn.layer])
        return likely_labels(run.processor.labels, logits_1N[0].softmax(-1).cpu(), 3).text, Maps([drawn], image=strip, gradients=gradients)


def patch_of(size: tuple[int, int]) -> tuple[int, int]:
    """Patches that make some 16 to 200 tokens of a frame, and divide its height and width."""
    return patch_side(size, 4 if max(size) <= 32 else 8 if max(size) <= 64 else 16)


def shuffled(pixels: Pixels) -> Pixels:
    """Frames of each clip in a random order of its own, the same at every call."""
    generator = np.random.default_rng(0)
    return np.stack([clip[generator.permutation(len(clip))] for clip in pixels]) if len(pixels) else pixels


def received(m: Map, model: ViViT) -> Tensor:
    """weights_TS: attention that each place of each step gets in one call, from the class token if there is one, else on average.

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


def film_strip(frames: Pixels) -> Pixels:
    """Frames in a row, enlarged, with a thin white line at the end of each but the last."""
    large = np.stack([enlarge(frame, 96) for frame in frames])
    large[:-1, :, -max(1, large.shape[1] // frames.shape[1] // 4) :] = 255
    return sheet(list(large), len(large), gap=0)


def _layer_name(path: str) -> str:
    """blocks.0.space.mixer.attention → layer 0, space."""
    number = next(part for part in path.split(".") if part.isdecimal())
    kind = next((kind for kind in ("space", "time", "temporal") if kind in path.split(".")), "")
    return f"layer {number}{f', {kind}' if kind else ''}"
