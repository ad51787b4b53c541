"""Weights & Biases and MLflow: what they are given, with modules that only record calls."""

import sys
from types import SimpleNamespace

import pytest

from regard.errors import NotSupported
from regard.train.log import Curves, check_installed


class Recorder:
    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def call(*values, **named):
            self.calls.append((name, values, named))
            return SimpleNamespace(
                info=SimpleNamespace(run_id="run-7"), log=self.log_like, finish=lambda: self.calls.append(("finish", (), {}))
            )

        return call

    def log_like(self, *values, **named):
        self.calls.append(("log", values, named))


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_numbers_arrive_under_their_names(name, tmp_path, monkeypatch):
    fake = Recorder()
    monkeypatch.setitem(sys.modules, name, fake)
    curves = Curves([name], tmp_path / "book", 0)
    curves.write("train", {"step": 3, "loss": 2.5, "norm": float("nan")})
    curves.write("evaluation", {"step": 4, "chrf": 9.0})
    curves.write("final", {"step": 4, "ended_by": "budget"})
    curves.flush()
    curves.close()
    numbers = [(values[0], named) for call, values, named in fake.calls if call in ("log", "log_metrics")]
    assert numbers == [({"train/loss": 2.5}, {"step": 3}), ({"evaluation/chrf": 9.0}, {"step": 4})]
    assert fake.calls[-1][0] in ("finish", "end_run")


def test_a_resumed_run_continues(tmp_path, monkeypatch):
    for name in ("wandb", "mlflow"):
        fake = Recorder()
        monkeypatch.setitem(sys.modules, name, fake)
        Curves([name], tmp_path, 0)
        Curves([name], tmp_path, 5)
        first, second = (named for call, _, named in fake.calls if call in ("init", "start_run"))
        assert first["id"] == second["id"] if name == "wandb" else second == {"run_id": "run-7"}


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_without_it_the_error_says_how_to_install_it(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(NotSupported, match=rf"pip install 'regard\[{name}\]'"):
        check_installed([name])


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_what_keeps_it_from_starting_is_one_line(name, tmp_path, monkeypatch):
    def refuse(**named):
        raise RuntimeError("no account\nmany more lines")

    monkeypatch.setitem(sys.modules, name, SimpleNamespace(init=refuse, start_run=refuse))
    with pytest.raises(NotSupported, match=r"cannot start: no account; .*metrics\.jsonl has the same numbers$"):
        Curves([name], tmp_path, 0)
