"""Kinds of things that can be checked. Each recognises its own, knows them by name, and has its checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..attention import Attention, mechanisms
from ..errors import BadConfig
from ..interop.families import families
from ..interop.family import Family
from ..models import Model, models
from ..names import find as find_name
from ..patterns import RULES, VALUES, Pattern
from ..recipes import Recipe, recipes
from ..tasks import Task, tasks
from . import _facts, _models, _others, _outputs, _patterns, _reference, _streaming, _tasks, _transforms  # noqa: F401  each adds its checks to CHECKS
from ._subject import CHECKS, Check, check_settings


@dataclass(frozen=True)
class Kind:
    """A kind of thing, and how it is checked."""

    name: str  # name in errors
    expected: str  # description in errors, for what is not one
    accepts: Callable[[Any], bool]  # recognises one
    named: Callable[[], Mapping[str, Any]]  # all of them that are known, by name
    check_settings: Callable[[Any, Mapping[str, Any]], None]  # refuse settings it cannot be checked with
    checks: Mapping[str, Check]  # by name, in the order they are run


def _any_settings(thing: Any, settings: Mapping[str, Any]) -> None:
    """Settings are checked where the thing is built."""


def _subclass(base: type, needs: str) -> Callable[[Any], bool]:
    return lambda thing: isinstance(thing, type) and issubclass(thing, base) and hasattr(thing, needs)


def _is_pattern(thing: Any) -> bool:
    return isinstance(thing, Pattern) or (isinstance(thing, type) and issubclass(thing, Pattern))


KINDS = (
    Kind("mechanism", "a subclass of regard.Attention with `facts`", _subclass(Attention, "facts"), mechanisms, check_settings, CHECKS),
    Kind("model", "a subclass of Model with `facts`", _subclass(Model, "facts"), models, _any_settings, _models.CHECKS),
    Kind("task", "a subclass of Task with a `name`", _subclass(Task, "name"), tasks, _any_settings, _tasks.CHECKS),
    Kind("pattern", "a pattern, or a subclass of Pattern", _is_pattern, lambda: VALUES | RULES, _any_settings, _patterns.CHECKS),
    Kind("recipe", "a Recipe", lambda thing: isinstance(thing, Recipe), recipes, _any_settings, _others.RECIPE_CHECKS),
    Kind("checkpoint family", "a Family", lambda thing: isinstance(thing, Family), families, _any_settings, _others.FAMILY_CHECKS),
)


def kind_of(thing: Any) -> Kind:
    """The kind of a class or object to be checked.

    Args:
        thing: class or object to be checked.
    """
    for kind in KINDS:
        if kind.accepts(thing):
            return kind
    raise BadConfig(f"expected {' or '.join(kind.expected for kind in KINDS)}, got {thing!r}")


def find(name: str) -> Any:
    """The thing called `name`, of any kind; of several the first, in the order of `KINDS`.

    Args:
        name: name of a mechanism, model, task, pattern, recipe or checkpoint family.
    """
    return find_name(
        " or ".join(kind.name for kind in KINDS),
        name,
        lambda: {name: thing for kind in reversed(KINDS) for name, thing in kind.named().items()},
    )
