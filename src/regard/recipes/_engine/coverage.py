"""Mechanisms and models that the claims of recipes name: those that their variants build, found in values and code; and where the others come from.

A variant is walked through: fields, arguments of partials, values of mappings, and functions and classes of the recipe's own file, whose code is
searched for classes, tasks and names of models. A task without a model builds its default one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from types import CodeType, FunctionType
from typing import Any

from ...attention import Attention, mechanisms
from ...models import models
from .base import Recipe

ORACLE = "tests/interop/test_config_keys.py::test_logits_and_every_tensor_back"
# Models that are reimplementations: their evidence is equality with transformers, and there is no claim about them. Model → model_type in ORACLE.
REIMPLEMENTED = {
    "albert": "albert",
    "bart": "bart",
    "big_bird": "big_bird",
    "fnet": "fnet",
    "gemma": "gemma",
    "gpt": "openai-gpt",
    "gpt2": "gpt2",
    "gpt_neox": "gpt_neox",
    "gpt_oss": "gpt_oss",
    "granite": "granite",
    "longformer_encoder": "longformer",
    "mixtral": "mixtral",
    "mpnet": "mpnet",
    "nystromformer": "nystromformer",
    "olmo2": "olmo2",
    "opt": "opt",
    "reformer": "reformer",
    "t5": "t5",
}


def named(recipes: Iterable[Recipe]) -> dict[str, list[str]]:
    """Recipes whose claims name each mechanism and model, by name.

    Args:
        recipes: recipes to search.
    """
    found: dict[str, list[str]] = {}
    for recipe in recipes:
        for name in sorted(names_of(recipe)):
            found.setdefault(name, []).append(recipe.facts.name)
    return found


def names_of(recipe: Recipe) -> set[str]:
    """Mechanisms and models of the variants that the claims of a recipe name.

    Args:
        recipe: the recipe.
    """
    claimed = {variant for claim in recipe.claims for one in claim.comparisons for variant, _ in one.value.keys}
    modules = {value.__name__ for value in list(sys.modules.values()) if getattr(value, "recipe", None) is recipe}
    found: set[str] = set()
    for name in claimed:
        variant: Any = recipe.variants[name]
        while hasattr(variant, "of") and variant.of in recipe.variants:  # evaluated again
            variant = recipe.variants[variant.of]
        found |= set(_Walk(modules).names(variant))
    return found


class _Walk:
    """A walk through what a variant is made of; `modules` are those whose code is read."""

    def __init__(self, modules: set[str]):
        self.modules = modules
        self.seen: list[Any] = []  # kept, so that no id is used twice

    def names(self, value: Any, key: str = "") -> Iterator[str]:
        if isinstance(value, str):
            yield from _names_in(value, key)
            if key == "model" and value in models():
                yield from _built_in(models()[value])
        if isinstance(value, str | int | float | None) or any(value is one for one in self.seen):
            return
        self.seen.append(value)
        if isinstance(value, type):
            yield from _names_of_class(value)
        if isinstance(value, partial):
            yield from self._all([value.func, *value.args])
            yield from self.names(value.keywords)
        elif isinstance(value, Mapping):
            for inner, one in value.items():
                yield from self.names(one, str(inner))
        elif isinstance(value, tuple | list):
            for one in value:
                yield from self.names(one, key)
        elif isinstance(value, FunctionType):
            yield from self._all([cell.cell_contents for cell in value.__closure__ or ()])
            yield from self._code(value)
        elif isinstance(value, type):
            yield from self._class(value)
        elif isinstance(value, Attention):
            yield from _names_of_class(type(value))
        elif is_dataclass(value):
            if hasattr(value, "task") and getattr(value, "model", "none") is None:
                yield from self.names(value.task.default_model, "model")
            model, settings = (getattr(value, name, None) for name in ("model", "settings"))
            if isinstance(model, str) and model in models() and "attention" not in (settings or {}):
                yield from _by_default(models()[model])
            yield from self._class(type(value))
            for field in fields(value):
                yield from self.names(getattr(value, field.name), field.name)

    def _all(self, values: Iterable[Any]) -> Iterator[str]:
        for value in values:
            yield from self.names(value)

    def _class(self, found: type) -> Iterator[str]:
        if found.__module__ in self.modules:
            yield from self._all(one for one in vars(found).values() if isinstance(one, FunctionType))

    def _code(self, function: FunctionType) -> Iterator[str]:
        """Names that the code of a function of the recipe's file uses; the default model of a task, unless a model is named beside it."""
        if function.__module__ not in self.modules:
            return
        used, constants = _words(function.__code__)
        for word in constants:
            yield from self.names(word, "model")
        for word in used:
            value = function.__globals__.get(word)
            if isinstance(value, type) and hasattr(value, "default_model"):
                yield from () if "model" in constants else self.names(value.default_model, "model")
            elif isinstance(value, type | FunctionType | Mapping | partial):
                yield from self.names(value)


def _built_in(model: type) -> Iterator[str]:
    """Mechanisms that the file of a model without a choice of mechanism imports."""
    if not any("attention" in field.name and field.name != "attention_overrides" for field in fields(model.Config)):  # type: ignore[attr-defined]
        for value in vars(sys.modules[model.__module__]).values():
            if isinstance(value, type) and issubclass(value, Attention) and value is not Attention:
                yield from _names_of_class(value)


def _by_default(model: type) -> Iterator[str]:
    """Mechanisms of a model whose settings name none."""
    for field in fields(model.Config):  # type: ignore[attr-defined]
        if "attention" in field.name:
            for line in [field.default] if isinstance(field.default, str) else field.default if isinstance(field.default, tuple) else ():
                yield from _names_in(str(line), field.name)


def _names_in(text: str, key: str) -> Iterator[str]:
    """A model's name under the key `model`; mechanisms in the text of a spec, under `attention` and the like."""
    if key == "model" and text in models():
        yield text
    if "attention" in key:
        yield from (word for word in re.findall(r"\w+", text) if word in mechanisms())


def _names_of_class(found: type) -> Iterator[str]:
    """The mechanism or model that a class is, or is derived from."""
    for base in found.__mro__:
        for name, known in (*mechanisms().items(), *models().items()):
            if known is base:
                yield name
                return


def _words(code: CodeType) -> tuple[set[str], set[str]]:
    """Global names that code and the code inside of it use, and their strings, names of keywords among them."""
    used, constants = set(code.co_names), {one for one in code.co_consts if isinstance(one, str)}
    for one in code.co_consts:
        if isinstance(one, tuple):
            constants |= {inner for inner in one if isinstance(inner, str)}
        if isinstance(one, CodeType):
            inner = _words(one)
            used, constants = used | inner[0], constants | inner[1]
    return used, constants
