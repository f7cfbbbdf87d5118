"""Results of the library's checks as Dagster's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    from paco_core.io.check_report import CheckReport


def _finite(value: str | int | float) -> str | int | float:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def as_result(*reports: CheckReport) -> dg.AssetCheckResult:
    """One result from one or more reports: the gravest failure decides, every description is kept."""
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
