"""Published sets of images, where they are at hand: see test_real."""

import os
from collections import Counter
from pathlib import Path

import pytest

from regard.data import Skipped
from regard.data.labelled_images import load_pixels, read_labelled_images

DATA = Path(os.environ.get("REGARD_DATA") or Path(__file__).resolve().parents[2].parent / "shared" / "data")


@pytest.mark.skipif(not (DATA / "fashion-mnist").is_dir(), reason="no fashion-mnist: set REGARD_DATA to the folder that holds it")
def test_fashion_mnist():
    found = read_labelled_images(str(DATA / "fashion-mnist"))
    assert len(found.train) + len(found.valid) == 60_000 and len(found.test) == 10_000
    assert set(Counter(found.test.labels).values()) == {1000} and found.test.labels[:3] == ["9", "2", "1"]
    pixels, _ = load_pixels(found.test, 1, lambda x: x, (28, 28), Skipped())
    assert pixels.shape == (10_000, 28, 28) and abs(float(pixels.mean()) / 255 - 0.2868) < 1e-3


@pytest.mark.skipif(not (DATA / "cifar10").is_dir(), reason="no cifar10: set REGARD_DATA to the folder that holds it")
def test_cifar10():
    found = read_labelled_images(str(DATA / "cifar10" / "test.npz"), shares=(0.0, 0.0))
    assert len(found.train) == 10_000 and set(Counter(found.train.labels).values()) == {1000}
    assert found.train.images.shape(0) == (32, 32, 3) and found.train.images.read(7, 3).shape == (32, 32, 3)
