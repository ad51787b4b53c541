"""Declarations of tasks: the half of a task that needs no PyTorch agrees with the other half, and with the constants of lower packages."""

import inspect
import statistics
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from regard.data import labelled_images, strokes, text
from regard.data.clips import MOTION
from regard.layers import lora
from regard.models import vivit
from regard.tasks import DECLARATIONS, NAMES, TASKS, find_declaration, options
from regard.tasks.options.handwriting import MAX_POINTS
from regard.tasks.options.text import SUFFIXES
from regard.tasks.options.video import Factorisation


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_task_is_what_it_declares(task):
    declared = find_declaration(task.name)
    assert issubclass(task, declared) and DECLARATIONS[task.name] is declared and declared.__name__ == f"{task.__name__}Declaration"
    assert task.train_defaults(task.default_model) == declared.default_train
    assert all(name in {*task.Options.__dataclass_fields__, "attention"} for name in task.main_options)


def test_a_task_is_short():
    """Second ideas of a task are in files of their own."""
    lines = [len(Path(inspect.getfile(task)).read_text(encoding="utf-8").splitlines()) for task in TASKS]
    assert statistics.median(lines) <= 180 and max(lines) <= 240, dict(zip(NAMES, lines, strict=True))


def test_the_list_is_in_order():
    assert [task.name for task in TASKS] == list(NAMES) == list(DECLARATIONS)


def test_constants_are_those_of_the_packages_that_use_them():
    assert text.SUFFIXES == SUFFIXES and strokes.MAX_POINTS == MAX_POINTS
    assert get_args(options.Targets) == get_args(lora.Targets) and get_args(Factorisation) == get_args(vivit.Factorisation)
    assert options.ImagesOptions().data == options.DrawOptions().data == options.PixelsOptions().data == labelled_images.DIGITS
    assert options.VideoOptions().data == MOTION


def test_options_need_no_pytorch():
    code = """
import sys
from regard import tasks, decode, train
for name in tasks.NAMES:
    tasks.find_declaration(name).Options()
for name in ("DataOptions", "NoOptions", "LanguageOptions"):
    getattr(tasks, name)
decode.GenerationOptions(), decode.EngineOptions(), train.TrainOptions()
print([name for name in ("torch", "numpy", "transformers", "tyro") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
