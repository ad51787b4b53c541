"""Images with labels, from every kind of file."""

import io
import struct
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from regard.data import Skipped
from regard.data.labelled_images import load_pixels, read_digits, read_labelled_images
from regard.errors import BadFile, MissingFile, RegardError

RNG = np.random.default_rng(0)
X, Y = RNG.integers(0, 256, (20, 6, 4), dtype=np.uint8), np.arange(20) % 3


def whole(data, **more):
    """All images and labels as read."""
    found = read_labelled_images(data, shares=(0.0, 0.0), **more)
    shape = found.train.images.shape(0)
    return load_pixels(found.train, shape.channels, lambda x: x, (shape.height, shape.width), Skipped())


def write_idx(path, array):
    path.write_bytes(bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes())


def write_folder(folder, images, labels, suffix=".png"):
    for n, (image, label) in enumerate(zip(images, labels, strict=True)):
        (folder / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / label / f"{n:03}{suffix}")


def test_arrays_of_every_kind_are_the_same_images(tmp_path):
    names = [str(n) for n in Y]
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    np.savez(tmp_path / "b.npz", images=X[..., None] / 255.0, labels=Y[:, None])
    np.save(tmp_path / "images.npy", X)
    np.save(tmp_path / "labels.npy", Y)
    write_idx(tmp_path / "images-idx3-ubyte", X)
    write_idx(tmp_path / "labels-idx1-ubyte", Y)
    pair = (str(tmp_path / "images.npy"), str(tmp_path / "labels.npy"))
    for data in (str(tmp_path / "a.npz"), str(tmp_path / "b.npz"), pair, str(tmp_path / "images-idx3-ubyte")):
        pixels, labels = whole(data)
        assert (pixels == X).all() and labels == names
    assert whole(str(tmp_path / "a.npz"), names=["a", "b", "c"])[1][:4] == ["a", "b", "c", "a"]
    colour = RNG.integers(0, 256, (5, 4, 6, 3), dtype=np.uint8)
    for n, form in enumerate((colour, np.moveaxis(colour, -1, 1))):
        np.savez(tmp_path / f"c{n}.npz", x=form, y=Y[:5])
        assert (whole(str(tmp_path / f"c{n}.npz"))[0] == colour).all()


def test_jpeg_bytes_end_to_end(tmp_path):
    files = []
    for image in X[:6]:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "PNG")
        files.append(np.frombuffer(file.getvalue(), np.uint8))
    offset = np.cumsum([0, *map(len, files)])
    np.savez(tmp_path / "train.npz", jpeg=np.concatenate(files), offset=offset, label=Y[:6])
    assert (whole(str(tmp_path / "train.npz"))[0] == X[:6]).all()
    np.savez(tmp_path / "train.npz", jpeg=np.concatenate(files), offset=offset[::-1], label=Y[:6])
    with pytest.raises(BadFile, match="increasing"):
        whole(str(tmp_path / "train.npz"))


def test_folders_and_their_parts(tmp_path):
    names = [["cat", "dog", "eel"][n] for n in Y]
    write_folder(tmp_path / "plain", X, names)
    found = read_labelled_images(str(tmp_path / "plain"), shares=(0.2, 0.2))
    assert len(found.train) + len(found.valid) + len(found.test) == 20 and min(map(len, (found.train, found.valid, found.test))) > 0
    assert Counter(whole(str(tmp_path / "plain"))[1]) == Counter(names)
    write_folder(tmp_path / "split" / "train", X[:15], names[:15])
    write_folder(tmp_path / "split" / "test", X[15:], names[15:])
    found = read_labelled_images(str(tmp_path / "split"), shares=(0.2, 0.2))
    assert len(found.test) == 5 and len(found.train) + len(found.valid) == 15
    assert len(whole(str(tmp_path / "split"))[0]) == 20
    for part, numbers in (("train", slice(0, 15)), ("t10k", slice(15, 20))):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte", X[numbers])
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte", Y[numbers])
    found = read_labelled_images(str(tmp_path))
    assert len(found.test) == 5 and found.test.labels == [str(n) for n in Y[15:]]


def test_the_same_image_is_in_one_part(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.concatenate([X, X, X]), y=np.concatenate([Y, Y, Y]))
    found = read_labelled_images(str(tmp_path / "a.npz"), shares=(0.2, 0.3))
    parts = [{n % 20 for n in part.numbers.tolist()} for part in (found.train, found.valid, found.test)]
    assert all(parts) and not parts[0] & parts[1] and not parts[0] & parts[2] and not parts[1] & parts[2]


def test_digits_are_those_of_scikit_learn():
    pixels, labels = read_digits()
    assert pixels.shape == (1797, 8, 8) and Counter(labels.tolist())[3] == 183 and pixels[0, 0].tolist() == [0, 0, 80, 207, 143, 16, 0, 0]
    datasets = pytest.importorskip("sklearn.datasets", reason="the source of the copy")
    theirs = datasets.load_digits()
    assert (labels == theirs.target).all() and ((pixels / 255 * 16).round() == theirs.images).all()


def test_bad_input_is_one_line_with_a_name(tmp_path):
    write_folder(tmp_path / "good", X, ["a" if n else "b" for n in Y])
    (tmp_path / "good" / "empty").mkdir()
    with pytest.raises(BadFile, match="empty: no images of this class"):
        whole(str(tmp_path / "good"))
    (tmp_path / "good" / "empty" / "note.png").write_text("text")
    with pytest.raises(BadFile, match=r"note.png: not an image"):
        whole(str(tmp_path / "good"))
    found = read_labelled_images(str(tmp_path / "good"), shares=(0.0, 0.0), on_error="skip")
    assert len(found.train) == 20 and len(found.skipped) == 1
    content = (tmp_path / "good" / "a" / "001.png").read_bytes()
    (tmp_path / "good" / "a" / "001.png").write_bytes(content[:50])  # the header is whole
    found = read_labelled_images(str(tmp_path / "good"), shares=(0.0, 0.0), on_error="skip")
    assert len(load_pixels(found.train, 1, lambda x: x, (6, 4), Skipped(on_error="skip"))[0]) == 19
    with pytest.raises(BadFile, match=r"001.png: a damaged image"):
        load_pixels(found.train, 1, lambda x: x, (6, 4), Skipped())
    (tmp_path / "none").mkdir()
    np.savez(tmp_path / "odd.npz", z=X)
    np.savez(tmp_path / "few.npz", x=X, y=Y[:5])
    np.savez(tmp_path / "float.npz", x=X, y=Y / 2)
    np.savez(tmp_path / "range.npz", x=X * 3.0, y=Y)
    np.save(tmp_path / "alone.npy", X)
    for data in ("none", "odd.npz", "few.npz", "float.npz", "range.npz", "alone.npy", "missing"):
        with pytest.raises(RegardError) as caught:
            whole(str(tmp_path / data))
        assert str(tmp_path / data) in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(MissingFile):
        whole(str(tmp_path / "missing"))
    with pytest.raises(BadFile, match="0 to 1: there are 2 names"):
        np.savez(tmp_path / "a.npz", x=X, y=Y)
        whole(str(tmp_path / "a.npz"), names=["a", "b"])
