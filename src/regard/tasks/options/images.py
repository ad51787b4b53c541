"""Options of the task images: what `regard train` and the commands on its runs show, without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...bounds import Count, Fraction, NonNegative, Probability, Size
from ...train.options import TrainOptions
from .image import PictureOptions
from .shared import ClassesOptions, Declaration, Files


@dataclass(frozen=True, kw_only=True)
class ImagesOptions(PictureOptions):
    """Images, their size, and augmentation."""

    data: Files = "digits"
    """Folder with a folder of images per class, or with IDX files; .npz; images.npy labels.npy; or digits, which is embedded."""
    labels: tuple[str, ...] = ()
    """Names of the classes, where the data have numbers: that of 0, of 1, …"""
    crop: Count | None = None
    """Padding of the random crop in pixels (default: height / 8)."""
    flip: Literal["auto", "yes", "no"] = "auto"
    """Random horizontal flip with p = 0.5; auto: only for colour images."""
    rand_augment: Fraction = 0.0
    """Strength of RandAugment, up to 1: two random operations per image (contrast, rotation, shear, …); 0 disables it."""
    erase: Fraction = 0.0
    """Probability of random erasing: a rectangle of the image becomes noise."""
    mixup: NonNegative = 0.0
    """Mixup α: mix pairs with λ ~ Beta(α, α); 0 disables it."""
    cutmix: NonNegative = 0.0
    """CutMix α: paste a rectangle of another image, with an area from Beta(α, α); 0 disables it."""
    label_smoothing: Probability = 0.1
    """Label smoothing: probability mass spread uniformly over all classes."""
    batch_size: Size = 64
    """Images per batch."""


class ImagesDeclaration(Declaration):
    """Train an image classifier.

    As in:  regard train images --out runs/digits
            regard train images --data photos --out runs/photos --minutes 30
            regard train images --data fashion-mnist --flip yes --epochs 10 --out runs/fashion
            regard train images --data flowers --init-from downloads/vit-base-patch16-224 --epochs 3 --lr 1e-4 --out runs/flowers
    """

    name = "images"
    Options = ImagesOptions
    PredictOptions = ClassesOptions
    default_model = "vit"
    default_train = TrainOptions(epochs=30, lr=1e-3, schedule="cosine", weight_decay=0.05, ema=0.999, average=0)
    main_options = ("image_size",)
