"""Every task, model and mechanism on a device that is not the CPU: a pretend one, which this machine has, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.tasks.examples import write_example

import regard
from regard.cli import _pages, main
from regard.cli.generate import device_for
from regard.cli.train import Train, train_defaults
from regard.errors import BadConfig
from regard.machine import find_device
from regard.models import models
from regard.tasks import TASKS, train
from regard.train import TrainOptions

pytest.importorskip("torch.utils.backend_registration")
if not hasattr(sys.modules["torch.utils.backend_registration"], "_setup_privateuseone_for_python_backend"):
    pytest.skip("this PyTorch has no devices that are written in Python", allow_module_level=True)

OTHER_TASK = {  # of models that can be trained for several: the one they are tried with
    name: next(task.name for task in TASKS if issubclass(kind, task.body_kinds or (task.model_kind,))) for name, kind in models().items()
}
SETTINGS = {name: {"kv_heads": 2, "head_dim": 8} for name in ("llama", "gemma", "mixtral", "granite", "olmo2", "gpt_oss")} | {
    "seq2seq": {"depth": 1},
    "luong": {"depth": 1},
}
DEFAULTS = {task.default_model for task in TASKS}


class Asker:
    """Runs checks of `on_pretend_device.py` in a process that has the device; a new one after one has died."""

    def __init__(self, errors):
        self.errors, self.process = errors, None

    def __call__(self, check, *arguments):
        process = self.process = self.process or self.start()
        print(json.dumps([check, *arguments]), file=process.stdin, flush=True)
        answer = process.stdout.readline()
        if not answer:
            self.process = None
            raise AssertionError(f"the process ended with {process.wait()} during {check} {arguments}: {self.errors.read_text()[-4000:]}")
        wrong = json.loads(answer)
        assert wrong is None, wrong

    def start(self):
        with self.errors.open("w") as errors:
            return subprocess.Popen(
                [sys.executable, "-X", "faulthandler", str(Path(__file__).parent / "on_pretend_device.py")],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, encoding="utf-8",
            )  # fmt: skip

    def stop(self):
        if self.process:
            self.process.communicate()


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    asker = Asker(tmp_path_factory.mktemp("device") / "errors.txt")
    yield asker
    asker.stop()


@pytest.mark.parametrize("task", [task.name for task in TASKS])
def test_a_task_is_the_same_on_a_device(task, ask, tmp_path):
    ask("task", task, str(tmp_path))


@pytest.mark.parametrize("mechanism", [mechanism.facts.name for mechanism in regard.MECHANISMS])
def test_a_mechanism_is_the_same_on_a_device(mechanism, ask):
    ask("mechanism", mechanism)


@pytest.mark.parametrize("name", [name for name in models() if name not in DEFAULTS and name != "esim"])
def test_a_model_is_the_same_on_a_device(name, ask, tmp_path):
    ask("model", name, OTHER_TASK[name], str(tmp_path), {}, SETTINGS.get(name, {}))


def test_a_language_model_writes_and_embeds_on_a_device(ask, tmp_path):
    ask("language", str(tmp_path))


def test_a_translator_searches_on_a_device(ask, tmp_path):
    ask("translation", str(tmp_path))


@pytest.mark.parametrize("task", ["language", "masked", "images"])
def test_a_training_that_is_resumed_is_the_same_bit_for_bit(task, ask, tmp_path):
    ask("resume", task, str(tmp_path))


@pytest.mark.parametrize("check", ["pretending", "ahead_of_the_step", "dropout", "waiting"])
def test_on_a_device(check, ask):
    ask(check)


def test_an_error_in_a_batch_comes_at_its_step(ask, tmp_path):
    ask("a_failing_batch", str(tmp_path))


# -- which device ------------------------------------------------------------------------------------------------------


def test_commands_that_use_a_model_take_a_device():
    for name in ("evaluate", "predict", "look", "complete", "serve", "embed"):
        assert {one.name: one.default for one in _pages.page(name)[1]}["--device"] == "auto", name
    assert train_defaults(Train, TASKS[0], None).train.device == "auto" and TrainOptions().device == "cpu"


def test_a_device_that_is_not_there_is_refused_in_one_line(tmp_path, capsys):
    example = write_example("language", tmp_path)
    train("language", example.options, TrainOptions(steps=1), tmp_path / "run", settings=example.settings, progress=False)
    capsys.readouterr()
    for arguments in (["evaluate", "RUN"], ["complete", "RUN", "The"], ["look", "RUN", "The"]):
        given = [str(tmp_path / "run") if one == "RUN" else one for one in arguments]
        assert main([*given, "--device", "xpu:7"]) == 2
        error = capsys.readouterr().err
        assert "--device xpu:7" in error and error.count("\n") == 1
        assert main([*given, "--device", "cpu"]) == 0
    with pytest.raises(BadConfig, match="--device xpu"):
        regard.load(tmp_path / "run", device="xpu:7")


def test_several_processes_take_a_gpu_each(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch, "zeros", lambda *size, device: None)
    assert find_device("auto") == torch.device("cuda")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert find_device("auto") == find_device("cuda") == torch.device("cuda", 1) == chosen[0]
    assert find_device("cuda:0") == torch.device("cuda", 0) and find_device("cpu") == torch.device("cpu")


def test_quantized_models_stay_on_the_cpu():
    assert device_for("auto", "int8") == "cpu" and device_for("auto", "float32") == "auto" and device_for("cuda", "int8") == "cuda"
