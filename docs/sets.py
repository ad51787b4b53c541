"""Draw the picture of docs/sets.md from two runs: `python docs/sets.py runs/max runs/odd`, of `regard train sets` without and with --data odd:10."""

from __future__ import annotations

import sys
from pathlib import Path

from regard.look.pictures import png
from regard.models import SetTransformer
from regard.tasks import attention_maps, load_run, predict, task_of
from regard.tasks.set_pictures import draw_links

PICTURES = Path(__file__).parent / "pictures"
LARGEST = ("[12, 97, 40, 55, 3]", "[12, 31, 40, 55, 3]", "[88, 87, 86]", "[64]")


def largest(folder: str) -> bytes:
    """Attention of the seed to the numbers of four sets."""
    run, panels = load_run(folder, SetTransformer), []
    for text in LARGEST:
        _, maps = attention_maps(run, text)
        panels.append((maps["pool.cross.cross.attention"][0], f"answer {predict(run, [text])[0].text}"))
    return png(draw_links(panels))


def odd(folder: str) -> bytes:
    """Attention of the last layer from digit to digit, of two test sets."""
    run, panels, images = load_run(folder, SetTransformer), [], []
    task = task_of(run)
    for example in task.test_data(run, None)[:2]:
        text = task.input_text(example)
        _, maps = attention_maps(run, text)
        panels.append((maps.all[-1].label(list(map(str, range(10)))), f"{predict(run, [text])[0].text}; it is item {example.target}"))
        images.append(example.items)
    return png(draw_links(panels, images))


if __name__ == "__main__":
    numbers, digits = sys.argv[1:]
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / "sets-largest.png").write_bytes(largest(numbers))
    (PICTURES / "sets-odd.png").write_bytes(odd(digits))
