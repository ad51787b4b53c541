"""Doors for extensions: mechanisms, models, tasks, recipes, patterns and checkpoint families from outside the package, by one function.

    @regard.register
    class Mine(Attention): ...                      then: regard list, show, check, compare, configs, `with_attention`, transformers

Installed packages do the same by entry points, which are loaded when a list is printed or an unknown name is asked for:

    [project.entry-points."regard.plugins"]
    mine = "my_package.attention:Mine"              an object, or a module that registers what it has
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from .errors import BadConfig, RegardError

GROUP = "regard.plugins"
Thing = TypeVar("Thing")


class Kind(NamedTuple):
    """A kind of thing that can be registered."""

    name: str  # name in errors
    fits: Callable[[Any], bool]  # recognises one
    name_of: Callable[[Any], str]  # name that one is registered under
    known: Mapping[str, Any]  # all of them by name
    registered: MutableMapping[str, Any]  # those from outside


def kinds() -> list[Kind]:
    """Every kind, with where its entries are kept."""
    from . import attention, models, patterns, recipes, tasks
    from .interop import families, family

    def subclass(base: type, needs: str = "__name__") -> Callable[[Any], bool]:
        return lambda thing: isinstance(thing, type) and issubclass(thing, base) and hasattr(thing, needs)

    def instance(base: type) -> Callable[[Any], bool]:
        return lambda thing: isinstance(thing, base)

    return [
        Kind("mechanism", subclass(attention.Attention, "facts"), _fact, attention.mechanisms(), attention.registered),
        Kind("model", subclass(models.Model, "facts"), _fact, models.models(), models.registered),
        Kind("task", subclass(tasks.Task, "name"), lambda thing: thing.name, tasks.tasks(), tasks.registered),
        Kind("recipe", instance(recipes.Recipe), _fact, recipes.recipes(), recipes.registered),
        Kind("pattern", instance(patterns.Pattern), str, patterns.VALUES, patterns.VALUES),
        Kind("rule for patterns", subclass(patterns.Pattern), lambda thing: thing.__name__, patterns.RULES, patterns.RULES),
        Kind("checkpoint family", instance(family.Family), lambda thing: thing.model_types[0], families.families(), families.registered),
    ]


def _fact(thing: Any) -> str:
    return str(thing.facts.name)


def register(thing: Thing) -> Thing:
    """Make a mechanism, model, task, recipe, pattern or checkpoint family outside this package known by its name. A decorator for classes.

    Args:
        thing: Subclass of `Attention`, `Model`, `Task` or `Pattern`, or a `Recipe`, a pattern, a `Family`; its name must not be taken.
    """
    kind = next((kind for kind in kinds() if kind.fits(thing)), None)
    if kind is None:
        known = ", ".join(kind.name for kind in kinds())
        raise BadConfig(f"register takes a {known}; got {str(thing)[:80]}")
    name = kind.name_of(thing)
    taken = kind.known.get(name)
    if taken is not None and _place(taken) != _place(thing):
        raise BadConfig(f"a {kind.name} called {name!r} exists already ({'.'.join(_place(taken))}); choose another name")
    kind.registered[name] = thing
    return thing


def _place(thing: Any) -> tuple[str, str]:
    """Module and name: a class that is defined again, in a notebook, replaces itself."""
    kind = thing if isinstance(thing, type) else type(thing)
    return kind.__module__, kind.__qualname__


_loaded: list[str] = []


def load_plugins() -> None:
    """Register what installed packages offer under the entry point `regard.plugins`; once."""
    if _loaded:
        return
    _loaded.append(GROUP)
    for point in entry_points(group=GROUP):
        try:
            found = point.load()
            if not isinstance(found, ModuleType):
                register(found)
        except RegardError:
            raise
        except Exception as wrong:  # of another package: anything
            raise BadConfig(
                f"the plugin {point.name} = {point.value} cannot be loaded: {type(wrong).__name__}: {wrong}; uninstall it"
            ) from wrong
