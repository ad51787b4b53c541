"""Pictures: each kind is drawn without a warning, and what users write as labels stays text."""

import io
import re
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from tests.look.conftest import THREE, make_map

from regard.errors import CaptureNotSupported, ShapeError, UnknownName
from regard.look import Graph, Grid, Maps, Tree, capture
from regard.look.scales import pool
from regard.look.terminal import readable, to_text
from regard.patterns import causal

WORDS = ["<script>alert(1)</script>", "$x_1$", "中文", "\n", " ", "a\x07b", "a very long word that nobody could ever read"]


@pytest.fixture
def maps(model, x):
    with capture(model, tokens=WORDS) as maps:
        model(x)
    return maps


def is_png(data: bytes) -> bool:
    width, height = struct.unpack(">II", data[16:24])
    return data.startswith(b"\x89PNG\r\n\x1a\n") and len(data) > 4000 and 300 < width < 3000 and 200 < height < 3000


@pytest.mark.parametrize(
    "selection", [{}, {"layer": "blocks.1.attention"}, {"layer": "blocks.1.attention", "head": 2}, {"head": 1, "batch": 1},
              {"layer": "blocks.0.attention", "head": 0, "query": 3}],
)  # fmt: skip
def test_png_of_each_selection(maps, tmp_path, selection):
    assert is_png(maps.save_png(tmp_path / "look.png", **selection).read_bytes())


@pytest.mark.parametrize(
    "layout", [Tree([(0, 3), (3, 7)]), Graph([(0, 0), (1, 0), (6, 2)]), Grid(2, 3, 1), Grid(7, 1), Graph([])], ids=repr
)
def test_png_of_each_layout(maps, tmp_path, layout):
    laid = maps.label(layout=layout)
    query = 4 if isinstance(layout, Grid) else None
    assert is_png(laid.save_png(tmp_path / "look.png", "blocks.0.attention", 1, query=query).read_bytes())
    if query:
        laid.image = np.random.default_rng(0).integers(0, 255, (8, 12, 3), dtype=np.uint8)
        assert is_png(laid.save_png(tmp_path / "look.png", "blocks.0.attention", 1, query=query).read_bytes())
        assert is_png(laid.save_png(tmp_path / "look.png").read_bytes())
        laid.image = np.zeros((8, 12, 3))
        with pytest.raises(ShapeError, match="expected uint8"):
            laid.save_png(tmp_path / "look.png")


def test_nodes_of_a_graph_in_pieces_do_not_overlap():
    from regard.look.pictures import spring_layout

    point = torch.tensor(spring_layout(13, ((0, 0), (1, 0), (6, 2), (2, 6), (3, 4), (5, 12))))
    assert torch.pdist(point).min() > 0.1 * (point.amax(0) - point.amin(0)).max()


def test_signed_weights_have_two_colours_and_say_so(tmp_path):
    from regard.look.pictures import draw_matrix

    m = make_map([[0.5, -0.4], [0.0, 0.2]], normalised=False)
    figure = draw_matrix(m)
    image = figure.axes[0].images[0]
    assert image.cmap.name == "RdBu" and image.get_clim() == (-1, 1)
    assert figure.axes[1].get_yticklabels()[-1].get_text() == "1" and "0.2 to 0.5" in figure.axes[1].get_ylabel()
    assert figure.get_suptitle().splitlines()[1:] == ["rows do not sum to one"]
    assert "-▓" in to_text(m) and "│  ██ 0.2" in to_text(m) and "rows do not sum to one" in to_text(m)


def test_at_most_sixty_labels_an_axis():
    from regard.look.pictures import MAX_LABELS, draw_matrix

    length = 700
    m = make_map(torch.eye(length).tolist()).label([f"w{n}" for n in range(length)], None)
    axis = draw_matrix(m).axes[0]
    assert len(axis.get_yticks()) <= MAX_LABELS and len(axis.get_xticks()) <= MAX_LABELS
    assert max(axis.images[0].get_array().shape) <= 512


def test_notebooks(maps):
    assert is_png(maps._repr_png_()) and is_png(maps.all[0]._repr_png_())
    for html in (maps._repr_html_(), maps.all[0]._repr_html_(), replace(maps.all[0], layer="<script>")._repr_html_()):
        assert "<script" not in html and "data:image/png;base64," in html
        assert not re.search(r"(src|href)=.?https?:", html)  # nothing from elsewhere
    assert "&lt;script&gt;" in maps.all[0]._repr_html_()
    assert Maps()._repr_html_() == "<p>nothing captured</p>" and Maps()._repr_png_() is None


def test_text_by_hand(capsys):
    m = make_map(THREE).label(queries=["a", "bb", "中"], keys=["x", "yy", "z"])
    shown = to_text(m, columns=80).splitlines()
    assert shown[1:5] == [" a │██     1", "bb │████   0.5", "中 │▒▒▒▒██ 0.5", "   └──────"]  # 0.3 / 0.5 = 0.6 rounds to two quarters
    assert to_text(m, columns=80, scale="global").splitlines()[1:5] == [" a │██    ", "bb │▒▒▒▒  ", "中 │░░░░▒▒", "   └──────"]
    assert shown[5] == "    x yyz "
    Maps([m]).show()
    assert capsys.readouterr().out.startswith("layer, head 0 · softmax\n a │██")
    file = io.StringIO()
    Maps([m]).show(head=0, file=file)
    assert "bb │████" in file.getvalue()


def test_text_of_what_is_too_large_is_pooled():
    shown = to_text(make_map(torch.eye(1000).tolist()), columns=60)
    assert "largest of each 16 × " in shown and all(len(line) <= 60 for line in shown.splitlines()[1:-1])
    x = torch.tensor([[0.0, 0.1, 0.0], [0.0, -0.9, 0.5]])
    torch.testing.assert_close(pool(x, 2, 2), torch.tensor([[-0.9, 0.5]]))
    assert torch.equal(pool(x, 1, 1), x)


def test_readable():
    assert [readable(word, 12) for word in WORDS] == ["<script>ale…", "$x_1$", "中文", "↵", "␣", "a\\x07b", "a very long…"]


def test_refusals(maps, tmp_path):
    with pytest.raises(CaptureNotSupported):
        Maps().save_png(tmp_path / "no.png")
    with pytest.raises(UnknownName):
        maps.save_png(tmp_path / "no.png", layer="blocks.7.attention")
    with pytest.raises(UnknownName, match="captured row"):
        maps.save_png(tmp_path / "no.png", layer="blocks.0.attention", query=70)
    for head in (None, 0):
        with pytest.raises(ShapeError, match="2 batch rows"):
            maps.save_png(tmp_path / "no.png", head=head, batch=2)
    with pytest.raises(ShapeError, match="empty"):
        Maps([make_map(torch.zeros(1, 1, 0, 3).tolist(), weights_BHLM=torch.zeros(1, 1, 0, 3), rows=(), columns=(0, 1, 2))]).save_png(
            tmp_path / "x.png"
        )


def test_import_is_light():
    import subprocess
    import sys

    code = "import sys, regard.look; assert not {'matplotlib', 'torch._dynamo', 'safetensors'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_stream_is_drawn_whole(model, x):
    states = [block.attention.start(2) for block in model.blocks]
    with torch.no_grad(), capture(model) as maps:
        for n in range(5):
            model(x[:, n : n + 1], pattern=causal, states=states)
    file = io.StringIO()
    maps.show(file=file)
    assert len(file.getvalue().splitlines()) == 1 + 5 + 4
    assert is_png(maps._repr_png_())


def test_panels_darken_what_has_no_weight():
    from regard.look.overlays import draw_panels

    weights = torch.zeros(2, 2)
    weights[0, 1] = 0.3
    figure = draw_panels(np.full((8, 8), 255, dtype=np.uint8), [("word", weights)])
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels, box = np.asarray(canvas.buffer_rgba())[..., 0], figure.axes[0].get_window_extent()
    left, right = (int(box.x0 + box.width * at) for at in (0.25, 0.75))
    top, bottom = (int(figure.bbox.height - box.y0 - box.height * at) for at in (0.75, 0.25))
    assert pixels[top, right] > 250 and max(pixels[top, left], pixels[bottom, left], pixels[bottom, right]) < 100


def test_overlays_do_not_blur_across_frames():
    from regard.look.overlays import draw_panels

    for width, wanted in ((64, "nearest"), (16, "bilinear")):  # four frames side by side, one image
        figure = draw_panels(np.zeros((16, width), dtype=np.uint8), [("space", torch.rand(4, width // 4))])
        assert [image.get_interpolation() for image in figure.axes[0].images][1:] == [wanted, wanted]
