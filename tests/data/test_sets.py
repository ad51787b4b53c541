"""Sets: generated ones are what they say, users' files come back, and what is wrong is named with file and line."""

import json

import numpy as np
import pytest

from regard.data import Fault
from regard.data.labelled_images import read_digits
from regard.data.sets import SOURCES, Expected, read_set_source, set_of, whole
from regard.data.splits import part_of
from regard.errors import BadFile, NotSupported, UnknownName

part = part_of((0.1, 0.1))


def read(source, **expected):
    return list(read_set_source(str(source), Expected(**expected), part))


# -- generated -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOURCES)
def test_a_generated_source_is_a_function_of_its_name(name):
    one, again, other = (read(f"{name}:{more}count=30") for more in (",", ",", ",seed=1,"))
    assert len(one) == 30 and [e.content() for e in one] == [e.content() for e in again] != [e.content() for e in other]
    assert all(np.isfinite(e.items).all() and e.items.dtype == np.float32 for e in one)


def test_the_largest_is_in_the_set():
    found = read("max:7,count=200")
    assert all(e.target == e.items.max() and 1 <= len(e.items) <= 7 for e in found)
    assert {len(e.items) for e in found} == set(range(1, 8))


def test_copies_are_nearer_than_different_points():
    for e in (found := read("unique:10,count=100")):
        same = np.array(e.names)[:, None] == np.array(e.names)[None]
        far = np.sqrt(np.square(e.items[:, None] - e.items[None]).sum(-1))
        assert len(set(e.names)) == e.target and 6 <= len(e.items) <= 10
        assert far[same].mean() < 0.06 and far[~same].min(initial=1) > 0.05
    assert whole(found) and {e.target for e in found} == set(range(1, 11))


def test_the_odd_one_out_is_another_digit_of_the_same_part():
    pixels, labels = read_digits()
    number = {(x / 255).astype(np.float32).tobytes(): n for n, x in enumerate(pixels.reshape(len(pixels), -1))}
    for e in read("odd:10,count=100"):
        which = [number[row.tobytes()] for row in e.items]
        digits = labels[which]
        assert (digits == digits[e.target]).sum() == 1 and len(set(digits)) == 2 and len(e.items) == 10
        assert len({part(str(n)) for n in which}) == 1 and part(e.key) == part(str(which[0]))
    assert {e.target for e in read("odd:3,count=50")} == {0, 1, 2}


def test_clusters_have_the_density_they_are_drawn_from():
    found = read("clusters:1,count=40")
    std = np.concatenate([e.items - e.items.mean(0) for e in found]).std(0)
    assert std == pytest.approx(0.3, rel=0.05) and all(e.target is None and 30 <= len(e.items) <= 60 for e in found)


@pytest.mark.parametrize(
    ("source", "says"), [("max:x", "'x'"), ("max:0", "max:10=0"), ("odd:5,size=2", "'size'"), ("unique:99", "expected 2 to 20")]
)
def test_bad_names_of_sources(source, says):
    with pytest.raises((NotSupported, UnknownName), match=says):
        read(source)


# -- files ---------------------------------------------------------------------------------------------------------------


def jsonl(path, *rows):
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


def test_json_lines_and_arrays_are_the_same(tmp_path):
    sets, y = [[[1, 2.5]], [[3, 4], [5, 6], [7, 8]], [[0, -1], [0, -1]]], [1, 2.5, -3]
    lines = read(jsonl(tmp_path / "sets.jsonl", *({"set": one, "y": target} for one, target in zip(sets, y, strict=True))))
    np.savez(tmp_path / "sets.npz", items=np.concatenate(sets), offset=np.array([0, 1, 4, 6]), y=np.array(y))
    arrays = read(tmp_path / "sets.npz")
    assert [e.content() for e in lines] == [e.content() for e in arrays]
    assert [e.items.tolist() for e in lines] == sets and [e.target for e in lines] == y


def test_targets_of_every_kind(tmp_path):
    path = jsonl(tmp_path / "sets.jsonl", {"set": [1, 2], "y": 1}, {"set": [3], "y": 0})
    assert [e.target for e in read(path)] == [1.0, 0.0]
    assert [e.target for e in read(path, kind="index")] == [1, 0]
    assert [e.target for e in read(path, kind="label")] == ["1", "0"]
    assert [e.target for e in read(path, kind="clusters")] == [None, None]
    assert read(jsonl(tmp_path / "words.jsonl", {"set": [1], "y": "cat"}))[0].target == "cat"
    assert read(jsonl(tmp_path / "none.jsonl", {"set": [1]}))[0].target is None
    np.savez(tmp_path / "words.npz", items=np.ones(2), offset=np.array([0, 2]), y=np.array(["dog"]))
    assert read(tmp_path / "words.npz")[0].target == "dog"


GOOD = {"set": [[1, 2], [3, 4]], "y": 1}


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"set": [[1, 2, 3]], "y": 1}, "items of another width"),
        ({"set": [[1, 2], [3]], "y": 1}, "items of different widths"),
        ({"set": [[1, 2], 3], "y": 1}, "an item that is not a list of numbers"),
        ({"set": [[1, "2"]], "y": 1}, "an item that is not a list of numbers"),
        ({"set": [[1, True]], "y": 1}, "an item that is not a list of numbers"),
        ({"set": [[1, None]], "y": 1}, "an item that is not a list of numbers"),
        ('{"set": [[1, NaN]], "y": 1}\n', "a coordinate that is not finite"),
        ('{"set": [[1, 1e400]], "y": 1}\n', "a coordinate that is not finite"),
        ('{"set": [[1, 1' + 400 * "0" + ']], "y": 1}\n', "a coordinate that is not finite"),
        ({"set": [[1, 1e39]], "y": 1}, "a coordinate that is not finite"),
        ({"set": [], "y": 1}, "an empty set"),
        ({"set": [[], []], "y": 1}, "items without numbers"),
        ({"set": "abc", "y": 1}, "no list of items"),
        ({"y": 1}, "no set"),
        ([1, 2], "no set"),
        ({"set": [[1, 2]]}, "no target"),
        ({"set": [[1, 2]], "y": "cat"}, "a target that is not a finite number"),
        ('{"set": [[1, 2]], "y": Infinity}\n', "a target that is not a finite number"),
        ("{broken\n", "not JSON"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_line(row, what, tmp_path):
    first, fault, last = read(jsonl(tmp_path / "sets.jsonl", GOOD, row, GOOD))
    assert isinstance(fault, Fault) and fault.what == what and str(fault).startswith(f"{tmp_path / 'sets.jsonl'}, line 2: {what}")
    assert first.target == last.target == 1.0


@pytest.mark.parametrize("index", [2, -1, 0.5, "1", True])
def test_an_index_must_be_in_the_set(index, tmp_path):
    _, fault = read(jsonl(tmp_path / "sets.jsonl", GOOD, GOOD | {"y": index}), kind="index")
    assert "line 2" in fault.where and ("index" in fault.what)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"items": np.ones((3, 2))}, "expected items and offset"),
        ({"items": np.ones((3, 2)), "offset": np.array([0, 2])}, "expected whole numbers from 0 to 3"),
        ({"items": np.ones((3, 2)), "offset": np.array([0, 2, 1, 3])}, "offsets that fall"),
        ({"items": np.ones((3, 2)), "offset": np.array([0, 3]), "y": np.ones(2)}, "expected 1 numbers or texts"),
        ({"items": np.ones((3, 2, 1)), "offset": np.array([0, 3])}, "items of shape"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arrays, says, tmp_path):
    np.savez(tmp_path / "sets.npz", **arrays)
    with pytest.raises(BadFile, match=says):
        read(tmp_path / "sets.npz")


def test_an_empty_set_and_a_nan_of_an_array_are_named_by_number(tmp_path):
    np.savez(tmp_path / "sets.npz", items=np.array([1.0, np.nan]), offset=np.array([0, 1, 1, 2]), y=np.ones(3))
    _, empty, nan = read(tmp_path / "sets.npz")
    assert (empty.what, nan.what) == ("an empty set", "a coordinate that is not finite") and nan.where.endswith("set 2")


def test_an_input_is_a_set_of_the_same_width():
    assert set_of([1, 2], Expected(width=1)).items.tolist() == [[1.0], [2.0]]
    with pytest.raises(NotSupported, match=r"items of another width \(1 numbers per item, the first set has 2\)"):
        set_of([[1]], Expected(width=2))
