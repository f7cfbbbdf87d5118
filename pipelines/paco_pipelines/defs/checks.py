"""The checks that stages declare as Dagster's, and one of each benchmark's figures over its versions."""

from __future__ import annotations

import math
from collections.abc import Iterator

import dagster as dg

from dagster_dvc.metrics import ALL_METRICS
from dagster_dvc.reproduction import LOCK_DIGEST_TAG
from paco_core.io.check_report import CheckReport
from paco_core.runtime.stage import Check
from paco_core.stages import declared
from paco_pipelines.defs.graph import ROOT

Figures = dict[str, float | None]
_EVENTS_READ = 100


def stage_checks() -> Iterator[dg.AssetChecksDefinition]:
    """Of every stage of ``dvc.yaml``."""
    for name, stage in declared(ROOT).items():
        yield from (_asset_check(name, check) for check in stage.checks)
        if stage.compared:
            yield _figures_hold(name)


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


def _finite(value: str | int | float) -> str | int | float:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _asset_check(asset: str, check: Check) -> dg.AssetChecksDefinition:
    def run(context):  # type: ignore[no-untyped-def] # Dagster reads annotations, and cannot read them as texts
        item = context.partition_key if context.has_partition_key else None
        return _printed(context, check.name, as_result(*check.reports(ROOT, item)))

    return dg.asset_check(asset=asset, name=check.name, description=check.says, blocking=True)(run)


def _printed(context: dg.AssetCheckExecutionContext, name: str, result: dg.AssetCheckResult) -> dg.AssetCheckResult:
    """The result; one that did not pass has a line in the log, where a terminal shows it."""
    if not result.passed:
        context.log.warning("%s failed: %s", name, result.description)
    return result


def _figures_hold(asset: str) -> dg.AssetChecksDefinition:
    text = "No figure left the interval of the previous version"

    @dg.asset_check(asset=asset, name="figures_hold", description=text)
    def figures_hold(context):  # type: ignore[no-untyped-def]
        from paco_core.benchmarks import checks

        report = checks.figures_hold(*last_two_versions(context.instance, dg.AssetKey(asset)))
        return _printed(context, "figures_hold", as_result(report))

    return figures_hold


def last_two_versions(instance: dg.DagsterInstance, key: dg.AssetKey) -> tuple[Figures, Figures | None]:
    """The figures of the newest version and of the version before it, which another run of the stage made.

    Materialisations that found the newest version unchanged, or restored it, are passed over.
    """
    versions: dict[str, Figures] = {}
    for record in instance.fetch_materializations(key, limit=_EVENTS_READ).records:
        event = record.asset_materialization
        if event is None:
            continue
        digest = (event.tags or {}).get(LOCK_DIGEST_TAG, str(record.storage_id))
        values = {name: value.value for name, value in event.metadata.items()}
        if isinstance(exact := values.get(ALL_METRICS), dict):  # else an event of an earlier version of paco
            values = exact
        numbers: Figures = {name: float(v) for name, v in values.items() if isinstance(v, (int, float))}
        versions.setdefault(digest, numbers)
        if len(versions) == 2:
            break
    newest, before = [*versions.values(), None, None][:2]
    return newest or {}, before
