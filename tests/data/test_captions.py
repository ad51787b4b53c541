"""Images with captions: two layouts of files, and what becomes of faults."""

import json

import numpy as np
import pytest
from PIL import Image

from regard.data.captions import read_captions
from regard.errors import BadFile, MissingFile


@pytest.fixture
def folder(tmp_path):
    for name, shade in (("a.png", 0), ("b.png", 100), ("c.png", 200)):
        Image.new("RGB", (6, 4), (shade, shade, shade)).save(tmp_path / name)
    return tmp_path


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def read(path, **options):
    return read_captions(str(path), size=4, **{"shares": (0.0, 0.0), **options})


GOOD = 'file,caption\na.png,one thing\nb.png,another\na.png,"a thing, again"\n'


def test_csv_and_tsv(folder):
    found = read(write(folder / "captions.csv", GOOD))
    assert [(one.name, one.captions) for one in found.train] == [("a.png", ("one thing", "a thing, again")), ("b.png", ("another",))]
    assert all(one.pixels.shape == (4, 4, 3) for one in found.train) and (found.train[1].pixels == 100).all()
    tabs = read(write(folder / "t.tsv", "a.png\tone\nb.png\ttwo\n"))
    assert [one.captions for one in tabs.train] == [("one",), ("two",)]
    assert tabs.digest != found.digest == read(folder / "captions.csv").digest


def test_coco(folder):
    images = [{"id": 7, "file_name": "a.png"}, {"id": 8, "file_name": "b.png"}]
    annotations = [{"image_id": 8, "caption": "two\nlines "}, {"image_id": 7, "caption": "one"}, {"image_id": 8, "caption": "more"}]
    path = write(folder / "captions.json", json.dumps({"images": images, "annotations": annotations, "info": {}}))
    assert [(one.name, one.captions) for one in read(path).train] == [("b.png", ("two lines", "more")), ("a.png", ("one",))]
    inside = folder / "images"
    inside.mkdir()
    for name in "ab":
        (folder / f"{name}.png").rename(inside / f"{name}.png")
    with pytest.raises(BadFile, match="missing image"):
        read(path)
    assert len(read(path, images=str(inside)).train) == 2


FAULTS = {
    "a caption for a missing image": ("nowhere.png,a thing\n", "missing image"),
    "an empty caption": ("a.png,\n", "empty caption"),
    "no caption": ("a.png\n", "no file and caption"),
    "no file": (",a thing\n", "no file and caption"),
    "a long caption": (f"a.png,{'word ' * 500}\n", "too long"),
    "no image": ("captions.csv,a thing\n", "cannot be read"),
    "a damaged image": ("cut.png,a thing\n", "cannot be read"),
    "a NUL byte": ("a.png,a\0thing\n", "NUL"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_stop_or_are_counted(folder, fault):
    row, says = FAULTS[fault]
    (folder / "cut.png").write_bytes((folder / "a.png").read_bytes()[:-30])
    path = write(folder / "captions.csv", GOOD + row)
    with pytest.raises(BadFile, match=says) as caught:
        read(path)
    assert "captions.csv, line 5" in str(caught.value) and "\n" not in str(caught.value)
    found = read(path, on_error="skip")
    assert len(found.train) == 2 and len(found.skipped) == 1 and says in str(found.skipped)


def test_images_without_captions(folder):
    write(folder / "captions.csv", GOOD)
    with pytest.raises(BadFile, match=r"c\.png: image without a caption"):
        read(folder)
    found = read(folder, on_error="skip")
    assert len(found.train) == 2 and "1 image without a caption" in str(found.skipped)
    described = {"images": [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "b.png"}]}
    path = write(
        folder / "c.json", json.dumps(described | {"annotations": [{"image_id": 1, "caption": "one"}, {"image_id": 9, "caption": "x"}]})
    )
    found = read(path, on_error="skip")
    assert len(found.train) == 1 and "1 image without a caption" in str(found.skipped) and "1 no image and caption" in str(found.skipped)


@pytest.mark.parametrize("text", ["{}", "[]", '{"images": [{}], "annotations": []}', '{"images": 3, "annotations": []}', "{"])
def test_json_of_another_kind(folder, text):
    with pytest.raises(BadFile, match=r"c\.json"):
        read(write(folder / "c.json", text))


def test_what_cannot_be_read_at_all(folder):
    with pytest.raises(MissingFile, match="scenes:count"):
        read(folder / "none.csv")
    with pytest.raises(BadFile, match=r"captions\.csv"):
        read(folder)  # a folder without captions
    with pytest.raises(BadFile, match="no image with a caption"):
        read(write(folder / "empty.csv", "file,caption\n"))


def test_parts_hold_whole_images(folder):
    found = read_captions("scenes:count=200", size=16, shares=(0.2, 0.1))
    assert len(found.train) + len(found.valid) + len(found.test) == 200 and len(found.valid) > len(found.test) > 5
    assert found.train[0].pixels.shape == (16, 16, 3) and found.train[0].pixels.dtype == np.uint8
    grown = read_captions("scenes:count=300", size=16, shares=(0.2, 0.1))
    assert {str(one.things) for one in found.test} <= {str(one.things) for one in grown.test}  # by content, not by position
    path = write(folder / "captions.csv", GOOD)
    named = read_captions(path, size=4, valid=path, test=path)
    assert len(named.train) == len(named.valid) == len(named.test) == 2
