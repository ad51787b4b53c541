"""The contract, runnable on any class: `check_mechanism(Mine)` here, `regard check module:Mine` on the command line.

Each check is a function of a class in `CHECKS`. A failure names the fact to change, or what to correct.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from ..attention import Attention
from ..errors import BadConfig, UnknownName
from . import _facts, _outputs, _streaming, _transforms  # each adds its checks to CHECKS
from ._subject import CHECKS, ContractError, NotApplicable, assert_law

__all__ = ["CHECKS", "ContractError", "NotApplicable", "Report", "Result", "assert_law", "check_mechanism", "run_checks"]


@dataclass(frozen=True)
class Result:
    """What came of one check; `reason` is one line, empty where it passed."""

    check: str
    outcome: Literal["passed", "failed", "not applicable"]
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.outcome:<14}  {self.check:<17}  {self.reason}".rstrip()


@dataclass(frozen=True)
class Report:
    """What came of all checks; printed, one line each."""

    mechanism: type[Attention]
    results: tuple[Result, ...]

    @property
    def failures(self) -> tuple[Result, ...]:
        return tuple(result for result in self.results if result.outcome == "failed")

    @property
    def passed(self) -> bool:
        return not self.failures

    def __str__(self) -> str:
        return "\n".join(map(str, self.results))


def check_mechanism(mechanism: type[Attention], checks: Iterable[str] | None = None) -> Report:
    """Run every check, or those named, on a class."""
    return Report(mechanism, tuple(run_checks(mechanism, checks)))


def run_checks(mechanism: type[Attention], checks: Iterable[str] | None = None) -> Iterator[Result]:
    """The same one by one, each result as it comes."""
    if not (isinstance(mechanism, type) and issubclass(mechanism, Attention) and hasattr(mechanism, "facts")):
        raise BadConfig(f"expected a subclass of regard.Attention with `facts`, got {mechanism!r}")
    for name in CHECKS if checks is None else checks:
        if name not in CHECKS:
            raise UnknownName("check", name, CHECKS)
        try:
            CHECKS[name](mechanism)
            result = Result(name, "passed")
        except NotApplicable as reason:
            result = Result(name, "not applicable", str(reason))
        except Exception as error:  # whatever the class raises is its failure, not ours
            text = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            result = Result(name, "failed", " ".join(text.split()))
        yield result
