"""Functions: generated ones have the covariance of their kernels, tables come back, and what is wrong is named with file and line."""

import numpy as np
import pytest
import torch

from regard.data import Fault
from regard.data.functions import as_text, function_of, read_function_source, with_places
from regard.data.labelled_images import read_digits
from regard.errors import BadFile, MissingFile, NotSupported, UnknownName


def read(source):
    return list(read_function_source(str(source)))


@pytest.mark.parametrize("kind", ["rbf", "matern", "periodic"])
def test_functions_of_a_kernel(kind):
    found = read(f"gp:{kind},count=40,points=9,length=0.5,noise=0.2")
    assert len(found) == 40 and all(one.kernel.kind == kind and (one.kernel.length, one.kernel.noise) == (0.5, 0.2) for one in found)
    assert [one.content() for one in found] == [one.content() for one in read(f"gp:{kind},count=40,points=9,length=0.5,noise=0.2")]
    whitened = []
    for one in found:  # values times the inverse factor of their covariance are standard normal
        x = torch.from_numpy(one.x).double()
        factor = torch.linalg.cholesky(one.kernel(x, x) + (1e-8 + 0.2**2) * torch.eye(9, dtype=torch.float64))
        whitened.append(torch.linalg.solve_triangular(factor, torch.from_numpy(one.y).double(), upper=False))
    every = torch.cat(whitened)
    assert abs(float(every.mean())) < 0.2 and abs(float(every.std()) - 1) < 0.15


def test_kernels_and_lengths_are_drawn():
    kernels = [one.kernel for one in read("gp:,count=60,points=3")]
    assert {one.kind for one in kernels} == {"rbf", "matern", "periodic"}
    assert len({one.length for one in kernels}) > 50 and all(0.3 <= one.length <= 1 for one in kernels)


def test_digits_are_functions_of_pixels():
    pixels, _ = read_digits()
    for n, one in enumerate(read("digits:,count=5")):
        at = one.x.astype(int)
        np.testing.assert_allclose(one.y[:, 0], pixels[n][at[:, 0], at[:, 1]] / 255, rtol=1e-6)


@pytest.mark.parametrize(
    ("source", "error", "says"),
    [
        ("gp:linear", UnknownName, "'linear'"),
        ("gp:,size=3", UnknownName, "'size'"),
        ("gp:,points=1", NotSupported, "points=1"),
        ("gp:,length=-1", NotSupported, "length=-1"),
        ("digits:x", NotSupported, "digits:"),
        ("nothing.csv", MissingFile, "nothing.csv"),
    ],
)
def test_bad_sources(source, error, says):
    with pytest.raises(error, match=says):
        read(source)


# -- tables --------------------------------------------------------------------------------------------------------------


def table(path, text):
    path.write_text(text)
    return path


def test_rows_of_a_task_may_be_anywhere(tmp_path):
    one, two = read(table(tmp_path / "a.csv", "a,0,1\nb,0,5\na,1,2\nb,2,6\n"))
    assert (one.x.tolist(), one.y.tolist(), two.y.tolist()) == ([[0.0], [1.0]], [[1.0], [2.0]], [[5.0], [6.0]])


def test_a_header_names_the_columns(tmp_path):
    rows = "y1,station,x1,y2,x2\n1,s,2,3,4\n5,s,6,7,8\n"
    (one,) = read(table(tmp_path / "a.csv", rows))
    assert one.x.tolist() == [[2.0, 4.0], [6.0, 8.0]] and one.y.tolist() == [[1.0, 3.0], [5.0, 7.0]]
    (two,) = read(table(tmp_path / "a.tsv", rows.replace(",", "\t")))
    assert two.content() == one.content()


@pytest.mark.parametrize(
    ("row", "what", "where"),
    [
        ("a,nan,1", "a value that is not a finite number", "line 3"),
        ("a,1,inf", "a value that is not a finite number", "line 3"),
        ("a,1,one", "a value that is not a number", "line 3"),
        ("a,1", "another number of columns", "line 3"),
        (",1,2", "no name of a task", "line 3"),
        ("c,1,2", "a function of one point", "line 3"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_line(row, what, where, tmp_path):
    found = read(table(tmp_path / "a.csv", f"task,x,y\na,0,1\n{row}\na,1,2\nb,0,1\nb,1,2\n"))
    (fault,) = (one for one in found if isinstance(one, Fault))
    assert fault.what == what and fault.where == f"{tmp_path / 'a.csv'}, {where}"
    assert len(found) == 3


def test_too_few_columns(tmp_path):
    with pytest.raises(BadFile, match="2 columns; expected a task, x and y"):
        read(table(tmp_path / "a.csv", "a,1\na,2\n"))


# -- inputs --------------------------------------------------------------------------------------------------------------


def test_points_as_they_are_typed():
    found = function_of("0 1; 0.5, 0.25; 2", 1, 1)
    assert found.context == 2 and found.x.tolist() == [[0.0], [0.5], [2.0]] and found.y[:2].tolist() == [[1.0], [0.25]]
    assert function_of(as_text(found, 2), 1, 1).x.tolist() == [[0.0], [0.5]]
    more = with_places(found, [[7.0]])
    assert more.x.tolist() == [[0.0], [0.5], [2.0], [7.0]] and more.context == 2
    assert function_of("3", 1, 1).context == 0
    for text in ("0 1 2", "a b", "nan 1", "1e31 1"):
        with pytest.raises(NotSupported, match="expected 2 numbers"):
            function_of(text, 1, 1)
