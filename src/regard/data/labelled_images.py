"""Images with a label each: a folder per class, IDX (the MNIST family), .npz and .npy arrays, or scikit-learn's digits.

    photos/cat/1.jpg  photos/dog/7.png                    the name of the folder is the label
    photos/train/cat/1.jpg  photos/test/cat/8.jpg         training and test part (also val or valid)
    fashion-mnist/train-images-idx3-ubyte.gz …            the four IDX files; `t10k` is the test part
    train.npz                                             arrays x (or images) and y (or labels); or jpeg, offset and label
    cifar/train.npz  cifar/test.npz                       training and test part
    images.npy labels.npy                                 two files, images and labels, also IDX
    digits                                                1,797 images of 8 × 8 pixels, embedded

Arrays of images are (n, height, width), with channels last or first, or flat rows. Parts that are not given are held out by content: the
same image is never on both sides of a split.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from .. import files
from ..errors import BadFile, MissingFile, NotSupported
from .arrays import read_array, read_arrays
from .images import MAX_BYTES, SUFFIXES, Channels, Pixels, decode_image, image_shape
from .lines import Policy, Skipped
from .pace import Pace
from .splits import PART_NAMES, Splits, choose_parts

DIGITS = "digits"
IMAGE_NAMES, LABEL_NAMES = ("x", "X", "images", "image", "data"), ("y", "Y", "labels", "label", "targets", "target")
Numbers = npt.NDArray[np.int64]


class Shape(NamedTuple):
    height: int
    width: int
    channels: Channels


class Images(Protocol):
    """Some images, decoded one by one."""

    def __len__(self) -> int: ...

    def shape(self, number: int) -> Shape: ...

    def key(self, number: int) -> bytes:
        """A fingerprint of the content."""
        ...

    def read(self, number: int, channels: Channels) -> Pixels:
        """The pixels; BadFile names the file."""
        ...


@dataclass(frozen=True)
class ArrayImages:
    """Images of one size in memory: (n, h, w), or (n, h, w, 3)."""

    pixels: Pixels

    def __len__(self) -> int:
        return len(self.pixels)

    def shape(self, number: int) -> Shape:
        return Shape(self.pixels.shape[1], self.pixels.shape[2], 1 if self.pixels.ndim == 3 else 3)

    def key(self, number: int) -> bytes:
        return hashlib.blake2b(self.pixels[number].tobytes(), digest_size=8).digest()

    def read(self, number: int, channels: Channels) -> Pixels:
        return with_channels(self.pixels[number], channels)


@dataclass(frozen=True)
class EncodedImages:
    """Image files, on disk or end to end in memory; their headers have been read."""

    names: Sequence[str]
    content: Callable[[int], bytes]
    shapes: Sequence[Shape]
    keys: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.names)

    def shape(self, number: int) -> Shape:
        return self.shapes[number]

    def key(self, number: int) -> bytes:
        return self.keys[number]

    def read(self, number: int, channels: Channels) -> Pixels:
        return decode_image(self.content(number), self.names[number], channels)


@dataclass(frozen=True)
class Part:
    """Some images of a set and their labels."""

    images: Images
    labels: Sequence[str]  # one per image of the set
    numbers: Numbers  # indices of the images of this part

    def __len__(self) -> int:
        return len(self.numbers)


def read_labelled_images(
    data: str | Sequence[str],
    valid: str | Sequence[str] | None = None,
    test: str | Sequence[str] | None = None,
    shares: tuple[float, float] = (0.05, 0.05),
    on_error: Policy = "stop",
    names: Sequence[str] = (),
    labelled: bool = True,
) -> Splits[Part]:
    """The three parts; those that neither `data` has nor are given are held out by `shares`. `names` are those of numbered classes.

    Without shares and further files nothing is held out: all of `data` is the training part. With `labelled=False` labels are not needed: all
    images below a folder count, and files of images need none of labels.
    """
    reader = _Reader(on_error, names, labelled)
    found = reader.parts(data)
    for part, given in (("valid", valid), ("test", test)):
        if given:
            found[part] = _joined(reader.parts(given).values())
    if shares == (0.0, 0.0) and not valid and not test:
        found = {"train": _joined(found.values())}
    whole = found["train"]
    empty = Part(whole.images, whole.labels, np.empty(0, dtype=np.int64))
    wanted = tuple(0.0 if part in found else share for part, share in zip(("valid", "test"), shares, strict=True))
    chosen = choose_parts(np.array([int.from_bytes(whole.images.key(n)[:6]) / 2**48 for n in whole.numbers]), (wanted[0], wanted[1]))
    parts = [Part(whole.images, whole.labels, whole.numbers[chosen == n]) for n in range(3)]
    return Splits(
        parts[0],
        found.get("valid", parts[1] if wanted[0] else empty),
        found.get("test", parts[2] if wanted[1] else empty),
        reader.skipped,
    )


def with_channels(pixels: Pixels, channels: Channels) -> Pixels:
    """Grey pixels as three equal channels, or colours as grey (ITU-R 601)."""
    if channels == 3:
        return pixels if pixels.shape[-1:] == (3,) and pixels.ndim >= 3 else np.repeat(pixels[..., None], 3, -1)
    if pixels.ndim == 2 or pixels.shape[-1] != 3:
        return pixels
    return (pixels.astype(np.float32) @ np.array([0.299, 0.587, 0.114], dtype=np.float32)).round().astype(np.uint8)


class _Reader:
    def __init__(self, on_error: Policy, names: Sequence[str], labelled: bool):
        self.names, self.labelled, self.skipped = names, labelled, Skipped(unit="file", on_error=on_error)

    def parts(self, data: str | Sequence[str]) -> dict[str, Part]:
        """Images of the data by part: always "train", perhaps "valid" and "test"."""
        if data == DIGITS and not Path(DIGITS).exists():
            return {"train": self._numbered(*read_digits(), DIGITS)}
        several = [Path(one) for one in ([data] if isinstance(data, str) else data)]
        for path in several:
            if not path.exists():
                raise MissingFile(f"{path}: no such file or folder; expected images in a folder per class, IDX, .npz or .npy, or {DIGITS}")
        if len(several) == 2 and all(path.is_file() for path in several):
            return {"train": self._pair(*several)}
        if len(several) > 1:
            raise BadFile(f"{' '.join(map(str, several))}: expected one folder or file, or two: images, then labels")
        return self._folder(several[0]) if several[0].is_dir() else self._file(several[0])

    # -- files ---------------------------------------------------------------------------------------------------------

    def _file(self, path: Path) -> dict[str, Part]:
        if path.suffix == ".npz":
            return self._archive(path)
        for images, labels in (("images-idx3", "labels-idx1"), ("images.idx3", "labels.idx1"), ("images", "labels"), ("x", "y")):
            other = path.with_name(path.name.replace(images, labels, 1))
            if other != path and other.is_file():
                return {"train": self._pair(path, other)}
        if not self.labelled:
            pixels = to_pixels(read_array(path), str(path))
            return {"train": self._numbered(pixels, np.zeros(len(pixels), dtype=np.int64), str(path))}
        raise BadFile(f"{path}: no labels beside it; name two files, images and labels, or a folder with a folder per class")

    def _pair(self, images: Path, labels: Path) -> Part:
        return self._numbered(to_pixels(read_array(images), str(images)), read_array(labels), str(labels))

    def _archive(self, path: Path) -> dict[str, Part]:
        arrays = read_arrays(path)
        if {"jpeg", "offset"} <= arrays.keys():
            label = next((arrays[name] for name in LABEL_NAMES if name in arrays), None)
            return {"train": self._encoded(arrays["jpeg"], arrays["offset"], label, path)}
        found = {}
        for part, endings in {"train": ("", "_train"), "valid": ("_valid", "_val"), "test": ("_test",)}.items():
            pairs = [
                (images + end, labels + end)
                for end in endings
                for images in IMAGE_NAMES
                for labels in LABEL_NAMES
                if images + end in arrays and labels + end in arrays
            ]
            if pairs:
                images, labels = pairs[0]
                found[part] = self._numbered(to_pixels(arrays[images], f"{path}: {images}"), arrays[labels], f"{path}: {labels}")
        if "train" not in found:
            raise BadFile(f"{path}: arrays {', '.join(arrays) or 'none'}; expected x and y, images and labels, or jpeg, offset and label")
        return found

    def _numbered(self, pixels: Pixels, labels: npt.NDArray[Any], where: str) -> Part:
        labels = labels.reshape(-1) if labels.ndim == 2 and labels.shape[1] == 1 else labels
        if labels.ndim != 1 or labels.dtype.kind not in "uiU" or len(labels) != len(pixels):
            raise BadFile(
                f"{where}: labels of shape {labels.shape} and {labels.dtype}; expected a whole number or a name for each of {len(pixels):,} images"
            )
        if not len(labels):
            raise BadFile(f"{where}: no images")
        if labels.dtype.kind == "U":
            return Part(ArrayImages(pixels), labels.tolist(), np.arange(len(labels)))
        if self.names and not 0 <= int(labels.min()) <= int(labels.max()) < len(self.names):
            raise BadFile(
                f"{where}: labels from {labels.min()} to {labels.max()}; expected 0 to {len(self.names) - 1}: there are {len(self.names)} names"
            )
        return Part(ArrayImages(pixels), [self.names[n] if self.names else str(n) for n in labels.tolist()], np.arange(len(labels)))

    def _encoded(self, data: npt.NDArray[Any], offset: npt.NDArray[Any], label: npt.NDArray[Any] | None, path: Path) -> Part:
        at = offset.astype(np.int64).reshape(-1)
        if data.dtype != np.uint8 or len(at) < 2 or at[0] < 0 or at[-1] > len(data) or (np.diff(at) <= 0).any():
            raise BadFile(
                f"{path}: expected jpeg as bytes (uint8), and offset as increasing positions in it, one more than there are images"
            )
        part = self._numbered(np.zeros((len(at) - 1, 1, 1), dtype=np.uint8), np.empty(0) if label is None else label, str(path))
        return self._read_headers(
            [f"{path}, image {n}" for n in range(len(at) - 1)], lambda n: data[at[n] : at[n + 1]].tobytes(), part.labels
        )

    # -- folders -------------------------------------------------------------------------------------------------------

    def _folder(self, folder: Path) -> dict[str, Part]:
        inside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        found: dict[str, Part] = {}
        for part, names in PART_NAMES.items():
            folders = [path for path in inside if path.is_dir() and path.name.lower() in names]
            archives = [path for path in inside if path.is_file() and path.suffix == ".npz" and path.stem.lower() in names]
            idx = [path for path in inside if path.is_file() and path.name.startswith(tuple(f"{name}-images" for name in names))]
            if folders:
                found[part] = self._classes(folders[0])
            elif archives or idx:
                found[part] = self._file([*archives, *idx][0])["train"]
        if "train" in found:
            return found
        arrays = [path for path in inside if path.name.startswith(("images.", "images-idx3", "x.np"))]
        return self._file(arrays[0]) if arrays else {"train": self._classes(folder)}

    def _classes(self, folder: Path) -> Part:
        """A folder per class; any images without labels."""
        if not self.labelled:
            below = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix.lower() in SUFFIXES)
            if not below:
                raise BadFile(f"{folder}: no images in it; expected files that end in {', '.join(SUFFIXES)}, IDX files, or train.npz")
            return self._read_headers([str(path) for path in below], lambda n: files.read(below[n], MAX_BYTES), [""] * len(below))
        classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
        if not classes:
            raise BadFile(f"{folder}: no folders in it; expected a folder of images per class, IDX files, or train.npz")
        paths: list[Path] = []
        for one in classes:
            inside = sorted(path for path in one.rglob("*") if path.is_file() and path.suffix.lower() in SUFFIXES)
            if not inside:
                raise BadFile(f"{one}: no images of this class; expected files that end in {', '.join(SUFFIXES)}, or no such folder")
            paths += inside
        labels = [path.relative_to(folder).parts[0] for path in paths]
        return self._read_headers([str(path) for path in paths], lambda n: files.read(paths[n], MAX_BYTES), labels)

    def _read_headers(self, names: list[str], content: Callable[[int], bytes], labels: Sequence[str]) -> Part:
        """Sizes and fingerprints of image files; those that are none are an error, or left out."""
        pace, good, shapes, keys = Pace("reading images"), [], [], []
        for number, name in enumerate(names):
            try:
                data = content(number)
                shapes.append(Shape(*image_shape(data, name)))
            except BadFile as wrong:
                self.skipped.refuse(wrong)
                continue
            keys.append(hashlib.blake2b(data, digest_size=8).digest())
            good.append(number)
            pace.add(len(data))
        if not good:
            raise BadFile(f"{names[0]}: neither this nor any other of {len(names)} files is an image")
        images = EncodedImages([names[n] for n in good], lambda n: content(good[n]), shapes, keys)
        return Part(images, [labels[n] for n in good], np.arange(len(good)))


@dataclass(frozen=True)
class _Several:
    """Several sets as one."""

    sets: Sequence[tuple[Images, int]]  # a set and one of its numbers, per image

    def __len__(self) -> int:
        return len(self.sets)

    def shape(self, number: int) -> Shape:
        images, n = self.sets[number]
        return images.shape(n)

    def key(self, number: int) -> bytes:
        images, n = self.sets[number]
        return images.key(n)

    def read(self, number: int, channels: Channels) -> Pixels:
        images, n = self.sets[number]
        return images.read(n, channels)


def _joined(parts: Iterable[Part]) -> Part:
    some = list(parts)
    if len(some) == 1:
        return some[0]
    pairs = [(part, int(n)) for part in some for n in part.numbers]
    return Part(_Several([(part.images, n) for part, n in pairs]), [part.labels[n] for part, n in pairs], np.arange(len(pairs)))


def to_pixels(array: npt.NDArray[Any], where: str) -> Pixels:
    """An array of images as (n, h, w) or (n, h, w, 3) of bytes; numbers from 0 to 1 become 0 to 255."""
    if array.ndim == 2:  # flat rows: grey squares, or CIFAR's three planes
        side = round(array.shape[1] ** 0.5)
        colour = round((array.shape[1] / 3) ** 0.5)
        if side * side == array.shape[1]:
            array = array.reshape(-1, side, side)
        elif 3 * colour * colour == array.shape[1]:
            array = array.reshape(-1, 3, colour, colour)
    if array.ndim == 4 and array.shape[1] in (1, 3) and array.shape[3] not in (1, 3):
        array = np.moveaxis(array, 1, -1)
    if array.ndim == 4 and array.shape[3] == 1:
        array = array[..., 0]
    if array.ndim not in (3, 4) or (array.ndim == 4 and array.shape[3] != 3) or array.dtype.kind not in "uif" or 0 in array.shape[1:]:
        raise BadFile(f"{where}: {array.dtype} of shape {array.shape}; expected images (n, height, width), with 3 channels last or first")
    if array.dtype == np.uint8:
        return array
    low, high = (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)
    if not (low >= 0 and high <= 255):
        raise BadFile(f"{where}: values from {low:g} to {high:g}; expected pixels from 0 to 255, or from 0 to 1")
    scale = 255 if array.dtype.kind == "f" and high <= 1 else 1
    return (array * scale).round().astype(np.uint8) if array.dtype.kind == "f" else array.astype(np.uint8)


def read_digits() -> tuple[Pixels, Numbers]:
    """scikit-learn's digits: pixels (1797, 8, 8), scaled from 0…16 to 0…255, and labels; the file holds its licence."""
    text = gzip.decompress(resources.files(__package__).joinpath("digits.csv.gz").read_bytes()).decode()
    rows = np.array([line.split(",") for line in text.splitlines() if not line.startswith("#")], dtype=np.int64)
    return (rows[:, :64] * 255 / 16).round().astype(np.uint8).reshape(-1, 8, 8), rows[:, 64]


def load_pixels(
    part: Part, channels: Channels, fit: Callable[[Pixels], Pixels], size: tuple[int, int], skipped: Skipped
) -> tuple[Pixels, list[str]]:
    """All images at the size of the model, and their labels.

    They are held in memory: more than `MAX_MEMORY` bytes are refused.
    """
    bytes_needed = len(part) * size[0] * size[1] * channels
    if bytes_needed > MAX_MEMORY:
        raise NotSupported(
            f"{len(part):,} images of {size[0]} × {size[1]} pixels take {bytes_needed / 2**30:.1f} GiB of memory; expected at most "
            f"{MAX_MEMORY / 2**30:.0f}: choose a smaller --image-size, or fewer images"
        )
    labels = [part.labels[n] for n in part.numbers]
    if isinstance(part.images, ArrayImages) and part.images.pixels.shape[1:3] == size:
        return with_channels(part.images.pixels[part.numbers], channels), labels
    out = np.empty((len(part), *size, *((3,) if channels == 3 else ())), dtype=np.uint8)
    pace, good = Pace("decoding images", out.nbytes), list[int]()
    for row, number in enumerate(part.numbers.tolist()):
        try:
            out[len(good)] = fit(part.images.read(number, channels))
        except BadFile as wrong:
            skipped.refuse(wrong)
            continue
        good.append(row)
        pace.add(out[0].nbytes)
    return out[: len(good)], [labels[row] for row in good]


MAX_MEMORY = 4 << 30
