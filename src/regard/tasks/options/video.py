"""Options of the task video: what `regard train` and the commands on its runs show, without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...bounds import Size
from ...errors import BadConfig
from ...train.options import TrainOptions
from .image import PictureOptions
from .shared import ClassesOptions, Declaration, Files, OnError

Factorisation = Literal["joint", "encoder", "self_attention", "dot_product"]  # as `models.ViViT` has it


@dataclass(frozen=True, kw_only=True)
class VideoOptions(PictureOptions):
    """Clips, and how attention is factorised over space and time."""

    data: Files = "motion"
    """Folder with a folder per class, of GIFs, .npy arrays or folders of frames; motion: moving digits, generated."""
    on_error: OnError = "stop"
    """Clips that cannot be read: stop with the name of the file, or skip and count them."""
    frames: Size = 8
    """Frames per clip that the model reads: evenly spaced ones of longer clips; of shorter ones the last is repeated."""
    tubelet: Size = 2
    """Frames per tubelet."""
    factorisation: Factorisation = "self_attention"
    """Attention over all tokens (joint), a temporal encoder over frames (encoder), in space then in time (self_attention), half the heads each (dot_product)."""
    inflation: Literal["central", "average"] = "central"
    """With --init-from a ViT: filters of tubelets begin at the frame in the middle, or at the mean of the frames."""
    shuffle_frames: bool = False
    """Ablation: the frames of every clip in random order, in training and evaluation."""
    batch_size: Size = 32
    """Clips per batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.frames % self.tubelet:
            raise BadConfig(f"tubelet={self.tubelet}, expected a divisor of frames={self.frames}")


class VideoDeclaration(Declaration):
    """Train a video classifier (ViViT).

    As in:  regard train video --out runs/motion
            regard train video --data clips --frames 16 --image-size 64 --out runs/clips
            regard train video --data clips --init-from runs/photos --factorisation encoder --out runs/clips
    """

    name = "video"
    Options = VideoOptions
    PredictOptions = ClassesOptions
    default_model = "vivit"
    default_train = TrainOptions(epochs=10, lr=2e-3, schedule="cosine", weight_decay=0.05, warmup_steps=None, average=0)
    main_options = ("frames", "image_size")
