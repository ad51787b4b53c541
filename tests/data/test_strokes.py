"""Pen strokes: what a Hershey writer writes, and what is read, left out or refused of IAM-OnDB files and arrays."""

import os
from pathlib import Path

import numpy as np
import pytest

from regard.data.hershey import FONTS, JOIN, SPACING, hershey, resample, text_strokes
from regard.data.strokes import read_strokes
from regard.errors import BadFile, MissingFile, NotSupported, UnknownName

DATA = Path(os.environ.get("REGARD_DATA") or Path(__file__).resolve().parents[2].parent / "shared" / "data")


# -- Hershey -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("font", FONTS)
def test_every_font_writes(font):
    one, two = hershey(f"{font},count=2,seed=3"), hershey(f"{font},count=2,seed=3")
    assert [line.text for line in one] == [line.text for line in two] and np.array_equal(one[1].points, two[1].points)
    for line in one:
        assert line.points.dtype == np.float32 and np.isfinite(line.points).all()
        assert set(np.unique(line.points[:, 2])) == {0, 1} and line.points[-1, 2] == 1 and not line.points[0, :2].any()
        assert len(line.letters) == len(line.points) and set(line.letters) == {n for n, c in enumerate(line.text) if c != " "}


def test_letters_are_where_the_text_has_them():
    """Left to right: the mean x of each letter's points grows with its number."""
    for line in hershey("futural,count=5"):
        x = line.points[:, 0].cumsum()
        means = [x[line.letters == n].mean() for n in np.unique(line.letters)]
        assert (np.diff(means) > 0).all()


def test_connected_script_is_written_without_lifting_the_pen():
    lifted = {font: len(text_strokes("hello", font)) for font in ("scripts", "futural")}
    assert lifted == {"scripts": 3, "futural": 6}
    first, second = text_strokes("ll", "futural")
    assert np.hypot(*(second[0] - first[-1])[:2]) > JOIN


def test_resampling_keeps_corners_and_ends():
    corner = np.array([[0.0, 0, 0], [10, 0, 0], [10, 7, 1]])
    found = resample(corner, SPACING)
    assert found[0].tolist() == corner[0].tolist() and found[-1].tolist() == corner[-1].tolist()
    assert (10.0, 0.0) in {(x, y) for x, y, _ in found.tolist()}
    assert (np.hypot(*np.diff(found[:, :2], axis=0).T) < 1.5 * SPACING).all()


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("hershey:scipts", UnknownName, "'scripts'"),
        ("hershey:scripts,cuont=3", UnknownName, "'count'"),
        ("hershey:scripts,count=0", NotSupported, "count=0: expected 1 to"),
        ("nothing", MissingFile, "nothing: no such file"),
    ],
)
def test_what_is_no_source(name, kind, says):
    with pytest.raises(kind, match=says):
        read_strokes(name)


# -- IAM-OnDB ----------------------------------------------------------------------------------------------------------

XML = (
    '<?xml version="1.0"?><WhiteboardCaptureSession>{text}<StrokeSet><Stroke><Point x="10" y="20" time="0.1"/><Point x="13" y="24" time="0.2"/>'
    '</Stroke><Stroke><Point x="13" y="20" time="0.3"/></Stroke></StrokeSet></WhiteboardCaptureSession>'
)
OFFSETS = [[0, 0, 0], [3, 4, 1], [0, -4, 1]]


def test_lines_of_iam(tmp_path):
    """The text is in ascii/, beside the file, in the file, or nowhere."""
    strokes, page = tmp_path / "lineStrokes" / "a01" / "a01-000", tmp_path / "ascii" / "a01" / "a01-000" / "a01-000u.txt"
    strokes.mkdir(parents=True), page.parent.mkdir(parents=True)
    page.write_text("OCR:\n\nnot this\n\nCSR:\n\nA move to stop\nMr . Gaitskell\n")
    (strokes / "a01-000u-02.xml").write_text(XML.format(text=""))
    (strokes / "a01-000u-03.xml").write_text(XML.format(text=""))
    (strokes / "b.xml").write_text(XML.format(text="")), (strokes / "b.txt").write_text("beside\n")
    (strokes / "c.xml").write_text(XML.format(text='<Transcription><TextLine text="Don&apos;t &amp; do"/></Transcription>'))
    found = read_strokes(tmp_path / "lineStrokes", shares=(0.0, 0.0)).train
    assert [one.text for one in found] == ["Mr . Gaitskell", "", "beside", "Don't & do"]
    assert all(one.points.tolist() == OFFSETS for one in found)


BOMB = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><Stroke><Point x="1" y="2"/>&b;</Stroke>'


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (BOMB, "document type"),
        ("<Stroke><Point x='1'/></Stroke>", "a point without 'y'"),
        ("<Stroke><Point x='1' y='two'/></Stroke>", "could not convert"),
        ("<Stroke><Point x='1' y='nan'/></Stroke>", "a point at 1.0, nan"),
        ("<Stroke><Point x='1' y='2'/>", "no element found"),
        ("<Stroke><Point x='1' y='2'/></Stroke>", "fewer than two points"),
        ("<WhiteboardCaptureSession><StrokeSet/></WhiteboardCaptureSession>", r"no strokes in it \(expected <Stroke> elements"),
        ("<html><body/></html>", "no strokes in it"),
        ("", "no element found"),
        ("\xff\0", "not well-formed"),
    ],
)
def test_malformed_xml_is_one_line_or_skipped(content, says, tmp_path):
    (tmp_path / "bad.xml").write_text(content)
    (tmp_path / "good.xml").write_text(XML.format(text=""))
    with pytest.raises(BadFile, match=says) as error:
        read_strokes(tmp_path)
    assert "bad.xml" in str(error.value) and "\n" not in str(error.value)
    found = read_strokes(tmp_path, on_error="skip", shares=(0.0, 0.0))
    assert len(found.train) == 1 and len(found.skipped) == 1


def test_a_folder_without_lines(tmp_path):
    with pytest.raises(BadFile, match=r"0 \.xml files"):
        read_strokes(tmp_path)


# -- arrays ------------------------------------------------------------------------------------------------------------

ROWS = np.array([[0, 0, 0], [1, 2, 1], [5, 5, 0], [1, 0, 1], [0, 0, 0], [2, 2, 1]], dtype=np.int16)


def test_arrays_with_and_without_texts(tmp_path):
    np.savez(tmp_path / "one.npz", points=ROWS, offset=[0, 2, 4, 6])
    np.save(tmp_path / "two.npy", ROWS.astype(np.float32)), np.save(tmp_path / "two.offset.npy", np.array([0, 2, 4, 6]))
    (tmp_path / "two.txt").write_text("a\nb c\nd\n")
    one, two = (read_strokes(tmp_path / name, shares=(0.0, 0.0)).train for name in ("one.npz", "two.npy"))
    assert [len(each.points) for each in one] == [2, 3, 2]  # one does not begin at the origin, which is put before it
    assert one[1].points.tolist() == [[0, 0, 0], [5, 5, 0], [1, 0, 1]]
    assert [each.text for each in one] == [""] * 3 and [each.text for each in two] == ["a", "b c", "d"]


def test_arrays_in_three_parts(tmp_path):
    parts = {name: ROWS[:4] + n for n, name in enumerate(("train", "valid", "test"))}
    parts = {name: np.where(np.arange(3) == 2, ROWS[:4], rows) for name, rows in parts.items()}
    np.savez(tmp_path / "three.npz", **parts, **{f"{name}_offset": [0, 2, 4] for name in parts})
    (tmp_path / "three.txt").write_text("".join(f"{n}\n" for n in range(6)))
    found = read_strokes(str(tmp_path / "three.npz"))
    assert [[one.text for one in part] for part in (found.train, found.valid, found.test)] == [["0", "1"], ["2", "3"], ["4", "5"]]
    alone = read_strokes(f"{tmp_path / 'three.npz'}#test", shares=(0.0, 0.0))
    assert [one.text for one in alone.train] == ["4", "5"]
    left = read_strokes(str(tmp_path / "three.npz"), longest=2, shares=(0.0, 0.0))  # the other begins away from the origin
    assert [one.text for one in left.train] == ["0"] and "1 too long" in str(left.skipped)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"points": ROWS[:, :2], "offset": [0, 6]}, r"\(6, 2\)"),
        ({"points": ROWS, "offset": [0, 5]}, "from 0 to 6"),
        ({"points": ROWS, "offset": [0, 4, 2, 6]}, "offsets that fall"),
        ({"points": ROWS + 1, "offset": [0, 6]}, "0 or 1 for a lifted pen"),
        ({"points": np.where(ROWS == 5, np.nan, ROWS), "offset": [0, 2, 6]}, r"sequence 1: .*point 0 is \(nan, nan, 0\); expected finite"),
        ({"points": np.where(ROWS == 5, np.inf, ROWS), "offset": [0, 2, 6]}, r"sequence 1: .*point 0 is \(inf, inf, 0\); expected finite"),
        ({"points": ROWS, "offset": [0, 1, 6]}, "fewer than two points"),
        ({"points": ROWS[:0], "offset": [0]}, "no example in it"),
        ({"points": ROWS}, "expected points and offset"),
        ({"points": np.array([[None, 1, 2]], dtype=object), "offset": [0, 1]}, "pickled"),
    ],
)
def test_malformed_arrays(arrays, says, tmp_path):
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(BadFile, match=says) as error:
        read_strokes(tmp_path / "bad.npz")
    assert "bad.npz" in str(error.value) and "\n" not in str(error.value)


def test_too_few_texts(tmp_path):
    np.savez(tmp_path / "one.npz", points=ROWS, offset=[0, 2, 4, 6])
    (tmp_path / "one.txt").write_text("a\nb\n")
    with pytest.raises(BadFile, match=r"one.txt: 2 lines; expected one per sequence, 3"):
        read_strokes(tmp_path / "one.npz")


@pytest.mark.skipif(not (DATA / "sketches" / "omniglot.npz").is_file(), reason="no sketches: set REGARD_DATA to the folder that holds them")
def test_omniglot():
    found = read_strokes(str(DATA / "sketches" / "omniglot.npz"))
    assert (len(found.train), len(found.valid), len(found.test)) == (30_000, 1_000, 1_000)
    assert 30 < np.mean([len(one.points) for one in found.test]) < 33 and not any(one.text for one in found.train)
