"""The library's checks as Dagster's: most of them by a table, and their results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    from paco_core.io.check_report import CheckReport


def _finite(value: str | int | float) -> str | int | float:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def as_result(*reports: CheckReport) -> dg.AssetCheckResult:
    """One result from one or more reports: the gravest failure decides, every description is kept.

    No report passes too: no recipe is of the kind that the check looks at.
    """
    if not reports:
        return dg.AssetCheckResult(passed=True, description="skipped: no recipe of policies.recipes is of this kind")
    failed = [report for report in reports if not report.passed]
    grave = any(report.severity == "ERROR" for report in failed or reports)
    many = len(reports) > 1
    return dg.AssetCheckResult(
        passed=not failed,
        severity=dg.AssetCheckSeverity.ERROR if grave else dg.AssetCheckSeverity.WARN,
        description="\n".join(report.description for report in failed or reports),
        metadata={
            f"{report.name}/{key}" if many else key: _finite(value)
            for report in reports
            for key, value in report.metadata.items()
        },
    )


@dataclass(frozen=True)
class Check:
    """A check of the library that reads one file or folder of a stage: its function's name is the check's.

    Attributes:
        asset: what is checked.
        reads: what the function is given.
        says: the description: what holds when it passes.
    """

    function: str
    asset: str
    reads: Path
    says: str
    blocking: bool = False


def asset_checks(module: str, checks: Sequence[Check]) -> list[dg.AssetChecksDefinition]:
    """A Dagster check for each; ``module`` of the library is imported when one runs."""
    return [_asset_check(module, check) for check in checks]


def _asset_check(module: str, check: Check) -> dg.AssetChecksDefinition:
    @dg.asset_check(asset=check.asset, name=check.function, description=check.says, blocking=check.blocking)
    def run() -> dg.AssetCheckResult:
        return as_result(getattr(import_module(module), check.function)(check.reads))

    return run
