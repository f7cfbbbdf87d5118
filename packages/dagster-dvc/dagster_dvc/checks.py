"""The check that an asset is what ``dvc.lock`` says: partitioned assets always look fresh in Dagster's graph."""

from collections.abc import Sequence

import dagster as dg

from dagster_dvc.translator import DagsterDvcTranslator
from dvc_project.project import DvcProject
from dvc_project.state import ProjectState

IN_SYNC = "in_sync_with_dvc"


def build_in_sync_checks(
    project: DvcProject, *, translator: DagsterDvcTranslator | None = None, exclude: Sequence[str] = ()
) -> list[dg.AssetChecksDefinition]:
    """For each asset the check :data:`IN_SYNC`: its stages ran with the present code, parameters and inputs."""
    chosen = translator or DagsterDvcTranslator()

    def build(name: str) -> dg.AssetChecksDefinition:
        @dg.asset_check(
            asset=chosen.get_asset_key(project.groups[name]),
            name=IN_SYNC,
            description="The recorded run had the present code, parameters and inputs, and its outs are as recorded",
        )
        def in_sync_with_dvc() -> dg.AssetCheckResult:
            return in_sync(project.reload(), name)

        return in_sync_with_dvc

    return [build(name) for name in project.assets if name not in exclude]


def in_sync(project: DvcProject, group: str, state: ProjectState | None = None) -> dg.AssetCheckResult:
    """Whether all stages of an entry of ``dvc.yaml`` are up to date, and if not, why.

    Args:
        state: of the project, if the caller has it; else ``dvc.lock`` is read.
    """
    state = state or ProjectState(project)
    why: dict[str, str] = {}
    unchecked: list[str] = []
    for stage in project.groups[group].stages:
        found = state.of(stage)
        reasons = [*found.reasons, *(f"{name} changed" for name in sorted(found.changed_upstream))]
        if reasons:
            why[stage.name] = "; ".join(reasons)
        unchecked += found.unchecked
    text = "; ".join(f"{name}: {text}" for name, text in why.items()) or "in step with dvc.lock"
    if unchecked:
        text += f"; not asked for over the network: {', '.join(dict.fromkeys(unchecked))}"
    return dg.AssetCheckResult(passed=not why, severity=dg.AssetCheckSeverity.WARN, description=text)
