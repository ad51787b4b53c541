"""The explorer in chromium: how soon long texts open, how fast it moves, and its file beside BertViz's, of the same maps.

    python -m benchmarks.explorer            opening and moving about; what must hold: 4,096² weights open in less than 3 seconds, and of the
                                             frames while a map of 1,024 × 1,024 weights and 12 heads is dragged, 95 % take less than 50 ms
    python -m benchmarks.explorer --bertviz SITE-PACKAGES --libraries NODE_MODULES       also the same maps in both, for docs/bertviz.md

Run it on an idle machine: the model, its server and the browser share the cores. BertViz asks for IPython and is not in constraints.txt; give it an environment of its own. Its page loads RequireJS, d3 and jQuery from
cdnjs.cloudflare.com; to see it draw without a network, `--libraries` takes the same from npm, and the page asks for those instead:

    python -m venv bertviz && bertviz/bin/pip install --no-deps bertviz==1.4.1 && bertviz/bin/pip install ipython
    npm install --prefix libraries requirejs@2.3.6 d3@5.7.0 jquery@2
    python -m benchmarks.explorer --bertviz bertviz/lib/python3.11/site-packages --libraries libraries/node_modules
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import torch

from regard import capture
from regard.data import Tokenizer
from regard.look import Maps
from regard.models import build

from ._common import machine, progress, write

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "look"))
from browser import Browser

LAYERS, HEADS, WIDTH = 6, 8, 256
CDN = "https://cdnjs.cloudflare.com/ajax/libs/"
LIBRARIES = {"require.js/2.3.6/require.min.js": "requirejs/require.js", "d3/5.7.0/d3.min": "d3/dist/d3.min", "jquery/2.0.0/jquery.min": "jquery/dist/jquery.min"}  # fmt: skip
DRAWN = {  # what is on the page once it can be used
    "BertViz": "document.querySelectorAll('svg line').length > 0",
    "regard": "document.querySelector('.rx')?.explorer?.opened?.pane?.painted?.size > 0",
}

# -- opening and moving about --------------------------------------------------------------------------------------------

OPENS, PANS = 3.0, 50.0  # seconds for 4,096 tokens; milliseconds that 95 % of the frames take at most
LONG, WIDE = (4096, 16384), 1024
EXPLORER = "document.querySelector('.rx')?.explorer"
PANE = f"{EXPLORER}.opened.pane"
FIRST = f"{EXPLORER}?.opened?.pane?.painted.size > 0"
ALL = f"{PANE}.painted.size > 0 && !{PANE}.pending.size && !{PANE}.scheduled"
TIMED = """new Promise((done) => { const start = performance.now(); %s;
  const look = () => (%s) ? requestAnimationFrame(() => done((performance.now() - start) / 1000)) : setTimeout(look, 4); look(); })"""


def serve() -> None:
    """GPT-2's width and heads, two layers, random parameters: what `regard look RUN` serves, until standard input ends."""
    from regard.serve.local import run_explorer
    from regard.serve.playground import Playground

    torch.manual_seed(0)
    tokenizer = Tokenizer.train([" ".join(map(str, range(10)))] * 3, "word")
    sizes = {"vocab_size": len(tokenizer), "context_length": max(LONG), "width": 768, "heads": 12, "depth": 2}
    run_explorer(Playground.of_language_model(build("gpt2", sizes).eval(), tokenizer), "two layers", 0, browser=False)


def words(count: int) -> str:
    """A text of this many tokens, with the one that begins it."""
    return " ".join(str(n % 10) for n in np.random.default_rng(0).permutation(count - 1))


def open_text(browser: Browser, url: str, length: int) -> tuple[float, float]:
    """Seconds from the click until the first weights are drawn, and from there until the overview of all of them is."""
    browser.open(url)
    browser.wait("document.querySelector('.rx-prompt textarea')")
    browser.run(f"document.querySelector('textarea').value = {json.dumps(words(length))}")
    opened = browser.run(TIMED % ("document.querySelector('.rx-main').click()", FIRST))
    assert browser.run(f"{EXPLORER}.reader().rows") == length
    browser.wait(ALL, 60)
    return opened, browser.run(TIMED % (f"{PANE}.fit()", ALL)) if length <= LONG[0] else float("nan")


def open_file(browser: Browser, length: int) -> tuple[float, float]:
    """Seconds until a file with a map of length² weights has drawn all of it, and its bytes in MB."""
    torch.manual_seed(0)
    model = build("gpt2", {"vocab_size": 16, "context_length": length, "width": 64, "heads": 1, "depth": 1}).eval()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        with capture(model) as maps:
            model.features(torch.randint(16, (1, length)))
        page = maps.save_html(Path(folder) / "one.html")
        start = time.perf_counter()
        browser.open(page.as_uri())
        browser.wait(f"{EXPLORER}?.opened?.pane && {ALL}", 60)
        return time.perf_counter() - start, page.stat().st_size / 1e6


def others_share(seconds: float = 1.0) -> float:
    """The share of this machine's cores that was in use while nothing was asked of it: 0 if it is idle."""

    def times() -> tuple[int, int]:
        numbers = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(numbers), numbers[3] + numbers[4]

    (all_before, idle_before), _, (all_after, idle_after) = times(), time.sleep(seconds), times()
    return 1 - (idle_after - idle_before) / max(1, all_after - all_before)


def drag(browser: Browser, steps: int = 40) -> None:
    """The mouse, pressed, from the middle of the canvas to its corner and back, an event per frame at 60 Hz."""
    x, y, width, height = browser.run(
        "(({x, y, width, height}) => [x, y, width, height])(document.querySelector('.rx-canvas').getBoundingClientRect())"
    )
    path = [(x + width * (0.8 - 0.6 * share), y + height * (0.8 - 0.6 * share)) for share in np.sin(np.linspace(0, np.pi, steps))]
    browser.call("Input.dispatchMouseEvent", type="mousePressed", x=path[0][0], y=path[0][1], button="left", clickCount=1)
    for x, y in path:
        browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y, button="left", buttons=1)
        time.sleep(1 / 60)
    browser.call("Input.dispatchMouseEvent", type="mouseReleased", x=path[-1][0], y=path[-1][1], button="left")


def move_about(browser: Browser, url: str) -> np.ndarray:
    """Milliseconds between frames while every head of a map is dragged, at a size where tiles come and go."""
    open_text(browser, url, WIDE)
    recorded = []
    for head in range(12):
        browser.run(f"{EXPLORER}.set({{map: 1, head: {head}}})")
        browser.run(f"{PANE}.fit(); {PANE}.zoom(4 / {PANE}.view.cell)")
        browser.run("window.times = []; window.places = new Set()")
        browser.run(
            f"(function roll() {{ times?.push(performance.now()); places.add({PANE}.view.x); if (times) requestAnimationFrame(roll); }})()"
        )
        drag(browser)
        assert browser.run("places.size") > 10, "the map did not move"
        recorded.append(np.diff(browser.run("((found) => (window.times = null, found))(times)")[1:]))
    return np.concatenate(recorded)


def page_table() -> list[str]:
    progress("a server with a model of GPT-2's width")
    server = subprocess.Popen([sys.executable, "-m", "benchmarks.explorer", "--serve"], stdout=subprocess.PIPE, text=True)
    browser = Browser()
    try:
        assert server.stdout is not None
        took, size = open_file(browser, LONG[0])
        held = "held" if took < OPENS else "missed"
        rows = [f"| {LONG[0]:,}² weights in a file of {size:.0f} MB | open | {took:.1f} s (bar: {OPENS:g} s, {held}) |"]
        url = re.search(r"http://\S+", server.stdout.readline())[0]  # type: ignore[index]
        for length in LONG:
            progress(f"{length:,} tokens")
            opened, overview = open_text(browser, url, length)
            bar = f" (bar: {OPENS:g} s, {'held' if opened < OPENS else 'missed'})" if length == LONG[0] else ""
            rows.append(f"| {length:,} tokens, with the forward pass of the model | open | {opened:.1f} s{bar} |")
            rows += (
                [f"| {length:,} tokens | overview of all {length:,}² weights | another {overview:.1f} s |"] if overview == overview else []
            )
        progress("moving about")
        frames = move_about(browser, url)
        late = float(np.percentile(frames, 95))
        rows.append(
            f"| {WIDE:,}² weights, 12 heads, dragged | frames | median {np.median(frames):.0f} ms, 95 % below {late:.0f} ms "
            f"(bar: {PANS:g} ms, {'held' if late < PANS else 'missed'}), slowest {frames.max():.0f} ms, {len(frames)} frames |"
        )
        assert browser.errors == [], browser.errors
        return ["", "| what | | measured |", "|---|---|---|", *rows]
    finally:
        browser.close()
        server.terminate()
        server.wait()


# -- beside BertViz ------------------------------------------------------------------------------------------------------


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
    parser.add_argument("--bertviz", type=Path, help="site-packages with BertViz: draw the same maps in both")
    parser.add_argument("--libraries", type=Path, help="node_modules with requirejs, d3 and jquery")
    parser.add_argument("--seconds", type=float, default=60.0, help="a page that is not drawn by then counts as frozen")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        return serve()
    busy = f"other processes took {others_share():.0%} of its cores before the start"
    lines = ["## The explorer in chromium", "", f"{machine()}; {busy}. GPT-2's width and 12 heads, two layers, behind `regard look`."]
    write("explorer", [*lines, *page_table()])
    if given.bertviz is not None:
        write("explorer beside BertViz", side_by_side(given))


def side_by_side(given: argparse.Namespace) -> list[str]:
    """A row per length and program; one that froze is not tried with longer texts."""
    about = f"{LAYERS} layers of {HEADS} heads; pages not drawn within {given.seconds:g} s count as frozen, and longer texts are not tried then."
    lines = ["## The explorer beside BertViz", "", f"{machine()}; {about}"]
    lines += ["", "| tokens | program | file | drawn after | asks |", "|---|---|---|---|---|"]
    frozen: set[str] = set()
    for length in given.lengths:
        progress(f"{length:,} tokens in both")
        with tempfile.TemporaryDirectory() as folder:
            pages = write_pages(length, Path(folder), None if "BertViz" in frozen else given.bertviz, given.libraries)
            for name, (page, size) in pages.items():
                took, hosts = draw(name, page, given.seconds)
                drawn = "not drawn" if took is None else f"{took:.1f} s"
                lines.append(row := f"| {length:,} | {name} | {size / 1e6:.1f} MB | {drawn} | {', '.join(sorted(hosts)) or 'nobody'} |")
                progress(row)
                frozen |= {name} if took is None else set()
    return lines


if __name__ == "__main__":
    main()
