"""Doors for extensions: every kind of thing by one function, names that are taken, and plugins of installed packages."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

import regard
from regard import catalogue, registry
from regard.attention import SoftmaxAttention
from regard.cli import main
from regard.errors import BadConfig, UnknownName
from regard.interop.families import LlamaFamily, families
from regard.models import GPT2, find_model
from regard.patterns import parse, window
from regard.recipes import RECIPES
from regard.tasks import Language, find_task


class MyAttention(SoftmaxAttention):
    """Softmax attention by another name."""

    facts = replace(SoftmaxAttention.facts, name="my_attention")


class MyModel(GPT2):
    """GPT-2 by another name."""

    facts = replace(GPT2.facts, name="my_model")
    sizes = {}  # noqa: RUF012


class MyTask(Language):
    """Train a causal language model.

    As in:  regard train my-task --data text.txt --out runs/mine
    """

    name = "my-task"


@dataclass(frozen=True, repr=False)
class my_window(window):
    """A sliding window by another name."""


class MyFamily(LlamaFamily):
    model_types = ("my_family",)


def test_every_kind_is_known_by_its_name():
    for thing in (MyAttention, MyModel, MyTask, my_window):
        assert regard.register(thing) is thing  # a decorator
    recipe = regard.register(replace(RECIPES[0], facts=replace(RECIPES[0].facts, name="my_recipe")))
    family = regard.register(MyFamily())
    assert catalogue.find("my_attention") is MyAttention and regard.attention.find_mechanism("my_attention") is MyAttention
    assert find_model("my_model") is MyModel and find_task("my-task") is MyTask and catalogue.find("my_recipe") is recipe
    assert families()["my_family"] is family and parse("my_window(3)") == my_window(3)
    assert {row["name"] for row in catalogue.rows("models")} >= {"gpt2", "my_model"}


def test_a_name_is_taken_once():
    regard.register(MyModel)
    regard.register(MyModel)  # again, as a cell of a notebook does
    other = type("Other", (GPT2,), {"facts": MyModel.facts, "sizes": {}})
    with pytest.raises(BadConfig, match="a model called 'my_model' exists already"):
        regard.register(other)
    with pytest.raises(BadConfig, match="a model called 'gpt2' exists already"):
        regard.register(type("Mine", (GPT2,), {"facts": GPT2.facts, "sizes": {}}))


@pytest.mark.parametrize("thing", [object, 3, "name", lambda: None, GPT2.Config])
def test_what_cannot_be_registered(thing):
    with pytest.raises(BadConfig, match="register takes a mechanism, model, task, recipe, pattern"):
        regard.register(thing)


def points(monkeypatch, **found):
    def load(value):
        if isinstance(value, Exception):
            raise value
        return value

    made = [SimpleNamespace(name=name, value=f"mine:{name}", load=lambda value=value: load(value)) for name, value in found.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: made if group == "regard.plugins" else [])
    monkeypatch.setattr(registry, "_loaded", [])


def test_plugins_are_loaded_when_a_name_is_unknown(monkeypatch):
    points(monkeypatch, mine=MyModel, module=pytest)
    assert find_model("my_model") is MyModel
    with pytest.raises(UnknownName):
        find_model("nothing")


def test_a_plugin_that_fails_is_named(monkeypatch, capsys):
    points(monkeypatch, broken=ImportError("no module named x"))
    with pytest.raises(BadConfig, match=r"the plugin broken = mine:broken cannot be loaded: ImportError: no module named x"):
        find_model("nothing")


def test_the_command_line_knows_a_plugin(monkeypatch, capsys, tmp_path):
    points(monkeypatch, mine=MyTask)
    assert main(["train", "my-task", "--out", str(tmp_path / "run"), "--data", str(tmp_path / "none.txt")]) == 2
    assert "none.txt" in capsys.readouterr().err
