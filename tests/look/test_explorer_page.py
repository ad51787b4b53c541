"""The explorer in a real browser: what it shows is what the model computed, without a request and without the mouse."""

from __future__ import annotations

import base64

import pytest
import torch
from tests.look.browser import CHROMIUM, Browser
from tests.look.conftest import make_map

from regard.look import Graph, Grid, Maps, Tree, capture, keep_inputs
from regard.look.gradients import InputGradients
from regard.look.map import Values
from regard.models import build

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")
HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</script><b>",
    "\u202eright to left",
    "שלום",
    "👩‍👩‍👧‍👦",
    "x" * 10_000,
    "",
    " ",
    "\n",
    "&amp;",
    "${1}",
    "'\"",
]
EXPLORER = "document.querySelector('.rx').explorer"


@pytest.fixture(scope="module")
def captured():
    torch.manual_seed(0)
    model = build("gpt2", {"vocab_size": 50, "context_length": 64, "width": 48, "heads": 3, "depth": 2}).eval()
    for parameter in model.parameters():
        parameter.data *= 3
    with torch.no_grad(), keep_inputs(), capture(model, tokens=[f"t{n}" for n in range(28)] + HOSTILE) as maps:
        model.features(torch.randint(50, (1, 40)))
    return maps


@pytest.fixture(scope="module")
def page(captured, tmp_path_factory):
    path = captured.save_html(tmp_path_factory.mktemp("page") / "look.html", title="<b>a title</b>", others={"again": captured})
    return path.as_uri()


def show(browser: Browser, url: str, hash: str = "", **size):
    browser.open(f"{url}#{hash}", **size)
    browser.wait("document.querySelector('.rx')?.explorer?.opened")
    browser.settle()


READ_CELLS = """(async () => {
  const app = %s, pane = app.opened.pane, {rows, columns} = pane.layer;
  for (let n = 0; n < 200 && (!pane.painted.size || pane.pending.size || pane.scheduled); n++) await new Promise((done) => setTimeout(done, 10));
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const image = pane.canvas.getContext("2d").getImageData(0, 0, pane.canvas.width, pane.canvas.height);
  const range = await pane.layer.range(), found = [];
  for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) {
    const [x, y] = pane.centreOf(i, j), at = 4 * (Math.round(y) * image.width + Math.round(x));
    found.push(Array.from(image.data.slice(at, at + 3)));
  }
  return {found, top: range.top, cell: pane.view.cell};
})()"""


def palette(stops: list[str]) -> torch.Tensor:
    """256 colours between the stops, computed anew."""
    colours = torch.tensor([[int(stop[n : n + 2], 16) for n in (1, 3, 5)] for stop in stops], dtype=torch.float64)
    place = torch.arange(256, dtype=torch.float64) / 255 * (len(stops) - 1)
    at = place.floor().long().clamp(max=len(stops) - 2)
    return (colours[at] + (place - at)[:, None] * (colours[at + 1] - colours[at]) + 0.5).floor()


@pytest.mark.parametrize("dark", [False, True])
def test_pixels_are_the_weights_within_a_shade(browser, page, captured, dark):
    show(browser, page, "view=matrix&map=1&head=2", dark=dark)
    found = browser.run(READ_CELLS % EXPLORER)
    stops = {
        False: ["#ffffff", "#d3e5f5", "#a3c8e6", "#5b9fce", "#2470ae", "#0b3f7c", "#04132e"],
        True: ["#12171e", "#16314d", "#175f80", "#2a9290", "#74bf7c", "#cfe27a", "#fffbd1"],
    }[dark]
    assert len(palette(stops).unique(dim=0)) == 256
    pixels = torch.tensor(found["found"], dtype=torch.float64)
    apart = (pixels[:, None] - palette(stops)).abs().sum(-1)
    assert float(apart.amin(1).max()) == 0  # every pixel is a colour of the palette
    weights = captured.all[1].weights_BHLM[0, 2].double()
    assert found["top"] == pytest.approx(float(weights.max()), rel=1e-6)
    shown = apart.argmin(1).double().view(40, 40) / 255
    assert float((shown - weights / weights.max()).abs().max()) <= 1 / 255 + 1e-6
    assert browser.errors == []


def test_hover_and_panel_show_the_exact_weight(browser, page, captured):
    show(browser, page, "view=matrix&map=0&head=1")
    weights = captured.all[0].weights_BHLM[0, 1]
    box = browser.run("(({left, top}) => [left, top])(document.querySelector('.rx-canvas').getBoundingClientRect())")
    for i, j in ((39, 3), (12, 12), (20, 7)):
        x, y = browser.run(f"{EXPLORER}.opened.pane.centreOf({i}, {j})")
        browser.mouse(box[0] + x, box[1] + y, click=True)
        browser.wait(f"{EXPLORER}.state.query === {i} && document.querySelector('.rx-weight')")
        browser.wait(
            f"Math.abs(Number(document.querySelector('.rx-tip strong').textContent) - {float(weights[i, j])}) < 1e-9 + 2e-7 * {float(weights[i, j])}"
        )
        assert float(browser.run("document.querySelector('.rx-weight').textContent")) == pytest.approx(float(weights[i, j]), rel=1e-6)
    assert browser.errors == []


def test_every_view_by_keyboard_without_a_request_or_a_complaint(browser, page):
    show(browser, page)
    for _ in range(6):  # from the top of the page to the tabs
        browser.key("Tab")
        if browser.run("document.activeElement.role") == "tab":
            break
    seen = []
    for _ in range(browser.run("document.querySelectorAll('[role=tab]').length")):
        seen.append(browser.run("document.activeElement.dataset.view"))
        browser.settle()
        assert browser.run(f"{EXPLORER}.state.view") == seen[-1]
        assert browser.run("document.querySelector('.rx-stage').childElementCount") > 0
        browser.key("ArrowRight")
    assert seen == ["matrix", "heads", "text", "lines", "pattern", "compare", "why", "gradients"]
    assert browser.run("document.activeElement.dataset.view") == "matrix"  # around
    browser.run(f"{EXPLORER}.set({{query: null, key: null}}); document.querySelector('.rx-canvas').focus()")
    browser.key("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "+", "0")
    state = browser.run(f"(({{query, key}}) => [query, key])({EXPLORER}.state)")
    assert state == [2, 2]
    assert browser.run("document.querySelector('.rx-pair').getAttribute('aria-live')") == "polite"
    browser.run("document.querySelector('[data-view=text]').click()")
    browser.settle()
    browser.run("document.querySelector('.rx-token.rx-chosen').focus()")
    browser.key("ArrowRight")
    browser.wait(f"{EXPLORER}.state.query === 3")
    browser.run("document.querySelector('.rx-caveat').click()")
    assert browser.run("document.querySelector('dialog').open")
    browser.key("Escape")
    browser.wait("!document.querySelector('dialog').open")
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith(("file:", "data:", "blob:", "about:"))] == []


def test_a_theme_that_changes_often_is_followed_once(browser, page):
    show(browser, page, "view=matrix&map=1")
    browser.run(f"window.drawn = 0; {EXPLORER}.opened.update = () => window.drawn++")
    for dark in (True, False) * 4:
        browser.resize(1280, 860, dark)
        browser.wait(f"{EXPLORER}.theme() === '{'dark' if dark else 'light'}'")
    browser.settle()
    assert browser.run("window.drawn") == 8


def test_where_there_are_no_gradients_the_page_says_why(browser, page, tmp_path):
    show(browser, page, "view=gradients")
    assert "do not say which output" in browser.run("document.querySelector('.rx-stage').textContent")
    gradients = InputGradients(torch.nn.Identity(), (), lambda model: torch.zeros(4, 1), torch.zeros(4).long(), list("abcd"), {"layer": 0})
    maps = Maps([make_map(torch.rand(1, 2, 4, 4).softmax(-1).tolist(), layer=name) for name in ("encoder", "layer")], gradients=gradients)
    show(browser, maps.save_html(tmp_path / "plain.html").as_uri(), "view=gradients")
    assert "--gradients adds them" in browser.run("document.querySelector('.rx-stage').textContent")
    assert browser.errors == []


def test_layers_of_other_sizes_keep_the_cursor_inside(browser, tmp_path):
    sizes = {"long": (12, 9), "short": (2, 3), "other": (12, 9)}
    maps = Maps([make_map(torch.rand(1, 1, *size).softmax(-1).tolist(), layer=name) for name, size in sizes.items()])
    show(browser, maps.save_html(tmp_path / "sizes.html").as_uri(), "view=compare&map=0&query=11&key=8")
    browser.run(f"{EXPLORER}.set({{other: {{capture: 0, map: 1, head: 0}}}})")
    browser.settle()
    assert "sizes differ" in browser.run("document.querySelector('.rx-summary').textContent")
    show(browser, (tmp_path / "sizes.html").as_uri(), "view=compare&map=0")
    browser.wait("document.querySelector('.rx-summary').textContent.startsWith('On average')")  # by itself it takes one of the same size
    show(browser, (tmp_path / "sizes.html").as_uri(), "view=compare&map=1")
    assert browser.run("document.querySelector('.rx-summary').textContent").startswith("Nothing else here has this size")
    assert browser.errors == []


def test_hostile_labels_stay_text(browser, page):
    show(browser, page, "view=text&map=1&query=39")
    browser.wait("document.querySelectorAll('.rx-token').length === 40")
    assert browser.run("document.querySelectorAll('img, .rx-token b').length") == 0
    texts = browser.run("[...document.querySelectorAll('.rx-token')].slice(28).map((token) => token.textContent)")
    assert texts[0] == HOSTILE[0] and texts[3] == HOSTILE[3] and texts[4] == HOSTILE[4]
    assert len(texts[5]) == 40 and "\u202e" not in texts[2]
    assert texts[6:9] == ["∅", "␣", "↵"]
    assert browser.run("document.querySelector('.rx-title').textContent") == "<b>a title</b>"
    for width in (1280, 390):
        browser.resize(width, 844, dark=False)
        browser.settle()
        assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.errors == []


def test_layouts_have_views_of_their_own(browser, tmp_path):
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(1, 2, 13, 13, generator=generator).softmax(-1)
    layouts = {"grid": Grid(3, 4, 1), "graph": Graph([(n, (n * 5 + 1) % 13) for n in range(13)]), "tree": Tree([(0, 5), (5, 13)])}
    maps = Maps([make_map(weights.tolist(), layer=name, layout=layout) for name, layout in layouts.items()])
    show(browser, maps.save_html(tmp_path / "layouts.html").as_uri(), "view=image&map=0&query=3")
    browser.wait("document.querySelector('.rx-summary').textContent.includes('Query 3')")
    for view, sign in (("graph", ".rx-node"), ("image", ".rx-grid")):
        browser.run(f"document.querySelector('[data-view={view}]').click()")
        browser.wait(f"document.querySelector('{sign}')")
    browser.run(f"{EXPLORER}.set({{view: 'text', map: 2, query: 1}})")
    browser.wait("document.querySelectorAll('.rx-sentence').length === 2")
    first = float(weights[0, 0, 1, :5].sum())
    browser.wait("document.querySelector('.rx-share').style.width")
    widths = browser.run("[...document.querySelectorAll('.rx-share')].map((bar) => parseFloat(bar.style.width))")
    assert max(widths) == 60 and widths[0] / widths[1] == pytest.approx(first / (1 - first), rel=0.02)
    assert browser.errors == []


def test_frames_of_a_video_are_a_strip_and_words_are_queries(browser, tmp_path):
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(1, 1, 2, 3 * 2 * 4, generator=generator).softmax(-1)
    drawn = make_map(weights.tolist(), layout=Grid(2, 4, frames=3), query_labels=(("layer 0", "layer 1"),))
    strip = torch.full((20, 3 * 40), 200, dtype=torch.uint8).numpy()
    show(browser, Maps([drawn], image=strip).save_html(tmp_path / "video.html").as_uri(), "view=image&query=1")
    browser.wait("document.querySelector('.rx-frames')")
    picture = "document.querySelector('.rx-frames')"
    corners = browser.run(f"{EXPLORER}.opened.picture.box ? [0, 8, 16].map((n) => {EXPLORER}.opened.picture.box(n)) : null")
    assert len({tuple(box[:2]) for box in corners}) == 3 and corners[0][1] == corners[1][1]  # side by side
    read = f"""(() => {{ const picture = {EXPLORER}.opened.picture, canvas = {picture};
      const {{data}} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      return Array.from({{length: 24}}, (_, n) => {{ const [x, y, w, h] = picture.box(n);
        return data[4 * (Math.round(y + h / 2) * canvas.width + Math.round(x + w / 2))]; }}); }})()"""
    found, row = torch.tensor(browser.run(read), dtype=torch.float64), weights[0, 0, 1].double()
    share = row / row.max()
    darkened = 200 * (1 - 0.75 * (1 - share))
    assert float((found - darkened * (1 - 0.45 * share) - 255 * 0.45 * share).abs().max()) <= 2  # a grey image is tinted, too
    browser.run("document.querySelectorAll('.rx-token')[0].click()")
    browser.wait("document.querySelector('.rx-summary').textContent.includes('layer 0')")
    assert browser.errors == []


def test_points_are_drawn_where_they_are_with_edges_by_weight(browser, tmp_path):
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(1, 1, 12, 12, generator=generator).softmax(-1)
    points = torch.rand(12, 2, generator=generator) * 30 - 7
    maps = Maps([make_map(weights.tolist())], points=points)
    show(browser, maps.save_html(tmp_path / "points.html").as_uri(), "view=points")
    browser.wait("document.querySelectorAll('.rx-node').length === 12")
    places = browser.run("[...document.querySelectorAll('.rx-node')].map((one) => one.transform.baseVal[0].matrix).map(({e, f}) => [e, f])")
    found, own = torch.tensor(places).double(), points.double()
    scale = (own[3] - own[8]).norm() / (found[3] - found[8]).norm()
    torch.testing.assert_close((found[:, None] - found).norm(dim=-1) * scale, (own[:, None] - own).norm(dim=-1), atol=2e-2, rtol=1e-2)
    assert bool((found[:, 1].argsort() == (-own[:, 1]).argsort()).all())  # y grows upwards
    browser.run("document.querySelector('.rx-node').focus()")
    browser.key("ArrowRight", "ArrowRight", "Enter")
    browser.wait(f"{EXPLORER}.state.query === 2 && document.querySelectorAll('.rx-graph .rx-own').length === 11")
    told = browser.run("document.querySelectorAll('.rx-node')[5].getAttribute('aria-label')")
    assert float(told.split(": ")[1]) == pytest.approx(float(weights[0, 0, 2, 5]), rel=1e-6)
    assert browser.errors == []


def test_choosing_a_hypothesis_shows_its_alignment(browser, tmp_path):
    def hypothesis(target, score):
        drawn = make_map(
            torch.rand(1, 1, len(target), 3).softmax(-1).tolist(), query_labels=(tuple(target),), key_labels=(("x", "y", "z"),)
        )
        return Maps([drawn], answer=" ".join(target), score=score)

    best, other = hypothesis(["a", "b"], -0.5), hypothesis(["c", "<b>d</b>", "e"], -1.25)
    best.alternatives = (other,)
    show(browser, best.save_html(tmp_path / "beam.html", text="x y z").as_uri(), "view=alignment")
    listed = browser.run("[...document.querySelectorAll('.rx-hypotheses button')].map((one) => one.textContent)")
    assert listed == ["−0.500a b", "−1.250c <b>d</b> e"]
    assert browser.run("document.querySelectorAll('.rx-controls select').length") == 2  # layer and head: it is no capture to choose
    browser.run("document.querySelectorAll('.rx-hypotheses button')[1].click()")
    browser.wait("document.querySelectorAll('.rx-queries .rx-token').length === 3")
    assert browser.run("document.querySelector('.rx-hypotheses [aria-pressed=true]').textContent").startswith("−1.250")
    assert browser.errors == []


def test_gradients_stand_beside_attention(browser, tmp_path):
    from regard.look.gradients import next_token_gradients

    torch.manual_seed(0)
    model, ids = (
        build("gpt2", {"vocab_size": 50, "context_length": 64, "width": 48, "heads": 3, "depth": 2}).eval(),
        torch.randint(50, (1, 12)),
    )
    with torch.no_grad(), capture(model, tokens=[f"t{n}" for n in range(12)]) as maps:
        x = model.features(ids)
    maps.gradients = next_token_gradients(model, ids, x, lambda wanted: [f"o{n}" for n in wanted], maps.layers)
    show(browser, maps.save_html(tmp_path / "gradients.html", gradients=True).as_uri(), "view=gradients&map=1&query=7")
    browser.wait("document.querySelector('.rx-summary').textContent.includes('Kendall')")
    (row,) = maps.gradients.rows([7])
    titles = browser.run("[...document.querySelectorAll('.rx-scroll section h2')].map((one) => one.textContent)")
    assert titles[0] == "Attention of t7, head 0" and titles[
        1
    ] == f"Norm of the gradient of log p(o{int(ids[0, 8])}) = {row.log_probability:.3f}".replace("-", "−")
    shown = browser.run("[...document.querySelectorAll('section:nth-of-type(2) .rx-token')].map((one) => Number(one.title))")
    torch.testing.assert_close(torch.tensor(shown), row.norm[0], atol=1e-6, rtol=1e-5)
    pairs = [(float(a), float(b)) for a, b in zip(maps.all[1].weights_BHLM[0, 0, 7, :8], row.norm[0][:8], strict=True)]
    agree = [(a[0] - b[0]) * (a[1] - b[1]) > 0 for n, a in enumerate(pairs) for b in pairs[:n]]
    tau = 2 * sum(agree) / len(agree) - 1
    assert f"8 keys: {tau:.2f}".replace("-", "−") in browser.run("document.querySelector('.rx-summary').textContent")
    browser.run("document.querySelector('[data-view=text]').click()")
    assert browser.errors == []


def test_the_widget_mounts_from_its_module_alone(browser, captured, tmp_path):
    pytest.importorskip("anywidget", reason="the widget is an extra: pip install 'regard[notebook]'")
    widget = captured.widget("a notebook")
    data = base64.b64encode(widget.data).decode()
    script = f"""
      const module = await import("data:text/javascript;base64,{base64.b64encode(str(widget._esm).encode()).decode()}");
      const bytes = Uint8Array.from(atob("{data}"), (c) => c.charCodeAt(0));
      await module.default.render({{ model: {{ get: () => new DataView(bytes.buffer) }}, el: document.body }});
    """
    (tmp_path / "page.html").write_text(f"<!doctype html><style>{widget._css}</style><body><script type=module>{script}</script>")
    show(browser, (tmp_path / "page.html").as_uri())
    browser.run("document.querySelector('[data-view=text]').click()")
    browser.wait("document.querySelectorAll('.rx-token').length === 40")
    assert browser.run("location.hash") in ("", "#")  # the address is the notebook's
    assert browser.errors == []
    bundle, _ = captured._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle and "data:image/png" in bundle["text/html"]


def test_captures_named_after_steps_become_a_slider(browser, captured, tmp_path):
    other = Maps([m.head(0) for m in captured.all])
    show(browser, captured.save_html(tmp_path / "steps.html", title="100", others={"200": other}).as_uri(), "view=compare")
    browser.wait("document.querySelector('input[type=range]')")
    browser.run("(slider => { slider.value = 1; slider.dispatchEvent(new Event('input')); })(document.querySelector('input[type=range]'))")
    browser.wait("document.querySelector('.rx-slider').textContent === 'Step 200'")
    assert browser.run(f"{EXPLORER}.capture().maps[0].heads.length") == 1
    assert browser.errors == []


def test_alignment_shows_values(browser, tmp_path):
    """A colour per target token by its value, the deeper the lower; a bar under each source token."""
    m = make_map(
        [[0.9, 0.1, 0.0], [0.2, 0.3, 0.5]], query_values=Values("p_gen", (0.0, 1.0)), key_values=Values("coverage", (2.0, 0.4, 0.5))
    )
    show(browser, Maps([m.label(["Zoe", "met"], ["a", "b", "c"])]).save_html(tmp_path / "look.html").as_uri(), "view=alignment")
    titles = browser.run("[...document.querySelectorAll('.rx-align .rx-token')].map((token) => token.title)")
    assert titles == ["coverage 2", "coverage 0.4", "coverage 0.5", "p_gen 0", "p_gen 1"]
    low, high = browser.run(
        "[...document.querySelectorAll('.rx-queries .rx-token')].map((token) => getComputedStyle(token).backgroundColor)"
    )
    bars = browser.run("[...document.querySelectorAll('.rx-under')].map((bar) => bar.style.width)")
    assert low != high and bars == ["100%", "20%", "25%"] and browser.errors == []
