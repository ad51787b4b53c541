"""The contract, runnable on any class: `check_mechanism(Mine)` here, `regard check module:Mine` on the command line.

Each check is a function of a class in `CHECKS`. A failure names the fact to change, or what to correct. Models, tasks, patterns, recipes and checkpoint
families are checked alike (`KINDS`): `run_checks` takes a thing of any kind.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..attention import Attention
from ..errors import UnknownName
from ._kinds import KINDS as KINDS
from ._kinds import Kind as Kind
from ._kinds import find as find
from ._kinds import kind_of as kind_of
from ._subject import CHECKS as CHECKS
from ._subject import ContractError as ContractError
from ._subject import NotApplicable as NotApplicable
from ._subject import assert_law as assert_law

__all__ = [
    "CHECKS",
    "KINDS",
    "ContractError",
    "Kind",
    "NotApplicable",
    "Report",
    "Result",
    "assert_law",
    "check_mechanism",
    "find",
    "run_checks",
]


@dataclass(frozen=True)
class Result:
    """The outcome of one check."""

    check: str  # name of the check
    outcome: Literal["passed", "failed", "not applicable"]  # facts say which checks do not apply
    reason: str = ""  # why it failed or does not apply

    def __str__(self) -> str:
        return f"{self.outcome:<14}  {self.check:<19}  {self.reason}".rstrip()


@dataclass(frozen=True)
class Report:
    """The outcome of all checks; printed, one line each."""

    mechanism: type[Attention]  # class that was checked
    results: tuple[Result, ...]  # in the order of the checks

    @property
    def failures(self) -> tuple[Result, ...]:
        return tuple(result for result in self.results if result.outcome == "failed")

    @property
    def passed(self) -> bool:
        return not self.failures

    def __str__(self) -> str:
        return "\n".join(map(str, self.results))


def check_mechanism(mechanism: type[Attention], checks: Iterable[str] | None = None, settings: Mapping[str, Any] | None = None) -> Report:
    """Run the checks on a class, built in sizes that the checks choose.

    Args:
        mechanism: class to check.
        checks: names of checks; None: all.
        settings: arguments of its constructor, beside the sizes.
    """
    return Report(mechanism, tuple(run_checks(mechanism, checks, settings)))


def run_checks(thing: Any, checks: Iterable[str] | None = None, settings: Mapping[str, Any] | None = None) -> Iterator[Result]:
    """Run the checks one by one on a thing of any kind, and yield each result as it comes.

    Args:
        thing: mechanism, model, task, pattern, recipe or checkpoint family.
        checks: names of checks; None: all of its kind.
        settings: arguments of its constructor, beside the sizes.
    """
    kind, settings = kind_of(thing), settings or {}
    kind.check_settings(thing, settings)
    for name in kind.checks if checks is None else checks:
        if name not in kind.checks:
            raise UnknownName("check", name, kind.checks)
        try:
            kind.checks[name](thing, **settings)
            result = Result(name, "passed")
        except NotApplicable as reason:
            result = Result(name, "not applicable", str(reason))
        except Exception as error:  # whatever the class raises is its failure, not ours
            text = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}{_raised_at(error)}: {error}"
            result = Result(name, "failed", " ".join(text.split()))
        yield result


def _raised_at(error: Exception) -> str:
    """The last line outside of PyTorch and of these checks that the error came through, to look at first."""
    own, torch = Path(__file__).parent, f"{Path('torch')}/"
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).parent != own and torch not in frame.filename
    ]
    return f" in {frames[-1].name} ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
