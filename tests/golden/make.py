"""Golden run directories: one tiny run per kind of task, stopped half-way, in the folder of the present format version.

    python tests/golden/make.py            after FORMAT in run_config.py was raised; older folders are never changed

tests/golden/test_golden.py loads, evaluates and resumes those of every version.
"""

import json
import os
import shutil
import sys
from pathlib import Path

import torch

from regard.runs import FORMAT
from regard.tasks import find_task, train
from regard.train import TrainOptions

HERE = Path(__file__).parent
SIZES = {"width": 4, "heads": 2, "depth": 1}
TASKS = {
    "language": (dict(data="language.txt", tokenizer="char", context_length=8, batch_size=2, shares=(0.1, 0.1)), SIZES),
    "translation": (
        dict(data="translation.tsv", tokenizer="word", batch_tokens=40, shares=(0.2, 0.2), valid_sentences=2),
        {"embedding": 4, "width": 4, "depth": 1},
    ),
    "classify": (dict(data="classify.tsv", tokenizer="word", max_length=8, batch_size=4, shares=(0.2, 0.2)), {**SIZES, "hidden": 4}),
}
TRAINING = TrainOptions(steps=4, save_every=2, evaluate_every=2, log_every=1, average=0, keep=1, schedule="constant", warmup_steps=0)


def write_data(folder):
    (folder / "language.txt").write_text("the cat sat on the mat. " * 12)
    pairs = (f"{a} {b}\t{b} {a}\n" for a in ("one", "two", "three") for b in ("cat", "dog", "log", "hat"))
    (folder / "translation.tsv").write_text("".join(pairs))
    rows = (f"{'good' if n % 2 else 'bad'} thing {n % 5}\t{'yes' if n % 2 else 'no'}\n" for n in range(30))
    (folder / "classify.tsv").write_text("".join(rows))


def make(folder, name):
    """A run in `folder`/`name` on the data in `folder`."""
    options, settings = TASKS[name]
    before = Path.cwd()
    os.chdir(folder)
    try:
        torch.manual_seed(0)
        model = "luong" if name == "translation" else None  # fewer tensors than a transformer, so smaller files
        train(name, find_task(name).Options(**options), TRAINING, name, model=model, settings=settings, progress=False)
        shutil.rmtree(Path(name) / "tokens", ignore_errors=True)  # a cache, not a part of the run
        config = Path(name) / "config.json"  # names its data by the absolute path; a golden run is moved, so it is relative here
        config.write_text(config.read_text().replace(json.dumps(str(Path.cwd() / options["data"])), json.dumps(options["data"])))
    finally:
        os.chdir(before)
    return folder / name


if __name__ == "__main__":
    torch.set_num_threads(1)
    target = HERE / f"format-{FORMAT}"
    if target.exists():
        sys.exit(f"{target} is there already; raise FORMAT in run_config.py, and keep this one")
    target.mkdir()
    write_data(target)
    for name in TASKS:
        made = make(target, name)
        print(made, sum(path.stat().st_size for path in made.rglob("*") if path.is_file()), "bytes")
