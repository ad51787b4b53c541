"""The documentation site: pages written from the code, and the whole site as a browser sees it."""

from __future__ import annotations

import functools
import html.parser
import http.server
import importlib.util
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from tests.look.browser import CHROMIUM, Browser

from regard import MECHANISMS
from regard.docstrings import formulas
from regard.models import MODELS

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))
from _site import notebooks, pages  # noqa: E402

# -- pages, without mkdocs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.facts.name)
def test_a_page_says_everything_about_a_mechanism(mechanism):
    text = pages.mechanism_page(mechanism)
    assert text.startswith(f"# {mechanism.facts.name}\n")
    assert formulas(text) == formulas(mechanism.__doc__) != []
    for part in (
        "**Use it**",
        "**Avoid it**",
        "## Facts",
        "## Cost",
        mechanism.facts.paper.title,
        f"from regard import {mechanism.__name__}",
    ):
        assert part in text, part
    assert (f"pictures/{mechanism.facts.name}.png" in text) == (pages.picture(mechanism) is not None)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.facts.name)
def test_a_page_says_everything_about_a_model(model):
    text = pages.model_page(model)
    for part in (f"# {model.facts.name}\n", "## Settings", "**Use it**", "**Avoid it**", f'build("{model.facts.name}"'):
        assert part in text, part
    for line in (line for line in text.splitlines() if line.startswith("regard train")):
        assert f"--model {model.facts.name}" in line


def test_every_mechanism_has_a_picture():
    assert [mechanism.facts.name for mechanism in MECHANISMS if pages.picture(mechanism) is None] == []


def test_the_api_reference_names_what_packages_offer():
    assert "regard.patterns._base.Pattern" in pages.public_names("regard.patterns")
    assert "regard.look._capture.capture" in pages.public_names("regard.look")
    assert not any(name.endswith(".SoftmaxAttention") for name in pages.public_names("regard.attention"))  # it has a page
    for package in pages.PACKAGES:
        assert pages.public_names(package), package


def test_a_notebook_becomes_text_code_and_pictures():
    cells = [
        {"cell_type": "markdown", "source": ["# 1. Title\n", "\n", "Text."]},
        {"cell_type": "code", "source": ["1 + 1"], "outputs": [{"output_type": "display_data", "data": {"text/plain": ["2"]}}]},
        {"cell_type": "code", "source": ["draw()"], "outputs": [{"data": {"text/plain": ["x"], "image/png": "aGk="}}]},
    ]
    page = notebooks.to_page("some", {"cells": cells})
    assert page.title == "1. Title" and page.pictures == {"some-1.png": b"hi"}
    assert "```py\n1 + 1\n```\n\n```text\n2\n```" in page.markdown and "](some-1.png)" in page.markdown


# -- the site ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The whole site, built as `make docs` does; a warning fails."""
    for package in ("material", "mkdocstrings_handlers", "latex2mathml"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: make docs")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    assert done.returncode == 0, done.stderr[-4000:]
    assert "WARNING" not in done.stderr
    return out


class Page(html.parser.HTMLParser):
    """What a page loads, what it links to, and where links may lead."""

    LOADS = frozenset({("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src"), ("object", "data")})

    def __init__(self, path: Path):
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        self.loads += [given[name] for name in given if (tag, name) in self.LOADS and given[name]]
        if tag == "link" and given.get("rel") not in ("canonical", "next", "prev", "edit"):
            self.loads.append(given.get("href", ""))
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site):
    for path in site.rglob("*.html"):
        foreign = [address for address in Page(path).loads if re.match(r"(?:https?:)?//", address)]
        assert foreign == [], path
    for path in site.rglob("*.css"):
        assert not re.search(r"""(?:url\(|@import)\s*["']?(?:https?:)?//""", path.read_text(encoding="utf-8")), path


@pytest.mark.slow
def test_every_link_leads_somewhere(site):
    known = {path: Page(path) for path in site.rglob("*.html")}
    names = {mechanism.facts.name for mechanism in MECHANISMS}
    for path, page in known.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                assert parts.scheme == "https", f"{path}: {link}"
                continue
            base = site if path.name == "404.html" else path.parent  # shown at any address, so its links begin at the root
            target = (base / unquote(parts.path).lstrip("/" if path.name == "404.html" else "")).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{path.relative_to(site)} points to {link}"
            anchors = names | {""} if target.name == "lineage.html" else known[target].anchors if target in known else {""}
            assert not parts.fragment or unquote(parts.fragment) in anchors, f"{path.relative_to(site)} points to {link}"


@pytest.mark.slow
def test_formulas_are_rendered_when_the_site_is_built(site):
    for mechanism in MECHANISMS:
        text = (site / "mechanisms" / f"{mechanism.facts.name}.html").read_text(encoding="utf-8")
        assert "<math" in text and "arithmatex" not in text
        assert not re.search(r"<m[ion]>(?:\$|\\\w)|merror|\$\$", text), "TeX that the converter does not know"


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")
@pytest.mark.parametrize("served", [True, False], ids=["http", "file"])
def test_a_browser_asks_for_nothing_else_and_search_works(site, served):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base, browser = f"http://127.0.0.1:{server.server_port}" if served else site.as_uri(), Browser()
    try:
        for name in ("index.html", "mechanisms/lsh.html", "lineage.html", "api/regard.look.html", "notebooks/form_transformer.html"):
            browser.open(f"{base}/{name}", width=390, height=800, dark=True)
            browser.settle()
            assert browser.run("document.documentElement.scrollWidth <= innerWidth"), f"{name} scrolls sideways"
        browser.open(f"{base}/index.html", width=1280, height=900, dark=False)
        browser.run("document.querySelector('[data-md-toggle=search]').click()")
        browser.run(
            "(() => { const box = document.querySelector('.md-search__input'); box.focus(); box.value = 'reformer'; box.dispatchEvent(new Event('input')); box.dispatchEvent(new KeyboardEvent('keyup')); })()"
        )
        browser.wait("document.querySelector('.md-search-result__item a')")
        assert browser.errors == []
        assert all(url.startswith((base, "data:", "blob:", "about:")) for url in browser.requests), browser.requests
    finally:
        browser.close()
        server.shutdown()
        server.server_close()
