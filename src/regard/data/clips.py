"""Clips with a label each: folders of frames, animated GIFs or .npy arrays in a folder per class; or moving digits, which are generated.

    clips/wave/1.gif  clips/jump/7.npy                    the name of the folder is the label
    clips/wave/walk-3/001.png 002.png …                   a folder of frames is a clip, in the order of their names
    clips/train/wave/1.gif  clips/test/wave/8.gif         training and test part (also val or valid)
    motion                                                digits that move left, right, up or down, slowly or fast

Arrays are (frames, height, width), with 3 channels last or first. A model reads a fixed number of frames: of a longer clip as many, evenly
spaced from the first to the last; of a shorter one the last frame is repeated. Parts that are not given are held out by content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import files
from ..errors import BadFile, MissingFile, NotSupported
from .arrays import read_array
from .images import MAX_BYTES, SUFFIXES, Channels, Pixels, decode_image, read_frames
from .labelled_images import MAX_MEMORY, read_digits, to_pixels, with_channels
from .lines import Skipped
from .pace import Pace
from .splits import PART_NAMES, Splits, choose_parts

MOTION = "motion"
ANIMATIONS = (".gif", ".webp", ".png", ".tif", ".tiff")  # files that may hold several frames; a still image is a clip of one
Fit = Callable[[Pixels], Pixels]  # an image at another size


class VideoClip(NamedTuple):
    """A file or a folder of frames, and its label."""

    path: Path
    label: str


@dataclass(frozen=True)
class GeneratedClip:
    """A moving digit."""

    pixels: Pixels
    label: str


def read_labelled_clips(
    data: str, valid: str | None = None, test: str | None = None, shares: tuple[float, float] = (0.05, 0.05), on_error: str = "stop"
) -> Splits[list[VideoClip | GeneratedClip]]:
    """The three parts; those that neither `data` has nor are given are held out by `shares`. No frame is decoded yet."""
    if data == MOTION and not Path(MOTION).exists():
        made = moving_digits()
        if shares == (0.0, 0.0) and not valid and not test:
            return Splits([*made.train, *made.valid, *made.test], [], [])
        return made
    found = _parts(Path(data))
    for part, given in (("valid", valid), ("test", test)):
        if given:
            found[part] = [clip for some in _parts(Path(given)).values() for clip in some]
    if shares == (0.0, 0.0) and not valid and not test:
        found = {"train": [clip for some in found.values() for clip in some]}
    whole = found["train"]
    wanted = (0.0 if "valid" in found else shares[0], 0.0 if "test" in found else shares[1])
    chosen = choose_parts(np.array([int.from_bytes(_key(clip)[:6]) / 2**48 for clip in whole]), wanted)
    parts = [[whole[n] for n in np.flatnonzero(chosen == number)] for number in range(3)]
    return Splits(parts[0], found.get("valid", parts[1]), found.get("test", parts[2]))


def _parts(folder: Path) -> dict[str, list[VideoClip | GeneratedClip]]:
    if not folder.exists():
        raise MissingFile(f"{folder}: no such folder; expected a folder of clips per class, or {MOTION}")
    if not folder.is_dir():
        raise BadFile(f"{folder}: a file; expected a folder with a folder of clips per class")
    inside = [path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    found = {part: _classes(path) for part, names in PART_NAMES.items() for path in inside if path.name.lower() in names}
    return found if "train" in found else {"train": _classes(folder)}


def _classes(folder: Path) -> list[VideoClip | GeneratedClip]:
    classes = [path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    if not classes:
        raise BadFile(f"{folder}: no folders in it; expected a folder of clips per class: GIFs, .npy arrays, or folders of frames")
    clips: list[VideoClip | GeneratedClip] = []
    for one in classes:
        inside = [path for path in sorted(one.iterdir()) if not path.name.startswith(".")]
        inside = [path for path in inside if path.is_dir() or path.suffix.lower() in (".npy", *ANIMATIONS)]
        if not inside:
            raise BadFile(f"{one}: no clips of this class; expected GIFs, .npy arrays, or folders of frames, or no such folder")
        clips += [VideoClip(path, one.name) for path in inside]
    return clips


def _key(clip: VideoClip | GeneratedClip) -> bytes:
    """A fingerprint of the content."""
    whole = hashlib.blake2b(digest_size=8)
    if isinstance(clip, GeneratedClip):
        return hashlib.blake2b(clip.pixels.tobytes(), digest_size=8).digest()
    path = clip.path
    for file in _frame_files(path) if path.is_dir() else [path]:
        whole.update(files.read(file, MAX_BYTES))
    return whole.digest()


def _frame_files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")]


# -- one clip ----------------------------------------------------------------------------------------------------------


def read_clip(path: Path | str, channels: Channels, frames: int, fit: Fit = lambda pixels: pixels) -> Pixels:
    """(frames, h, w) or (frames, h, w, 3) of a GIF, an .npy array or a folder of frames; `fit` brings a frame to the size of the model."""
    path = Path(path)
    if path.is_dir():
        names = _frame_files(path)
        if not names:
            raise BadFile(f"{path}: no frames in it; expected files that end in {', '.join(SUFFIXES)}")
        decoded = {
            n: fit(decode_image(files.read(names[n], MAX_BYTES), str(names[n]), channels)) for n in set(choose_frames(len(names), frames))
        }
        return np.stack([decoded[n] for n in choose_frames(len(names), frames)])
    if path.suffix.lower() == ".npy":
        clip = to_pixels(read_array(path), str(path))
        if not len(clip):
            raise BadFile(f"{path}: no frames in it")
        return np.stack([fit(with_channels(clip[n], channels)) for n in choose_frames(len(clip), frames)])
    clip = read_frames(path, channels)
    return np.stack([fit(clip[n]) for n in choose_frames(len(clip), frames)])


def choose_frames(available: int, wanted: int) -> list[int]:
    """Numbers of frames: evenly spaced from the first to the last; of a short clip all, and the last one repeated."""
    if available <= wanted:
        return [min(n, available - 1) for n in range(wanted)]
    return [int(n) for n in np.linspace(0, available - 1, wanted).round()]


def common_shape(clips: Sequence[VideoClip | GeneratedClip], on_error: str = "stop") -> tuple[int, int, Channels]:
    """Height and width of the first clip, and 1 channel if all of them are grey."""
    found = []
    for clip in clips:
        try:
            found.append(clip_shape(clip))
        except BadFile:
            if on_error == "stop":
                raise
    if not found:
        raise NotSupported(f"none of {len(clips):,} clips can be read")
    return found[0][0], found[0][1], 1 if all(channels == 1 for *_, channels in found) else 3


def clip_shape(clip: VideoClip | GeneratedClip) -> tuple[int, int, Channels]:
    """Height, width and channels of the first frame; 1 channel if all of it is grey."""
    if isinstance(clip, GeneratedClip):
        return clip.pixels.shape[1], clip.pixels.shape[2], 1
    frame = read_clip(clip.path, 3, 1)[0]
    return frame.shape[0], frame.shape[1], 1 if bool((frame == frame[..., :1]).all()) else 3


def load_clips(
    clips: Sequence[VideoClip | GeneratedClip],
    channels: Channels,
    frames: int,
    fit: Fit,
    size: tuple[int, int],
    skipped: Skipped,
) -> tuple[Pixels, list[str]]:
    """All clips at the size of the model, (n, frames, h, w[, 3]), and their labels; they are held in memory."""
    shape = (frames, *size, *((3,) if channels == 3 else ()))
    needed = len(clips) * int(np.prod(shape))
    if needed > MAX_MEMORY:
        raise NotSupported(
            f"{len(clips):,} clips of {frames} frames of {size[0]} × {size[1]} pixels take {needed / 2**30:.1f} GiB of memory; expected at most "
            f"{MAX_MEMORY / 2**30:.0f}: choose a smaller --image-size, fewer --frames, or fewer clips"
        )
    out = np.empty((len(clips), *shape), dtype=np.uint8)
    pace, labels = Pace("decoding clips", out.nbytes), list[str]()
    for clip in clips:
        try:
            out[len(labels)] = _frames(clip, channels, frames, fit)
        except BadFile as wrong:
            skipped.refuse(wrong)
            continue
        labels.append(clip.label)
        pace.add(out[0].nbytes)
    return out[: len(labels)], labels


def _frames(clip: VideoClip | GeneratedClip, channels: Channels, frames: int, fit: Fit) -> Pixels:
    if isinstance(clip, VideoClip):
        return read_clip(clip.path, channels, frames, fit)
    chosen = choose_frames(len(clip.pixels), frames)
    return np.stack([fit(with_channels(clip.pixels[n], channels)) for n in chosen])


# -- moving digits -----------------------------------------------------------------------------------------------------

DIRECTIONS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}
SPEEDS = {"slow": 1, "fast": 2}  # pixels per frame
SIDE, FRAMES = 16, 8
CLIPS = {"train": 2400, "valid": 240, "test": 480}


def moving_digits(seed: int = 0) -> Splits[list[VideoClip | GeneratedClip]]:
    """Clips of 8 frames of 16 × 16 pixels: a digit moves over a torus, from anywhere on it, in one of four directions at one of two speeds.

    All starts are equally likely, so a single frame says nothing about the label. The three parts have different digits.
    """
    pixels, _ = read_digits()
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(pixels))
    shares = np.split(order, [len(order) * 3 // 4, len(order) * 7 // 8])
    parts = [_clips(pixels[some], count, generator) for some, count in zip(shares, CLIPS.values(), strict=True)]
    return Splits(parts[0], parts[1], parts[2])


def _clips(digits: Pixels, count: int, generator: np.random.Generator) -> list[VideoClip | GeneratedClip]:
    kinds = [
        (f"{direction} {speed}", np.array(step) * pixels) for direction, step in DIRECTIONS.items() for speed, pixels in SPEEDS.items()
    ]
    made: list[VideoClip | GeneratedClip] = []
    for n in range(count):
        label, step = kinds[n % len(kinds)]
        frame = np.zeros((SIDE, SIDE), dtype=np.uint8)
        digit = digits[generator.integers(len(digits))]
        frame[: digit.shape[0], : digit.shape[1]] = digit
        start = generator.integers(SIDE, size=2)
        made.append(GeneratedClip(np.stack([_moved(frame, start + t * step) for t in range(FRAMES)]), label))
    return made


def _moved(frame: Pixels, by: npt.NDArray[Any]) -> Pixels:
    return np.roll(frame, (int(by[0]), int(by[1])), (0, 1))
