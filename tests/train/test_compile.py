"""torch.compile: the same numbers up to rounding, the same names in every file, and a caller's model that is left as it was."""

import pytest
import torch
from safetensors.torch import load_file
from tests.tasks.examples import write_example
from tiny import Net, Tiny, config, lines

from regard import tasks
from regard.train import checkpoint as checkpoints
from regard.train import fit
from regard.train.parameters import parameters_of

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")]


def test_compiled_is_the_same_run(tmp_path, monkeypatch):
    """Traced with its backward pass, and run as it was traced: what inductor makes of it is PyTorch's (tests/attention/test_transforms.py)."""
    compile = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module, **options: compile(module, **options, backend="aot_eager"))
    f64 = {"dtype": torch.float64}
    plain, compiled = Net(dropout=0.0, **f64), Net(dropout=0.0, **f64)
    short = {"steps": 8}
    fit(plain, Tiny(noise=False, **f64), config(**short), tmp_path / "a", progress=False)
    torch._dynamo.utils.counters.clear()
    fit(compiled, Tiny(noise=False, **f64), config(**short, compile=True), tmp_path / "b", progress=False)
    assert torch._dynamo.utils.counters["frames"]["ok"] > 0  # it did happen
    for name, x in parameters_of(plain).items():
        torch.testing.assert_close(parameters_of(compiled)[name], x, rtol=1e-10, atol=1e-12)
    losses = [[line["loss"] for line in lines(tmp_path / name, "train")] for name in "ab"]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    assert type(compiled) is Net and compiled.state_dict().keys() == plain.state_dict().keys()
    assert load_file(tmp_path / "b" / "model.safetensors").keys() == parameters_of(plain).keys()
    both = [checkpoints.load_latest(tmp_path / name / "state") for name in "ab"]
    assert both[0].tensors["optimizer"].keys() == both[1].tensors["optimizer"].keys()
    fit(Net(dropout=0.0, **f64), Tiny(noise=False, **f64), config(), tmp_path / "b", resume=True, progress=False)  # on without it


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # torch.compile's own
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("name", ["images", "language"])
def test_tasks_can_be_traced(name, tmp_path, monkeypatch):
    """Batches of other sizes and a validation part included."""
    compile = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module, **options: compile(module, **options, backend="eager"))
    task = tasks.find_task(name)
    example = write_example(task, tmp_path)
    options = task.default_train.replace(steps=2, epochs=None, compile=True)
    found = tasks.train(task, example.options, options, tmp_path / "run", settings=example.settings, progress=False)
    assert found.steps == 2
