"""Images with captions: from the user's files, or generated scenes.

    read_captions("captions.csv", size=64)           columns file and caption; a header line is skipped; several rows per image
    read_captions("captions_val2017.json", size=64)  COCO's layout: images (id, file_name) and annotations (image_id, caption)
    read_captions("folder", size=64)                 a folder with captions.csv or captions.json beside its images
    read_captions("scenes:count=500", size=32)       see `scenes`

Names of images are relative to `images`, or to the folder of the file with the captions. Images are read under the policy of `data.images`
and squashed to size × size; they are kept in memory as bytes, so 100,000 of 64 × 64 take 1.2 GB. The part of an image follows from a hash of its
name (of a scene, of its objects), so all captions of an image are in one part.

Faults: a caption for a missing image, an image that cannot be read, an image without a caption (in COCO's list, or in a folder), an
empty caption, a row without two columns. `on_error="stop"` raises at the first, with file and line; `on_error="skip"` skips and counts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import BadFile, MissingFile, NotSupported
from ..files import read_json
from .images import SUFFIXES, Pixels, read_image, resize
from .lines import CSV, LONGEST, Fault, Policy, Skipped, cells, check_file, plain_suffix, unwritable
from .scenes import Thing, scenes
from .splits import SHARES, Splits, digest, hold_out

SCENES = "scenes"
SIZE = 32  # pixels per side of images from files, if no size is given
JSON_LIMIT = 1 << 30  # bytes; captions_train2017.json has 92 million
MAX_BYTES = 16 << 30  # of all images in memory
MAX_CHARACTERS = 2000  # of a caption
HEADERS = ({"file", "image", "filename", "file_name", "path"}, {"caption", "text", "captions"})


class Captioned(NamedTuple):
    """An image and what it shows."""

    name: str
    pixels: Pixels  # (size, size, 3)
    captions: tuple[str, ...]
    things: tuple[Thing, ...] = ()  # objects of a generated scene


def is_scenes(spec: str) -> bool:
    """Return whether this names generated scenes and no file."""
    return spec.partition(":")[0] == SCENES and not Path(spec).exists()


def read_captions(
    spec: str,
    *,
    size: int | None = None,
    images: str | None = None,
    valid: str | None = None,
    test: str | None = None,
    on_error: Policy = "stop",
    shares: tuple[float, float] = SHARES,
) -> Splits[list[Captioned]]:
    """Images of size × size pixels with their captions, in three parts; a part that is not named is split off by a hash. Without a size, generated
    scenes keep theirs, and others have 32."""
    skipped = Skipped(unit="caption", on_error=on_error)

    def read(one: str) -> list[Captioned]:
        found = _scenes(one, size) if is_scenes(one) else _pictures(_annotations(Path(one)), images, size or SIZE, skipped)
        if not found:
            raise BadFile(f"{one}: no image with a caption in it{f'; {skipped}' if len(skipped) else ''}")
        return found

    shares = (0.0 if valid else shares[0], 0.0 if test else shares[1])
    train, *held = hold_out(read(spec), lambda one: str(one.things) if one.things else one.name, shares)
    parts = train, read(valid) if valid else held[0], read(test) if test else held[1]
    return Splits(*parts, skipped, digest(_contents(parts)))


def _contents(parts: Sequence[Sequence[Captioned]]) -> Iterator[bytes]:
    for part in parts:
        for one in part:
            yield "\n".join((one.name, *one.captions, "")).encode()
            yield one.pixels.tobytes()
        yield b"\n"


def _scenes(spec: str, size: int | None) -> list[Captioned]:
    drawn = scenes(spec.partition(":")[2])
    sized = [one.pixels if size is None else resize(one.pixels, size, size) for one in drawn]
    return [Captioned(f"scene {n}", pixels, one.captions, one.things) for n, (pixels, one) in enumerate(zip(sized, drawn, strict=True))]


# -- files -------------------------------------------------------------------------------------------------------------


class _Annotation(NamedTuple):
    where: str  # file and line
    folder: Path  # that the name is relative to
    name: str
    caption: str


def _annotations(path: Path) -> Iterator[_Annotation | Fault]:
    if path.is_dir():
        inside = [path / name for name in ("captions.csv", "captions.tsv", "captions.json") if (path / name).exists()]
        if len(inside) != 1:
            has = " and ".join(one.name for one in inside) or "none of them"
            raise BadFile(f"{path}: expected captions.csv, captions.tsv or captions.json beside the images, found {has}")
        listed = set()
        for one in _annotations(inside[0]):
            listed |= set() if isinstance(one, Fault) else {(one.folder / one.name).resolve()}
            yield one
        for image in sorted(path.rglob("*")):
            if image.suffix.lower() in SUFFIXES and image.is_file() and image.resolve() not in listed:
                yield Fault(str(image), "image without a caption", "", f"name it in {inside[0].name}, or remove it")
        return
    if not path.exists():
        raise MissingFile(f"{path}: no such file or folder, and no generated data: those are scenes:count=4000,size=24")
    yield from _coco(path) if plain_suffix(path) == ".json" else _rows(check_file(path))


def _rows(path: Path) -> Iterator[_Annotation | Fault]:
    for number, (where, row) in enumerate(cells(path, LONGEST)):
        if isinstance(row, Fault):
            yield row
        elif len(row) < 2 or not row[0]:
            between = "comma" if plain_suffix(path) == CSV else "tab"
            yield Fault(where, "no file and caption", f"{len(row)} columns", f"separate file and caption by a {between}")
        elif number or row[0].lower() not in HEADERS[0] or row[1].lower() not in HEADERS[1]:
            caption = row[1] if len(row) == 2 else ", ".join(row[1:])  # a caption with commas and without quotation marks
            yield _Annotation(where, path.parent, row[0], caption)


def _coco(path: Path) -> Iterator[_Annotation | Fault]:
    whole = read_json(check_file(path), JSON_LIMIT)
    try:
        names = {one["id"]: str(one["file_name"]) for one in whole["images"]}
        annotations = [(one["image_id"], one["caption"]) for one in whole["annotations"]]
    except (KeyError, TypeError, IndexError) as wrong:
        raise BadFile(
            f"{path}: expected COCO's captions: images with id and file_name, annotations with image_id and caption; {wrong!r}"
        ) from wrong
    named = set()
    for number, (image, caption) in enumerate(annotations):
        where = f"{path}, annotation {number:,}"
        if image not in names or not isinstance(caption, str):
            yield Fault(where, "no image and caption", f"image_id {image!r}", "name an image of the list, and a text")
            continue
        named.add(image)
        yield _Annotation(where, path.parent, names[image], " ".join(caption.split()))
    for image, name in names.items():
        if image not in named:
            yield Fault(f"{path}, image {image}", "image without a caption", name, "write an annotation for it, or remove it")


def _pictures(found: Iterable[_Annotation | Fault], images: str | None, size: int, skipped: Skipped) -> list[Captioned]:
    """Each image once, with all of its captions, in order of first mention."""
    pixels: dict[str, Pixels] = {}
    captions: dict[str, list[str]] = {}
    unreadable: dict[str, Fault] = {}
    for one in skipped.sound(found):
        fault = _bad_caption(one)
        if fault is None and one.name not in pixels:
            fault = unreadable.get(one.name)
            if fault is None:
                image = _image(one, images, size)
                if isinstance(image, Fault):
                    fault = unreadable[one.name] = image
                else:
                    pixels[one.name] = image
                    if len(pixels) * image.nbytes > MAX_BYTES:
                        raise NotSupported(f"{one.where}: more than {MAX_BYTES >> 30} GiB of images; take fewer, or a smaller --image-size")
        if fault is not None:
            skipped.take(fault)
        else:
            captions.setdefault(one.name, []).append(one.caption)
    return [Captioned(name, pixels[name], tuple(dict.fromkeys(texts))) for name, texts in captions.items()]


def _bad_caption(one: _Annotation) -> Fault | None:
    if not one.caption.strip():
        return Fault(one.where, "empty caption", one.name, "write what the image shows")
    if len(one.caption) > MAX_CHARACTERS:
        return Fault(one.where, "caption too long", f"{len(one.caption):,} characters, at most {MAX_CHARACTERS:,}", "shorten it")
    return unwritable(one.where, one.caption)


def _image(one: _Annotation, images: str | None, size: int) -> Any:
    folder = Path(images) if images else one.folder
    try:
        return resize(read_image(folder / one.name), size, size)
    except MissingFile:
        return Fault(one.where, "caption for a missing image", str(folder / one.name), "correct the name, or name the folder with --images")
    except BadFile as wrong:
        return Fault(one.where, "image that cannot be read", str(wrong), "replace it")
