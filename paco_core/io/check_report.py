"""The result of a data check, and a few words to build one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["ERROR", "WARN"]


@dataclass(frozen=True)
class CheckReport:
    """What one check found. ``ERROR`` blocks the stages that follow, ``WARN`` does not."""

    name: str
    passed: bool
    severity: Severity
    description: str
    metadata: dict[str, str | int | float] = field(default_factory=dict)

    @classmethod
    def skipped(cls, name: str, severity: Severity, reason: str) -> CheckReport:
        """A check of what a stage did not make, since there was nothing to do: it passes, and says so."""
        return cls(name, True, severity, f"skipped: {reason}", {"skipped": True})
