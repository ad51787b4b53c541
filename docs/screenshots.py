"""Make the pictures of the README from a real run, with chromium: pictures/explorer.png and pictures/alignment.gif.

    python docs/screenshots.py                      trains a translator of number words first: some minutes
    python docs/screenshots.py --run runs/numbers   takes a run of a translator that kept many checkpoints (--save-every 20 --keep 100)

The GIF shows which source words each target word attends to, at one checkpoint after another: the translation is that of the trained
model, and every checkpoint reads it as its target.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "look"))

from browser import Browser
from PIL import Image

from regard.decode import Beam
from regard.look import Maps, keep_inputs
from regard.look.explorer import record
from regard.look.html import save_html
from regard.runs import Run, checkpoints, load_checkpoint
from regard.tasks import attention_maps, find_task, load_run, train
from regard.tasks.translation import TranslationOptions, translations
from regard.tasks.translation_maps import forced_maps

TITLE = "RNNsearch, number words"
SENTENCE = "four thousand, three hundred and twenty-one"
SETTINGS = {"embedding": 96, "width": 128, "alignment": 96, "maxout": 64}
PICTURES = Path(__file__).parent / "pictures"
EXPLORER = "document.querySelector('.rx')?.explorer"
LARGEST = {".png": 300_000, ".gif": 1_000_000}  # bytes


def train_translator(folder: Path) -> Path:
    """RNNsearch on number words, with a checkpoint every 15 steps."""
    task = find_task("translation")
    options = TranslationOptions(data="numbers:en-de", vocab_size=400)
    settings = replace(task.default_train, steps=450, save_every=15, keep=100)
    train(task, options, settings, folder, model="rnnsearch", settings=SETTINGS)
    return folder


def alignment_steps(run: Run) -> dict[str, Maps]:
    """Step of training → the maps of the same sentence and translation."""
    ((_, (best, *_)),) = translations(run, [SENTENCE], Beam(size=4))
    return {str(step): forced_maps(run.with_model(load_checkpoint(run, step)), SENTENCE, best) for step in checkpoints(run.folder)}


def show(browser: Browser, page: Path, state: str, width: int, height: int) -> None:
    browser.open(f"{page.as_uri()}#{state}", width=width, height=height)
    browser.wait(f"{EXPLORER}?.opened")
    browser.settle()


def save_explorer(browser: Browser, run: Run, folder: Path) -> Path:
    """The alignment view, one word chosen."""
    with keep_inputs():
        _, maps = attention_maps(run, SENTENCE, "*", options=find_task("translation").live_options)
    maps.save_html(folder / "explorer.html", title=TITLE, text=SENTENCE, gradients=True)
    show(browser, folder / "explorer.html", "view=alignment", 1280, 800)
    words = maps.all[-1].labels()[0]
    browser.run(f"{EXPLORER}.set({{query: {next((n for n, word in enumerate(words) if 'zwanzig' in word), 0)}, direction: 'out'}})")
    browser.wait("document.querySelectorAll('.rx-links .rx-own').length > 0")
    browser.settle()
    path = PICTURES / "explorer.png"
    browser.screenshot(path)
    with Image.open(path) as image:
        image.convert("RGB").quantize(256).save(path, optimize=True)
    return path


def save_alignment(browser: Browser, run: Run, folder: Path) -> Path:
    """The matrix at each checkpoint, as an animation; the last one stays longer."""
    steps = alignment_steps(run)
    first = next(iter(steps))
    rest = {step: maps for step, maps in steps.items() if step != first}
    save_html(record(steps[first], first, SENTENCE, others=rest), folder / "steps.html", TITLE)
    show(browser, folder / "steps.html", "view=matrix&scale=unit", 760, 640)
    frames = []
    for number in range(len(steps)):
        browser.run(f"{EXPLORER}.set({{capture: {number}}})")
        browser.wait(f"!{EXPLORER}.opened.pane.pending.size && !{EXPLORER}.opened.pane.scheduled")
        browser.settle()
        browser.screenshot(folder / "frame.png")
        with Image.open(folder / "frame.png") as image:
            frames.append(
                image.convert("RGB")
                .crop((0, 0, image.width, browser.run("document.querySelector('.rx-stage').getBoundingClientRect().bottom") + 12))
                .quantize(64)
            )
    path = PICTURES / "alignment.gif"
    durations = [800, *[140] * (len(frames) - 2), 2500]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the pictures of the README.")
    parser.add_argument("--run", type=Path, help="a translator that kept many checkpoints; if not given, one is trained")
    given = parser.parse_args().run
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        run = load_run(given or train_translator(folder / "run"))
        browser = Browser()
        try:
            for path in (save_explorer(browser, run, folder), save_alignment(browser, run, folder)):
                print(f"wrote {path}: {path.stat().st_size:,} bytes")
                assert path.stat().st_size < LARGEST[path.suffix], path
        finally:
            browser.close()


if __name__ == "__main__":
    main()
