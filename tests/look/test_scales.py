"""Scales, labels and summaries, checked in the pixels of pictures and the characters of the terminal."""

import io
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.look.conftest import make_map

from regard.errors import UnknownName
from regard.look import Maps, Scale
from regard.look.overview import draw_overview, draw_summary
from regard.look.pictures import draw_matrix, png
from regard.look.terminal import title, to_text


def uniform(length, **fields):
    """A causal map in which each query attends to all before it alike."""
    return make_map((torch.ones(length, length).tril() / torch.arange(1, length + 1)[:, None]).tolist(), **fields)


def pixels(figure):
    """Brightness of the first plot, 0 to 1: (rows, columns)."""
    import matplotlib.image

    image = matplotlib.image.imread(io.BytesIO(png(figure)))[..., :3].mean(-1)
    box = figure.axes[0].get_window_extent()
    return image[round(len(image) - box.y1) : round(len(image) - box.y0), round(box.x0) : round(box.x1)]


@pytest.mark.parametrize("length", [20, 56, 700])
def test_every_row_of_a_causal_map_reaches_the_darkest_shade(length):
    m = uniform(length)
    for figure in (draw_matrix(m), draw_overview([m, m])):
        brightness = pixels(figure)
        at = np.linspace(0.02, 0.93, 12)
        for y in (int(len(brightness) * share) for share in at):
            left, right = brightness[y, 1], brightness[y, -1]
            assert left < 0.3 and right > 0.95, (y, left, right)
    rows = to_text(m, columns=100).splitlines()[1:-4]
    body = [line.split("│")[1] for line in rows if "│" in line]
    assert len(body) == min(length, -(-length // -(-length // 64))) and all(line.startswith("██") for line in body)


def test_the_largest_of_all_leaves_such_a_map_blank():
    """What the default is for: with one scale for all rows, all but the first have next to no colour."""
    brightness = pixels(draw_matrix(uniform(56), scale="global"))
    assert brightness[len(brightness) // 2, 1] > 0.9
    assert to_text(uniform(56), columns=200, scale="global").splitlines()[30].split("│")[1].strip() == ""


@pytest.mark.parametrize("scale", ["row", "log"])
def test_a_thin_line_in_a_long_map_is_seen(scale):
    length = 4096
    weights = torch.full((length, length), 1e-6).tril() + torch.diag(torch.ones(length - 2000), -2000)
    weights[:, 0] += 1
    weights /= weights.sum(-1, keepdim=True)
    m = make_map([[0.0]], weights_BHLM=weights[None, None], rows=tuple(range(length)), columns=tuple(range(length)), queries=length)
    text = to_text(m, columns=100, scale=scale)
    line = next(line for line in text.splitlines() if line.startswith("4032 │")).split("│")[1]
    assert line[0] == "█" and line[2 * (2040 // int(text.split("64 × ")[1].split()[0]))] in "▓█"
    brightness = pixels(draw_overview([m, m], scale=scale))
    row = brightness[int(len(brightness) * 0.9)]
    assert row[: len(row) // 50].min() < 0.3  # the first column
    middle = row[int(len(row) * 0.35) : int(len(row) * 0.48)]
    assert middle.min() < 0.35 and np.median(middle) > 0.85


def test_shades_by_hand():
    w = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.25, -0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 1e-9], [0.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(Scale.fit("row", [w]).shades(w), torch.tensor([[1.0, 0, 0, 0], [0.5, -1, 0, 0], [0.0] * 4, [0.0] * 4]))
    torch.testing.assert_close(Scale.fit("global", [w, 2 * w]).shades(w), w / 2)
    many = torch.arange(1, 101.0)[None]
    shades = Scale.fit("percentile", [many]).shades(many)
    assert int((shades == 1).sum()) == 5 and math.isclose(float(shades[0, 46]), 47 / 95.05, rel_tol=1e-5)
    decades = torch.tensor([[1.0, 0.1, 0.01, -0.1, 0.0]])
    scale = Scale("log", 1.0, 0.001)
    torch.testing.assert_close(scale.shades(decades), torch.tensor([[1.0, 2 / 3, 1 / 3, -2 / 3, 0.0]]))
    assert [label for _, label in scale.ticks(False)] == ["≤ 0.001", "0.01", "0.1", "1"]
    for shade, label in scale.ticks(True):
        assert label.startswith("±") or math.isclose(float(scale.shades(torch.tensor([[float(label)]]))), shade, abs_tol=1e-6)


@pytest.mark.parametrize("scale", ["row", "global", "percentile", "log"])
@pytest.mark.parametrize("weights", [torch.zeros(3, 3), torch.eye(3), torch.full((3, 3), 1 / 3), -torch.eye(3)], ids=str)
def test_all_scales_draw_all_maps(scale, weights, tmp_path):
    maps = Maps([make_map(weights.tolist())])
    assert maps.save_png(tmp_path / "map.png", scale=scale).stat().st_size > 4000
    maps.show(scale=scale, file=(file := io.StringIO()))
    assert "█ = " in file.getvalue() and "nan" not in file.getvalue()


def test_an_unknown_scale_is_refused(tmp_path):
    with pytest.raises(UnknownName, match="did you mean 'row'"):
        Maps([uniform(3)]).save_png(tmp_path / "map.png", scale="rows")


def labels_of(axis):
    return [tick.get_text() for tick in axis.get_xticklabels()], [tick.get_text() for tick in axis.get_yticklabels()]


def test_small_multiples_label_the_outer_axes():
    words = [f"word{n}" for n in range(8)]
    maps = [make_map(torch.rand(2, 7, 8).tolist(), layer=f"decoder.{n}.cross").label(words[:7], words) for n in range(2)]
    top_left, top_right, low_left, low_right = draw_overview(maps).axes[:4]
    assert labels_of(top_left) == ([], words[:7]) and labels_of(top_right) == ([], [])
    assert labels_of(low_left) == (words, words[:7]) and labels_of(low_right) == (words, [])


def test_positions_stand_where_labels_do_not_fit():
    words = [f"word{n}" for n in range(300)]
    m = uniform(300).label(words, words)
    x, y = labels_of(draw_overview([m, m, m]).axes[0])
    assert y[0] == "0" and y[1].isdecimal() and len(y) < 30
    assert "word" not in to_text(m, columns=100)


def test_padding_in_titles():
    m = uniform(3)
    titles = [
        title(replace(m, pattern=p)) for p in ("lengths(<1>)", "lengths(<4>)", "causal & lengths(<1>)", "lengths(<2>) & causal", "causal")
    ]
    assert [t.partition("softmax")[2] for t in titles] == ["", " · padding masked", " · causal", " · padding masked & causal", " · causal"]


@pytest.mark.parametrize("length", [1, 30])
def test_titles_stand_over_the_map(length):
    figure = draw_matrix(uniform(length))
    png(figure)
    box, heading, edge = figure.axes[0].get_window_extent(), figure._suptitle.get_window_extent(), figure.bbox.width
    assert heading.x0 >= 0 and heading.x1 <= edge
    off = abs(box.x0 + box.x1 - heading.x0 - heading.x1) / 2
    assert off < 6 or min(heading.x0, edge - heading.x1) < 0.03 * edge  # centred, unless it would be cut


def test_summary(tmp_path):
    maps = Maps([uniform(8, layer=f"blocks.{n}.attention", pattern="causal") for n in range(2)]).label(list("abcdefgh"), list("abcdefgh"))
    maps.show_summary(file=(file := io.StringIO()))
    text = file.getvalue()
    entropy, distance = sum(math.log(n) for n in range(1, 9)) / 8, sum(n / 2 for n in range(8)) / 8
    assert text.count(f"{entropy:.2f}") == 2 and text.count(f"{distance:.2f}") == 2
    assert "rollout of blocks.*.attention, mean of heads · 2 layers" in text and all(len(line) <= 100 for line in text.splitlines())
    mixed = (maps.all[0].weights_BHLM[0, 0] + torch.eye(8)) / 2
    assert f" {float((mixed @ mixed)[-1].max()):.2g}\n" in text
    figure = draw_summary(maps.all)
    shown = [text.get_text() for text in figure.axes[0].texts]
    assert shown == [f"{entropy:.3g}"] * 2 and labels_of(figure.axes[2]) == (list("abcdefgh"),) * 2
    assert maps.save_summary(tmp_path / "summary.png").stat().st_size > 4000


def test_cross_attention_has_no_rollout():
    maps = Maps([make_map(torch.rand(3, 4, 5).softmax(-1).tolist(), layer="decoder.0.cross", queries=4)])
    maps.show_summary(file=(file := io.StringIO()))
    assert "Entropy" in file.getvalue() and "rollout" not in file.getvalue() and "distance" not in file.getvalue()
    assert len(draw_summary(maps.all).axes) == 2
