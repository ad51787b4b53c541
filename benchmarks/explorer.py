"""The explorer's file beside BertViz's: the same maps, bytes, requests to other hosts, and whether and how soon chromium draws them.

BertViz asks for IPython and is not in constraints.txt; give it an environment of its own. Its page loads RequireJS, d3 and jQuery from
cdnjs.cloudflare.com; to see it draw without a network, `--libraries` takes the same from npm, and the page asks for those instead:

    python -m venv bertviz && bertviz/bin/pip install --no-deps bertviz==1.4.1 && bertviz/bin/pip install ipython
    npm install --prefix libraries requirejs@2.3.6 d3@5.7.0 jquery@2
    python -m benchmarks.explorer --bertviz bertviz/lib/python3.11/site-packages --libraries libraries/node_modules
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import torch

from regard import capture
from regard.look import Maps
from regard.models import build

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "look"))
from browser import Browser

LAYERS, HEADS, WIDTH = 6, 8, 256
CDN = "https://cdnjs.cloudflare.com/ajax/libs/"
LIBRARIES = {"require.js/2.3.6/require.min.js": "requirejs/require.js", "d3/5.7.0/d3.min": "d3/dist/d3.min", "jquery/2.0.0/jquery.min": "jquery/dist/jquery.min"}  # fmt: skip
DRAWN = {  # what is on the page once it can be used
    "BertViz": "document.querySelectorAll('svg line').length > 0",
    "regard": "document.querySelector('.rx')?.explorer?.opened?.pane?.painted?.size > 0",
}


def read_text(length: int) -> tuple[Maps, list[str]]:
    """The maps of a small GPT-2 with random parameters, and its tokens."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 1000, "context_length": length, "width": WIDTH, "heads": HEADS, "depth": LAYERS}
    model, tokens = build("gpt2", sizes).eval(), [f"word{n}" for n in range(length)]
    with torch.no_grad(), capture(model, tokens=tokens) as maps:
        model.features(torch.randint(1000, (1, length)))
    return maps, tokens


def write_pages(length: int, folder: Path, bertviz: Path | None, libraries: Path | None) -> dict[str, tuple[Path, int]]:
    """The page of each program that opens here, and the bytes of the file as the program writes it."""
    maps, tokens = read_text(length)
    ours = maps.save_html(folder / "regard.html", title=f"{length} tokens")
    pages = {"regard": (ours, ours.stat().st_size)}
    if bertviz is not None:
        sys.path.append(str(bertviz))
        from bertviz import head_view

        html = head_view([m.weights_BHLM for m in maps.all], tokens, html_action="return").data
        size = len(html.encode())
        for url, local in LIBRARIES.items():
            html = html.replace(CDN + url, (libraries / local).resolve().as_uri()) if libraries else html
        (folder / "bertviz.html").write_text(f"<!doctype html><meta charset=utf-8>{html}", encoding="utf-8")
        pages["BertViz"] = folder / "bertviz.html", size
    return pages


def draw(name: str, page: Path, seconds: float) -> tuple[float | None, set[str]]:
    """Seconds until it is drawn, None if that takes longer, and the other hosts it asks."""
    browser = Browser()
    try:
        start = time.perf_counter()
        try:
            browser.open(page.as_uri())
            browser.wait(DRAWN[name], seconds)
        except (TimeoutError, RuntimeError):
            return None, {host for url in browser.requests if (host := urlsplit(url).netloc)}
        return time.perf_counter() - start, {host for url in browser.requests if (host := urlsplit(url).netloc)}
    finally:
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 128, 256, 512, 1024])
    parser.add_argument("--bertviz", type=Path, help="site-packages with BertViz")
    parser.add_argument("--libraries", type=Path, help="node_modules with requirejs, d3 and jquery")
    parser.add_argument("--seconds", type=float, default=60.0, help="a page that is not drawn by then counts as frozen")
    given = parser.parse_args()
    print(f"{LAYERS} layers of {HEADS} heads; pages not drawn within {given.seconds:g} s count as frozen")
    print("| tokens | program | file | drawn after | asks |\n|---|---|---|---|---|")
    for length in given.lengths:
        with tempfile.TemporaryDirectory() as folder:
            for name, (page, size) in write_pages(length, Path(folder), given.bertviz, given.libraries).items():
                took, hosts = draw(name, page, given.seconds)
                drawn = "not drawn" if took is None else f"{took:.1f} s"
                print(f"| {length} | {name} | {size / 1e6:.1f} MB | {drawn} | {', '.join(sorted(hosts)) or 'nobody'} |", flush=True)


if __name__ == "__main__":
    main()
