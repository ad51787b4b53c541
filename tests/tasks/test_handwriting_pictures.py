"""Strokes as curves: through every point, straight where the points are, round between the points of a circle, sharp at corners."""

import re

import numpy as np

from regard.tasks.handwriting_pictures import beziers, curves, to_svg

ANGLES = np.linspace(0, 2 * np.pi, 9)
CIRCLE = np.stack([np.cos(ANGLES), np.sin(ANGLES)], 1)


def test_a_curve_goes_through_its_points():
    found = curves(CIRCLE)
    np.testing.assert_allclose(found[:, 0], CIRCLE[:-1], atol=1e-12)
    np.testing.assert_allclose(found[:, -1], CIRCLE[1:], atol=1e-12)


def test_eight_points_of_a_circle_are_round():
    """Without the first and the last piece, whose ends are open: within 0.5 % of the radius, where chords are 8 % off."""
    assert np.abs(np.linalg.norm(curves(CIRCLE)[1:-1], axis=-1) - 1).max() < 0.005


def test_lines_stay_straight_and_corners_sharp():
    stroke = np.array([[0, 0], [1, 0], [3, 0], [3, 2], [2, 0]], dtype=float)  # a right angle, then a sharp one
    found = beziers(stroke)
    assert (found[:2, :, 1] == 0).all()
    np.testing.assert_allclose(found[2, :, 0], 3)
    np.testing.assert_allclose(found[1, 2], [3 - 2 / 3, 0])


def test_points_that_repeat_and_single_points():
    assert np.isfinite(beziers(np.zeros((4, 2)))).all()
    assert (curves(np.array([[2.0, 3.0]])) == [2, 3]).all()


def test_an_svg_path_ends_where_the_stroke_ends():
    points = np.array([[0, 0, 0], [3, 0, 0], [0, 6, 1], [1, 1, 1]], dtype=np.float32)
    paths = re.findall(r'<path d="M([^"]*)"', to_svg(points))
    assert [path.count("C") for path in paths] == [2, 1]
    first, last = (np.array(re.findall(r"[-\d.]+", path)[-2:], dtype=float) for path in paths)
    np.testing.assert_allclose(last - first, 120 / 7, atol=0.11)  # (1, 1), where 7 is the height of the line
