"""IDX, .npy and .npz: what is read, and headers that lie."""

import gzip
import io
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

from regard.data.arrays import read_array, read_arrays
from regard.errors import BadFile

X = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


def idx(array, sizes=None, kind=8):
    sizes = array.shape if sizes is None else sizes
    return bytes([0, 0, kind, len(sizes)]) + struct.pack(f">{len(sizes)}I", *sizes) + array.tobytes()


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_formats(tmp_path):
    path = tmp_path / "x"
    for content in (idx(X), gzip.compress(idx(X)), npy(X), npy(np.asfortranarray(X)), gzip.compress(npy(X))):
        path.write_bytes(content)
        assert read_array(path).dtype == np.uint8 and (read_array(path) == X).all()
    path.write_bytes(idx(X.astype(">i4"), kind=12))
    assert (read_array(path) == X).all() and read_array(path).dtype == np.int32
    np.savez_compressed(tmp_path / "a.npz", x=X, y=[1, 2])
    assert (read_arrays(tmp_path / "a.npz")["x"] == X).all()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (idx(X, (2, 3, 5)), "holds 24"),
        (idx(X, (2, 3, 3)), "holds more"),
        (idx(X, (2**31, 2**31, 2)), "at most"),
        (gzip.compress(idx(X, (60_000, 28, 28)), mtime=0), "holds 24"),
        (gzip.compress(idx(X), mtime=0)[:20], "damaged"),
        (idx(X)[:7], "damaged"),
        (b"", "neither IDX nor"),
        (b"text, no array", "neither IDX nor"),
        (npy(X)[:-3], "holds 21"),
        (npy(X).replace(b"(2, 3, 4)", b"(2, 9, 9)"), "holds 24"),
        (npy(X).replace(b"'|u1'", b"'|O8'"), "damaged|pickled"),
        (npy(np.array([{}], dtype=object)), "pickled"),
    ],
)
def test_headers_that_lie_are_refused(tmp_path, content, says):
    path = tmp_path / "bad-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(BadFile, match=says) as caught:
        read_array(path)
    assert "bad-idx3-ubyte" in str(caught.value) and "\n" not in str(caught.value)


def test_a_bomb_takes_no_memory(tmp_path):
    path = tmp_path / "bomb.npz"
    header = npy(np.zeros(1, dtype=np.uint8)).replace(b"(1,), }    ", b"(99999999,)}")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header)
    tracemalloc.start()
    with pytest.raises(BadFile, match=r"bomb.npz"):
        read_arrays(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(BadFile, match="damaged"):
        read_arrays(path)


@pytest.mark.parametrize("header", [b"(((", b"{'descr': '<f4', 'shape': (2,", b"\x00", b"]"])
def test_a_header_that_is_no_dictionary(header, tmp_path):
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header + b"\n")
    with pytest.raises(BadFile, match="damaged, or not what its name says"):
        read_array(tmp_path / "x.npy")
