"""Results of checks, and the decorator that makes a check of a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Literal, NamedTuple, ParamSpec

from paco_core.io.files import DataError

Severity = Literal["ERROR", "WARN"]
Figures = dict[str, str | int | float]
P = ParamSpec("P")


@dataclass(frozen=True)
class CheckReport:
    """The result of one check. ``ERROR`` blocks the stages that follow, ``WARN`` does not."""

    name: str
    passed: bool
    severity: Severity
    description: str
    metadata: Figures = field(default_factory=dict)

    @classmethod
    def skipped(cls, name: str, severity: Severity, reason: str) -> CheckReport:
        """A check of what a stage did not make, since there was nothing to do: it passes, and says so."""
        return cls(name, True, severity, f"skipped: {reason}", {"skipped": True})


class CheckFinding(NamedTuple):
    """The return value of a function marked by :func:`check`. ``severity`` overrides the severity of the check."""

    passed: bool
    description: str
    metadata: Figures
    severity: Severity | None = None


def skipped(reason: str) -> CheckFinding:
    """A passed check of an output that the stage did not write, because there was nothing to do."""
    return CheckFinding(True, f"skipped: {reason}", {"skipped": True})


def check(severity: Severity) -> Callable[[Callable[P, CheckFinding]], Callable[P, CheckReport]]:
    """Make a check of a function, under its name: a file that cannot be read fails it, with this severity."""

    def decorate(function: Callable[P, CheckFinding]) -> Callable[P, CheckReport]:
        @wraps(function)
        def checked(*args: P.args, **settings: P.kwargs) -> CheckReport:
            try:
                finding = function(*args, **settings)
            except DataError as error:
                finding = CheckFinding(False, str(error), {})
            return CheckReport(
                function.__name__, finding.passed, finding.severity or severity, finding.description, finding.metadata
            )

        return checked

    return decorate
