"""axe-core finds no serious fault in any view of the explorer, nor in the lineage page, in both themes, the dark one at the width of a phone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.look.browser import CHROMIUM, Browser
from tests.look.conftest import make_map

from regard.look import Graph, Grid, Maps, Tree, capture, keep_inputs, lineage
from regard.look.gradients import next_token_gradients
from regard.models import build

AXE = Path(__file__).parent.parent / "node" / "node_modules" / "axe-core" / "axe.js"
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium"),
    pytest.mark.skipif(not AXE.exists(), reason="no axe-core: npm ci --prefix tests/node"),
]
FAULTS = """axe.run(document, {resultTypes: ["violations"]}).then(({violations}) => violations
  .filter(({impact}) => ["serious", "critical"].includes(impact))
  .map(({id, nodes}) => [id, nodes.slice(0, 3).map(({html, any}) => html.slice(0, 160) + " " + (any[0]?.message ?? ""))]))"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A page with every view: a language model, a beam, layouts."""
    folder = tmp_path_factory.mktemp("pages")
    torch.manual_seed(0)
    model = build("gpt2", {"vocab_size": 50, "context_length": 64, "width": 48, "heads": 3, "depth": 2}).eval()
    ids = torch.randint(50, (1, 14))
    with torch.no_grad(), keep_inputs(), capture(model, tokens=[f"t{n}" for n in range(14)]) as text:
        x = model.features(ids)
    text.gradients = next_token_gradients(model, ids, x, lambda wanted: [f"o{n}" for n in wanted], text.layers)
    weights = torch.rand(1, 2, 13, 13).softmax(-1).tolist()
    layouts = {"grid": Grid(3, 4, 1), "graph": Graph([(n, (n * 5 + 1) % 13) for n in range(13)]), "tree": Tree([(0, 5), (5, 13)])}
    maps = [make_map(weights, layer=name, layout=layout) for name, layout in layouts.items()]
    beam = [
        Maps(
            [make_map([[0.2, 0.3, 0.5], [0.5, 0.25, 0.25]], query_labels=(tuple(words),), key_labels=(("x", "y", "z"),))],
            answer=words,
            score=-1.0,
        )
        for words in ("ab", "cd")
    ]
    beam[0].alternatives = (beam[1],)
    return {
        "text": text.save_html(folder / "text.html", "a run", gradients=True, others={"again": text}),
        "layouts": Maps(maps, points=torch.rand(13, 2)).save_html(folder / "layouts.html"),
        "beam": beam[0].save_html(folder / "beam.html", text="x y z"),
        "lineage": lineage.save_html(folder / "lineage.html"),
    }


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["text", "layouts", "beam", "lineage"])
def test_no_serious_fault(browser: Browser, pages, name: str, dark: bool):
    browser.open(pages[name].as_uri(), width=390 if dark else 1280, dark=dark)
    browser.wait("document.querySelector('.rx')?.explorer?.opened" if name != "lineage" else "document.querySelector('h1')")
    browser.call("Runtime.evaluate", expression=AXE.read_text(encoding="utf-8"))
    views = browser.run("[...document.querySelectorAll('[role=tab]')].map((tab) => tab.dataset.view)") or [""]
    for view in views:
        if view:
            browser.run(
                f"document.querySelector('[data-view={view}]').click(); document.querySelector('.rx').explorer.set({{query: 1, key: 0}})"
            )
        browser.settle()
        assert browser.run(FAULTS) == [], view
    if name == "text":
        browser.run("document.querySelector('.rx-caveat').click()")
        assert browser.run(FAULTS) == [], "help"
