"""Docstrings of the public surface: every argument is explained under `Args:`, and what takes tensors says their shapes."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
from torch import nn

import regard
from regard.docstrings import arguments, field_help
from regard.tasks import Task
from regard.train import Objective

PACKAGES = (
    *("regard", "regard.attention", "regard.layers", "regard.models", "regard.kernels", "regard.patterns", "regard.decode", "regard.look"),
    *("regard.compare", "regard.interop", "regard.serve", "regard.recipes", "regard.catalogue", "regard.machine", "regard.files"),
    *("regard.errors", "regard.docstrings", "regard.data", "regard.runs", "regard.run_config"),
    *("regard.tasks", "regard.train", "regard.cli", "regard.testing", "regard.metrics", "regard.baselines", "regard.tasks.options"),
    *("regard.bounds", "regard.names", "regard.registry", "regard.processes"),
)


def public() -> Iterator[Any]:
    """Every class and function that a package offers."""
    found: dict[Any, None] = {}
    for name in PACKAGES:
        module = importlib.import_module(name)
        names = regard.__all__ if module is regard else dir(module)
        for key in list(names):
            value = getattr(module, key)
            inside = getattr(value, "__module__", None) or ""
            if not key.startswith("_") and (inspect.isclass(value) or inspect.isfunction(value)) and f"{inside}.".startswith(f"{name}."):
                found[value] = None
    yield from found


def explained(entry: Any) -> set[str]:
    """The arguments that the docstring explains, that of a base class included whose constructor it has; fields also by a comment."""
    if not inspect.isclass(entry):
        return set(arguments(entry))
    owner = next(kind for kind in entry.__mro__ if "__init__" in vars(kind) or kind is object)
    parts = entry.__mro__[: entry.__mro__.index(owner) + 1]
    return {name for part in parts for name in arguments(part)} | set(field_help(entry)) | set(named_tuple_help(entry))


def named_tuple_help(entry: type[Any]) -> list[str]:
    """Fields of a NamedTuple with a comment behind them."""
    if not (issubclass(entry, tuple) and hasattr(entry, "_fields")):
        return []
    source = textwrap.dedent(inspect.getsource(entry))
    lines = source.splitlines()
    nodes = [node for node in ast.parse(source).body[0].body if isinstance(node, ast.AnnAssign)]
    return [node.target.id for node in nodes if "#" in lines[node.end_lineno - 1]]


def parameters(entry: Any) -> list[str]:
    """The parameters of a function or a constructor of ours."""
    if inspect.isclass(entry) and hasattr(entry, "_fields"):
        return list(entry._fields)
    if inspect.isclass(entry) and isinstance(vars(entry).get("__new__"), staticmethod) and "__init__" not in vars(entry):
        return list(inspect.signature(entry.__new__).parameters)[1:]
    ours = getattr(entry.__init__, "__module__", "").startswith("regard") or dataclasses.is_dataclass(entry)
    if inspect.isclass(entry) and (getattr(entry, "_is_protocol", False) or not ours):
        return []
    return list(inspect.signature(entry.__init__).parameters)[1:] if inspect.isclass(entry) else list(inspect.signature(entry).parameters)


def says_shapes(entry: Any) -> bool:
    """Whether the docstring has `Shape:`; of a module, that of the class that defines `forward`, or of one derived from it."""
    if not inspect.isclass(entry):
        return "Shape:" in (inspect.getdoc(entry) or "")
    owner = next(kind for kind in entry.__mro__ if "forward" in vars(kind))
    return any("Shape:" in (vars(part)["__doc__"] or "") for part in entry.__mro__[: entry.__mro__.index(owner) + 1])


def takes_tensors(entry: Any) -> bool:
    if inspect.isclass(entry):
        forward = getattr(entry, "forward", None)
        return issubclass(entry, nn.Module) and getattr(forward, "__module__", "").startswith("regard")
    kinds = {name: str(kind) for name, kind in inspect.get_annotations(entry).items()}
    return "Tensor" in kinds.get("return", "") and any(re.match(r"Tensor\b", kind) for name, kind in kinds.items() if name != "return")


ids = pytest.mark.parametrize("entry", list(public()), ids=lambda entry: f"{entry.__module__}.{entry.__name__}".removeprefix("regard."))


@ids
def test_every_argument_is_explained(entry):
    missing = [name for name in parameters(entry) if name not in explained(entry)]
    assert missing == [], "explain under Args:, one line each, or by a comment behind the field"


MANY = 3  # parameters from which on a method explains them; names such as x_BLD and pattern say enough for fewer


@ids
def test_methods_with_many_parameters_explain_them(entry):
    missing = {}
    for name, member in vars(entry).items() if inspect.isclass(entry) else ():
        method = inspect.unwrap(member.__func__) if isinstance(member, classmethod | staticmethod) else member
        method = inspect.unwrap(method) if callable(method) else method
        of_base = any(name in vars(base) for base in entry.__mro__[1:] if base.__module__.startswith("regard"))
        if name.startswith("_") or not inspect.isfunction(method) or of_base or not method.__doc__:
            continue
        given = list(inspect.signature(method).parameters)[0 if isinstance(member, staticmethod) else 1 :]
        if len(given) >= MANY:
            missing[name] = [each for each in given if each not in arguments(method)]
    assert {name: given for name, given in missing.items() if given} == {}


@pytest.mark.parametrize("base", [Task, Objective], ids=["Task", "Objective"])
def test_hooks_explain_every_argument(base):
    """Whoever writes a task or an objective implements them from their docstrings."""
    hooks = {name: inspect.unwrap(getattr(base, name)) for name in vars(base) if not name.startswith("_")}
    hooks = {name: getattr(hook, "__func__", hook) for name, hook in hooks.items() if callable(hook) and not inspect.isclass(hook)}
    missing = {
        name: [each for each in list(inspect.signature(hook).parameters)[1:] if each not in arguments(hook)] for name, hook in hooks.items()
    }
    assert len(hooks) > 5 and {name: given for name, given in missing.items() if given} == {}


@ids
def test_no_argument_is_explained_that_is_not_there(entry):
    own = [entry] if not inspect.isclass(entry) else [kind for kind in entry.__mro__ if kind.__module__.startswith("regard")]
    given = {name for part in own for name in parameters(part)}
    assert [name for name in arguments(entry) if name not in given] == []


@ids
def test_shapes_are_said_where_tensors_go_in(entry):
    assert not takes_tensors(entry) or says_shapes(entry), "write Shape: x_BLD → out_BLD"


def test_the_form_of_a_mechanism():
    """Sentence, formula, Cost, Use it, Avoid it, Limits, Args, Shape, Paper, in this order."""
    order = ("Cost:", "Use it:", "Avoid it:", "Limits:", "Args:", "Shape:", "Paper:")
    for mechanism in regard.MECHANISMS:
        lines = (inspect.getdoc(mechanism) or "").splitlines()
        found = [heading for line in lines for heading in order if line.startswith(heading)]
        assert found == [heading for heading in order if heading in found] and "Shape:" in found, mechanism.__name__


def test_arguments_are_read():
    def function(a, *b, **c):
        """One line.

        Args:
            a: first,
                continued.
            *b: the others.
            **c: options.

        More: text
            that: is not an argument.
        """

    assert arguments(function) == {"a": "first, continued.", "b": "the others.", "c": "options."}
